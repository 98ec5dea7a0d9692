# SPDX-License-Identifier: Apache-2.0
"""All metrics of a data set: sums plus a finish, equal to the last bit in any order of images."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from deepbasis.latent import LAPLACE, Shape
from deepbasis.metrics.image import AREAS, COLUMNS, finish, mean_curve, no_totals, score
from deepbasis.metrics.pooled import bound, groups
from deepbasis.metrics.sparsification import Error, Groups, Sparsification, curves, index_of
from deepbasis.metrics.uncertainty import Calibration, calibration
from deepbasis.shapes import Bool, Float

Over = Literal["images", "pixels"]
# Longest name of an image, in bytes of UTF-8: names of many processes then gather as one tensor.
NAME_BYTES = 256

_DETAILS = (
    "AUSE: depth error in metres, sorted by std in metres, 100 fractions, not normalised; "
    "AUCE: p = 0.01 ... 0.99 in the latent (auce_all: all pixels pooled); NLL: nats in the latent"
)
# What a table has to say about its numbers.
CONVENTIONS: dict[Over, str] = {
    "images": f"mean over images. {_DETAILS}",
    "pixels": f"all pixels pooled, AUSE by a histogram. {_DETAILS}",
}


@dataclass
class Tally:
    """Images scored so far: a row of sums for each, and histograms of all their pixels.

    It takes some 200 kB, and half a kB more for each image. On many processes, score each image
    on one of them (a sampler that repeats images to fill the last batch is found out), gather
    `state()` and merge.

    >>> tally = Tally()
    >>> mean, var, true_m = torch.zeros(2, 2), torch.full((2, 2), 0.02), torch.full((2, 2), 1.25)
    >>> tally.add("one", mean, var, true_m)
    >>> tally.finish()["mae"]
    0.25
    """

    shape: Shape = LAPLACE
    rows: dict[str, Float[Tensor, "columns"]] = field(default_factory=dict, repr=False)
    totals: dict[str, Tensor] = field(default_factory=no_totals, repr=False)

    def add(
        self,
        name: str,
        mean: Float[Tensor, "*s"],
        var: Float[Tensor, "*s"],
        true_m: Float[Tensor, "*s"],
        mask: Bool[Tensor, "*s"] | None = None,
        *,
        shape: Shape | None = None,
    ) -> None:
        """Score one image: latent mean and variance against the truth in metres.

        Pixels count where the true depth is known and `mask`, if given, is true. The `shape` is the
        tally's, unless the image's pixels have their own.
        """
        self._check_new([name])
        if not 0 < len(name.encode()) <= NAME_BYTES:
            raise ValueError(f"an image is called {name!r}; a name has 1 to {NAME_BYTES} bytes")
        try:
            row, totals = score(mean, var, _masked(true_m, mask), shape or self.shape)
        except ValueError as error:
            raise ValueError(f"image {name!r} cannot be scored: {error}") from error
        self.rows[name] = row
        self._add_totals(totals)

    def merge(self, other: "Tally") -> None:
        """Take in the images of another tally."""
        if self.shape != other.shape:
            raise ValueError(f"one tally is for {self.shape}, the other for {other.shape}")
        self._check_new(other.rows)
        self.rows |= other.rows
        self._add_totals(other.totals)

    def finish(self, over: Over = "images") -> dict[str, float]:
        """Every metric, and how many images and pixels stand behind it.

        Over "images", each is the mean of the images' values; over "pixels", all pixels count
        alike, whichever image they are from. `CONVENTIONS[over]` says it in words.
        """
        table = self._table()
        values = finish(table if _of_images(over) else self._pooled(table))
        counts = {"images": float(len(table)), "pixels": float(table[:, 0].sum())}
        return {name: float(value.mean()) for name, value in values.items()} | counts

    def per_image(self) -> dict[str, Float[Tensor, "n"]]:
        """Every metric of every image, in the order of `names()`; for `confidence`."""
        return finish(self._table())

    def names(self) -> list[str]:
        """The images, sorted."""
        return sorted(self.rows)

    def sparsification(self, error: Error = "mae", over: Over = "images") -> Sparsification:
        """The mean of the images' curves, or the curve of all pixels together."""
        which, images = index_of(error), len(self._table())
        if _of_images(over):
            return mean_curve(self.totals["curves"].sum(0)[which], images)
        return curves(*self._orders())[which]

    def calibration(self) -> Calibration:
        """The curve of all pixels together; exact, although no pixel is kept."""
        self._table()
        return calibration(self.totals["held"])

    def ause_bound(self, error: Error = "mae") -> float:
        """How far, in metres, AUSE over "pixels" may be from that of a sort of all pixels."""
        self._table()
        return bound(*self._orders())[index_of(error)]

    def state(self, images: int | None = None) -> dict[str, Tensor]:
        """Everything as tensors of fixed shape, but for the number of images.

        With `images` the rows are padded to so many, for processes whose shares are unequal.
        """
        names, rows = self.names(), len(self.rows)
        size = rows if images is None else images
        if size < rows:
            raise ValueError(f"{rows} images do not fit into a state of {size}")
        letters = torch.zeros(size, NAME_BYTES, dtype=torch.uint8)
        table = torch.zeros(size, len(COLUMNS), dtype=torch.float64)
        for at, name in enumerate(names):
            word = name.encode()
            letters[at, : len(word)] = torch.tensor(list(word), dtype=torch.uint8)
            table[at] = self.rows[name]
        return {"names": letters, "rows": table} | {k: t.clone() for k, t in self.totals.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], shape: Shape = LAPLACE) -> "Tally":
        """The tally that `state` was made of; padding is left out."""
        tally = cls(shape)
        for letters, row in zip(state["names"].cpu(), state["rows"].cpu(), strict=True):
            if name := bytes(letters.tolist()).rstrip(b"\0").decode():
                tally.rows[name] = row.clone()
        tally._add_totals({name: state[name].cpu() for name in tally.totals})
        return tally

    def _add_totals(self, totals: Mapping[str, Tensor]) -> None:
        self.totals = {name: total + totals[name] for name, total in self.totals.items()}

    def _check_new(self, names: "list[str] | dict[str, Tensor]") -> None:
        if twice := sorted(self.rows.keys() & set(names)):
            raise ValueError(f"{len(twice)} images would count twice, {twice[0]!r} among them")

    def _table(self) -> Float[Tensor, "n columns"]:
        if not self.rows:
            raise ValueError("no image was scored, so there is nothing to report")
        return torch.stack([self.rows[name] for name in self.names()])

    def _pooled(self, table: Tensor) -> Float[Tensor, "1 columns"]:
        row = table.sum(0, keepdim=True)
        areas = [*(curve.area for curve in curves(*self._orders())), self.calibration().area]
        row[0, -len(AREAS) :] = torch.tensor(areas, dtype=row.dtype)
        return row

    def _orders(self) -> tuple[Groups, Groups]:
        counts, sums = self.totals["counts"], self.totals["sums"]
        return groups(counts[0], sums[:, 0]), groups(counts[1], sums[:, 1])


def _masked(true_m: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return true_m
    if mask.shape != true_m.shape:
        shapes = f"{list(mask.shape)} but the true depth {list(true_m.shape)}"
        raise ValueError(f"`mask` is {shapes}; give both the same shape")
    return torch.where(mask, true_m, 0)


def _of_images(over: str) -> bool:
    if over not in CONVENTIONS:
        raise ValueError(f"`over` is {over!r}; choose 'images' or 'pixels'")
    return over == "images"
