# SPDX-License-Identifier: Apache-2.0
"""What a training says in the end."""

from pathlib import Path

from deepbasis.model import Completer


def print_report(path: Path) -> None:
    """Print the figures in a model's file."""
    metrics = Completer.load(path).card.metrics
    losses = metrics["losses"]
    print(f"loss             {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")
    print("points           MAE (m)  RMSE (m)   NEES  within the 90 % interval")
    for points, row in metrics["held_back"].items():
        print(
            f"{points:<14} {row['mae']:9.3f} {row['rmse']:9.3f} {row['nees']:6.2f} "
            f"{row['coverage_90']:8.1%}"
        )
    print(f"model            {path}")
