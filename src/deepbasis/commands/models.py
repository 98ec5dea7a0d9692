# SPDX-License-Identifier: Apache-2.0
"""`deepbasis models`."""

from dataclasses import dataclass

from deepbasis.options import options
from deepbasis.pretrained import PRETRAINED, installed


@options
@dataclass(frozen=True)
class Models:
    """List the pretrained models, and the size of the networks that `deepbasis train` creates."""

    size: tuple[int, int] = (240, 320)
    """Height and width of the image in pixels for which operations are counted."""

    def run(self) -> None:
        """Print both tables."""
        if min(self.size) < 1:
            raise ValueError(f"--size {self.size[0]} {self.size[1]} is not the size of an image")
        from deepbasis.nets.cost import table

        rows = [("model", "for", "trained on", "size", "MAE at 500 points", "terms")]
        for one in PRETRAINED:
            size = f"{one.file.stat().st_size / 1e6:.0f} MB" if one.file else "not installed"
            rows.append((*one[:3], size, *one[3:]))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(map(str.ljust, row, widths)).rstrip())
        if len(installed()) < len(PRETRAINED):
            print("to install the others: pip install deepbasis-models")
        print(f"\n{table(self.size)}")
