# SPDX-License-Identifier: Apache-2.0
"""Models of the paper's experiments: one network or several, with the interface of `Completer`."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from deepbasis.calibrate.measure import Answer
from deepbasis.data.images import to_pixels
from deepbasis.data.limits import reading
from deepbasis.data.tensors import load_tensors, save_tensors
from deepbasis.layer import Errors, Fitted, Prediction
from deepbasis.model import Card, Completer, check_finite, find_model
from deepbasis.points import Points, to_points
from deepbasis.result import Completion
from deepbasis.shapes import Float, UInt8
from deepbasis_paper.networks import (
    Direct,
    Given,
    PaperArchitecture,
    PaperNetwork,
    new_network,
)

# Changed when a file can no longer be read by earlier versions.
FORMAT = "paper-1"
# Ensembles whose networks agree to the last bit would claim to be certain.
LEAST_VARIANCE = 1e-8


def mix(parts: list[Prediction]) -> Prediction:
    """One prediction from those of several networks or passes (Kendall and Gal, 2017).

    Their disagreement is added to the model variance.
    """
    if len(parts) == 1:
        return parts[0]
    mean, model_var, noise_var = (torch.stack(values) for values in zip(*parts, strict=True))
    spread = mean.var(0, correction=0).clamp(min=LEAST_VARIANCE)
    return Prediction(mean.mean(0), model_var.mean(0) + spread, noise_var.mean(0))


class Ensemble(nn.Module):
    """The networks of a method, of which there may be one, as one model."""

    def __init__(
        self, architecture: PaperArchitecture, copies: int = 1, card: Card | None = None
    ) -> None:
        super().__init__()
        self.architecture, self.card = architecture, card or Card()
        self.members = nn.ModuleList(new_network(architecture) for _ in range(copies))
        self.eval()

    @property
    def networks(self) -> list[PaperNetwork]:
        """The members, by their type."""
        return [member for member in self.members if isinstance(member, PaperNetwork)]

    @property
    def network(self) -> PaperNetwork:
        """The first member: the only one, unless the method is an ensemble."""
        return self.networks[0]

    @torch.no_grad()
    def forward(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        sparse: Float[Tensor, "b 1 h w"],
        errors: Errors | None = None,
    ) -> Prediction:
        """Log depth and its variance at every pixel of a batch of images."""
        return self.answer(Given(image, Points.from_maps(sparse)), errors=errors).prediction

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Answer:
        """Prediction of every pixel by all members or passes."""
        spec = self.architecture.spec
        if spec.dropout:
            with self._dropout(given.image):
                parts = [self.network.answer(given) for _ in range(spec.passes)]
        else:
            parts = [one.answer(given, errors=errors, huber=huber) for one in self.networks]
        if len(parts) == 1:
            return parts[0]
        return Direct(mix([part.prediction for part in parts]), given.points.count)

    def predictor(self, image: UInt8[Tensor, "b 3 h w"]) -> Callable[..., Answer]:
        """A function that predicts from any points of these images."""
        if len(self.members) == 1 and not self.architecture.spec.dropout:
            return self.network.predictor(image)

        def predict(
            points: Points, *, errors: Errors | None = None, huber: float | None = None
        ) -> Answer:
            return self.answer(Given(image, points), errors=errors, huber=huber)

        return predict

    @torch.no_grad()
    def complete(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        points: ArrayLike | Points | None = None,
        *,
        errors: Errors | None = None,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> Completion:
        """Depth with an error bar at every pixel of one image; see `Completer.complete`."""
        device = next(self.parameters()).device
        pixels = to_pixels(image).to(device)
        size = (pixels.shape[2], pixels.shape[3])
        used = to_points(points, size).inside(size, math.inf if max_depth is None else max_depth)
        weighted = used.with_noise(self.network.usual_noise(errors))
        given = Given(pixels, Points.pad([weighted]).to(device, torch.float32))
        answer = self.answer(given, errors=errors, huber=huber)
        fitted = answer if isinstance(answer, Fitted) else None
        return Completion.of(answer.prediction, used, fitted)

    def save(self, path: Path) -> None:
        """Write the model to one safetensors file, with all it needs to be loaded again."""
        header = {
            "format": FORMAT, "architecture": asdict(self.architecture),
            "copies": len(self.members), **asdict(self.card),
        }  # fmt: skip
        save_tensors(path, self.state_dict(), header)

    @classmethod
    def load(cls, path: Path) -> "Ensemble":
        """Read a model that `save` wrote. Nothing in the file is executed."""
        tensors, header = load_tensors(path)
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} is not a model of this version of deepbasis-paper: its format is "
                f"{header.get('format')!r}, and this version reads {FORMAT!r}"
            )
        with reading(path, "a model"):
            check_copies(header.get("copies"), tensors)
            check_finite(tensors)
            card = Card.of(header)
            with torch.device("meta"):  # its weights need no start: they are in the file
                model = cls(PaperArchitecture(**header["architecture"]), header["copies"], card)
        try:
            model.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            raise ValueError(
                f"{path} is a model of another version of deepbasis-paper: its tensors are not "
                "those of this one; train it again, or install the version that wrote it"
            ) from error
        return model

    @contextmanager
    def _dropout(self, image: Tensor) -> Iterator[None]:
        """Dropout as in training, the same every time."""
        layers = [module for module in self.modules() if isinstance(module, nn.Dropout2d)]
        with torch.random.fork_rng(devices=[image.device] if image.is_cuda else []):
            torch.manual_seed(0)
            try:
                for layer in layers:
                    layer.train()
                yield
            finally:
                for layer in layers:
                    layer.eval()


def check_copies(copies: object, tensors: dict[str, Tensor]) -> None:
    """Refuse a number of networks that the file does not hold, before they are made."""
    found = {name.split(".")[1] for name in tensors if name.count(".") > 1}
    if copies != len(found) or not found:
        raise ValueError(f"its header claims {copies!r} networks, but it holds {len(found)}")


def load(name: Path | str) -> Completer | Ensemble:
    """Load a model: one of the paper's experiments, or one of the library by file or name."""
    path = find_model(name)
    if load_tensors(path)[1].get("format") == FORMAT:
        return Ensemble.load(path)
    return Completer.load(path)
