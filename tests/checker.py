# SPDX-License-Identifier: Apache-2.0
"""The type checker of the tests: beartype, with an int allowed where a float is wanted."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
