# SPDX-License-Identifier: Apache-2.0
"""The page of `deepbasis serve`: look at a completion, click points, measure.

The browser keeps what the user made (image file, points, tools); the server keeps, for each
connection, the prepared scene and the last completion. They talk over one WebSocket.
"""
