# SPDX-License-Identifier: Apache-2.0
"""All metrics of a data set; the result does not depend on the order of images, to the bit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepbasis.latent import LAPLACE, ErrorDistribution
from deepbasis.metrics.image import DepthOverflow, finish, mean_curve, no_totals, score
from deepbasis.metrics.sparsification import Error, SparsificationCurve, index_of
from deepbasis.metrics.uncertainty import CalibrationCurve, curve_from_counts
from deepbasis.shapes import Bool, Float

# Printed below tables.
CONVENTIONS = {
    "images": "means over images. AUSE: of the MAE, pixels sorted by std in metres, 100 steps, not "
    "normalised. AUCE, NLL and NEES: of log depth. AUCE: levels 0.01 to 0.99; pooled: one curve of "
    "all pixels of all images. 90 % coverage: share of pixels whose 90 % interval contains the "
    "ground truth"
}


@dataclass
class Tally:
    """Images scored so far: a row of sums for each image, and totals over images.

    On several processes, score each image in one of them, send the tallies to one process (they
    can be pickled) and merge them there; an image that was scored twice, for example by a sampler
    that pads the last batch, is an error.

    Examples:
        >>> tally = Tally()
        >>> mean, var = torch.zeros(2, 2), torch.full((2, 2), 0.02)
        >>> tally.add("one", mean, var, true_m=torch.full((2, 2), 1.25))
        >>> tally.finish()["mae"]
        0.25
    """

    distribution: ErrorDistribution = LAPLACE
    """Of the error of log depth."""
    rows: dict[str, Float[Tensor, "columns"]] = field(default_factory=dict, repr=False)
    """Sums of each image, by its name."""
    totals: dict[str, Tensor] = field(default_factory=no_totals, repr=False)
    """Sums over all images."""

    def add(
        self,
        name: str,
        mean: Float[Tensor, "*s"],
        var: Float[Tensor, "*s"],
        true_m: Float[Tensor, "*s"],
        mask: Bool[Tensor, "*s"] | None = None,
        *,
        distribution: ErrorDistribution | None = None,
    ) -> None:
        """Score one image: latent mean and variance against the truth in metres.

        Args:
            name: of the image; each may be added once.
            mean: predicted mean of log depth.
            var: predicted variance of log depth.
            true_m: true depth in metres; 0, NaN and infinity where it is not known.
            mask: pixels that count, where the true depth is known; all by default.
            distribution: the tally's by default; pass it if the pixels of the image have their own.

        Raises:
            DepthOverflow: if predicted depth is beyond all numbers.
            ValueError: if the image cannot be scored, for example since no pixel has a true depth.
        """
        self._check_new([name])
        try:
            row, totals = score(mean, var, _masked(true_m, mask), distribution or self.distribution)
        except DepthOverflow as error:
            raise DepthOverflow(f"image {name!r} cannot be scored: {error}") from error
        except ValueError as error:
            raise ValueError(f"image {name!r} cannot be scored: {error}") from error
        self.rows[name] = row
        self._add_totals(totals)

    def merge(self, other: "Tally") -> None:
        """Add the images of another tally.

        Args:
            other: scores of other images.

        Raises:
            ValueError: if the tallies are for different distributions, or have an image in common.
        """
        if self.distribution != other.distribution:
            raise ValueError(
                f"one tally is for {self.distribution}, the other for {other.distribution}"
            )
        self._check_new(other.rows)
        self.rows |= other.rows
        self._add_totals(other.totals)

    def finish(self) -> dict[str, float]:
        """Mean over images of every metric, and the numbers of images and pixels."""
        table = self._table()
        values = finish(table)
        counts = {"images": float(len(table)), "pixels": float(table[:, 0].sum())}
        return {name: float(value.mean()) for name, value in values.items()} | counts

    def per_image(self) -> dict[str, Float[Tensor, "n"]]:
        """Every metric of every image, in the order of `names()`; for `confidence`."""
        return finish(self._table())

    def names(self) -> list[str]:
        """The images, sorted."""
        return sorted(self.rows)

    def sparsification(self, error: Error = "mae") -> SparsificationCurve:
        """Mean of the images' curves.

        Args:
            error: "mae" or "rmse".

        Returns:
            The mean curve.
        """
        which, images = index_of(error), len(self._table())
        return mean_curve(self.totals["curves"].sum(0)[which], images)

    def calibration(self) -> CalibrationCurve:
        """Curve of all pixels of all images together; its area is `auce_all`."""
        self._table()
        return curve_from_counts(self.totals["levels"])

    def _add_totals(self, totals: Mapping[str, Tensor]) -> None:
        self.totals = {name: total + totals[name] for name, total in self.totals.items()}

    def _check_new(self, names: "list[str] | dict[str, Tensor]") -> None:
        if twice := sorted(self.rows.keys() & set(names)):
            raise ValueError(f"{len(twice)} images would count twice, {twice[0]!r} among them")

    def _table(self) -> Float[Tensor, "n columns"]:
        if not self.rows:
            raise ValueError("no image was scored, so there is nothing to report")
        return torch.stack([self.rows[name] for name in self.names()])


def _masked(true_m: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return true_m
    if mask.shape != true_m.shape:
        shapes = f"{list(mask.shape)} but the true depth {list(true_m.shape)}"
        raise ValueError(f"`mask` is {shapes}; give both the same shape")
    return torch.where(mask, true_m, 0)
