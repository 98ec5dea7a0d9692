# SPDX-License-Identifier: Apache-2.0
"""`deepbasis train`; its settings are those of `train.config`."""

import sys

from deepbasis.train.config import TrainConfig


class Train(TrainConfig):
    """Train a network, learn its prior and calibrate its error bars, into one model file.

    It can be stopped at any time (Ctrl-C); the same command with --resume continues.
    """

    def run(self) -> None:
        """Train, and say how to resume if it was stopped."""
        self.check()
        try:
            from deepbasis.train.run import train
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f'training needs {error.name}: pip install "deepbasis[train]"'
            ) from error
        from deepbasis.train.loop import Stopped

        try:
            train(self)
        except Stopped as stopped:
            message, number = stopped.args
            if message:  # the first process speaks for all
                print(f"deepbasis: {message}", file=sys.stderr)
                sys.exit(128 + number)  # as shells report a process that a signal ended
