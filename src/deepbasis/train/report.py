# SPDX-License-Identifier: Apache-2.0
"""What a training prints at its end."""

from pathlib import Path
from typing import Any


def print_report(metrics: dict[str, Any], path: Path) -> None:
    """Print the figures of a model, and where its file is."""
    losses = metrics["losses"]
    print(f"loss             {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")
    print("points           MAE (m)  RMSE (m)   NEES  coverage of the 90 % interval")
    for points, row in metrics["validation"].items():
        print(
            f"{points:<14} {row['mae']:9.3f} {row['rmse']:9.3f} {row['nees']:6.2f} "
            f"{row['coverage_90']:8.1%}"
        )
    print(f"model            {path}")
