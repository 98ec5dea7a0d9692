# SPDX-License-Identifier: Apache-2.0
"""A completion of every n-th pixel, so that a click is answered before all pixels are predicted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from deepbasis.fit.memory import Memory
from deepbasis.layer import Fitted, Pyramid
from deepbasis.layer.errors import CorrelatedFit
from deepbasis.model import Scene
from deepbasis.points import to_points
from deepbasis.result import Completion
from deepbasis.shapes import Float

# Pixels of a preview, at most.
PIXELS = 10_000


def step_for(size: tuple[int, int]) -> int:
    """Every how many rows and columns are previewed."""
    height, width = size
    step = 1
    while -(-height // step) * -(-width // step) > PIXELS:
        step += 1
    return step


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: to share so little work takes longer than to do it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThinnedPyramid(Pyramid):
    """Every n-th row and column of a pyramid; it cannot be read at points."""

    def __init__(self, full: Pyramid, step: int) -> None:
        height, width = full.size
        self.size = (-(-height // step), -(-width // step))
        self.batch = full.batch
        columns = [scale[..., ::step] for scale in full.scales]
        self.scales = [
            (scale[:, :, ::step] if taps is None else scale).contiguous(
                memory_format=torch.channels_last
            )
            for scale, taps in zip(columns, full.taps, strict=True)
        ]
        self.taps = [
            None if taps is None else (taps[0][::step], taps[1][::step], taps[2][::step])
            for taps in full.taps
        ]


class Preview:
    """A scene with the pixels of its preview."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.step = scene, step_for(scene.pyramid.size)
        self.pyramid = ThinnedPyramid(scene.pyramid, self.step)
        self.memory = Memory()

    @torch.no_grad()
    def complete(self, rows: Float[np.ndarray, "n columns"]) -> Completion:
        """The completion from some points, at every `step`-th row and column."""
        used = to_points(rows, self.scene.pyramid.size).inside(self.scene.pyramid.size)
        observed, layer = self.scene.observe(used), self.scene.network.fit
        wrong = layer.judge(observed)
        thinned = self._thin(layer.fit_without_wrong(observed, wrong))
        return Completion.of(thinned.predict_with(self.memory), used, thinned, wrong)

    def _thin(self, fitted: Fitted) -> Fitted:
        """The same fit, which predicts fewer pixels."""
        seen, step = fitted.observed, self.step
        kept = {name: getattr(seen, name) for name in ("phi", "s", "by_amplitude")}
        # Places are in image widths. They are kept, whether or not the step divides the width.
        unit = seen.pyramid.size[1] / (step * self.pyramid.size[1])
        kept["x"] = torch.cat([seen.x[..., :2] * unit, seen.x[..., 2:]], -1)
        guide, amplitude = (
            None if full is None else full[..., ::step, ::step]
            for full in (seen.guide, seen.amplitude)
        )
        observed = replace(seen, pyramid=self.pyramid, guide=guide, amplitude=amplitude)
        vars(observed).update(kept)
        if not isinstance(fitted, CorrelatedFit):
            return replace(fitted, observed=observed)
        kernel = fitted.kernel
        kernel = replace(kernel, length=unit * kernel.length, colour=unit * kernel.colour)
        return replace(fitted, observed=observed, kernel=kernel)
