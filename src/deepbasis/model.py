# SPDX-License-Identifier: Apache-2.0
"""Whole models: one network or several, with all that prediction needs, in one file."""

import difflib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from deepbasis import completion, latent
from deepbasis.data.files import find_file, whole
from deepbasis.layer import BasisFit, Errors
from deepbasis.measurements import Given
from deepbasis.methods import METHODS
from deepbasis.networks import Architecture, Network, new_network
from deepbasis.prediction import Prediction
from deepbasis.scaffold import scaffold
from deepbasis.shapes import Float, UInt8

Variance = Literal["predictive", "paper"]

# Where the models that come with the package are.
WEIGHTS = Path(__file__).parent / "weights"
# Raised when files of before can no longer be read.
FORMAT = 2
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


@dataclass(frozen=True)
class Card:
    """What a model file tells about its training."""

    training: dict[str, Any] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


class Completer(nn.Module):
    """A model ready for use: sparse depth and an image in, log depth with variance out.

    Whatever the method, the answer has the same form.
    """

    def __init__(self, architecture: Architecture, copies: int = 1, card: Card | None = None):
        super().__init__()
        self.architecture, self.card = architecture, card or Card()
        self.members = nn.ModuleList(new_network(architecture) for _ in range(copies))
        self.eval()

    def assume(
        self,
        errors: Errors | None = None,
        variance: Variance | None = None,
        huber: float | None = None,
    ) -> "Completer":
        """Read fits otherwise from now on, see `BasisFit`; None changes nothing. Returns itself."""
        errors = errors or self.architecture.errors
        recipe = METHODS[self.architecture.method]
        if errors == "local" and recipe.fits and recipe.network != "basis":
            raise ValueError(
                f"{self.architecture.method} takes errors for independent: its second branch has "
                "learned from such a fit; leave out --errors local"
            )
        if errors == "local" and variance == "paper":
            raise ValueError("the paper's variance is for independent errors; ask for both of them")
        for network in self.networks:
            if isinstance(network.last, BasisFit):
                network.last.errors = errors
                network.last.variance = variance or network.last.variance
                network.last.huber = huber or network.last.huber
        self.architecture = replace(self.architecture, errors=errors)
        return self

    def shape(self, prediction: Prediction, sparse: Float[Tensor, "*b h w"]) -> latent.Shape:
        """How the errors of a prediction from these points are distributed, pixel by pixel."""
        last = self.networks[0].last
        if not isinstance(last, BasisFit):
            return latent.LAPLACE
        points = latent.measured(sparse).to(sparse.dtype).sum((-2, -1), keepdim=True)
        return last.shape(prediction, points)

    @property
    def networks(self) -> list[Network]:
        """The members, by their type."""
        return [member for member in self.members if isinstance(member, Network)]

    @torch.no_grad()
    def forward(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> Prediction:
        """Log depth and its variance at every pixel; the points may be none."""
        filled = self.fill(sparse)
        recipe = METHODS[self.architecture.method]
        if recipe.dropout:
            return self._sample(image, sparse, filled, recipe.passes)
        return mix([member(image, sparse, *filled) for member in self.members])

    @torch.no_grad()
    def complete(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        sparse: ArrayLike | None = None,
        *,
        max_depth: float = math.inf,
    ) -> completion.Completion:
        """Depth with an error bar at every pixel of one image.

        Args:
            image: RGB.
            sparse: a map of the image's size in metres, 0, NaN and infinity meaning none; or rows
                of `u v metres` or `u v metres sigma`, u the column and v the row, counted from the
                centre of the top left pixel, sigma the standard deviation in metres; or None.
            max_depth: points beyond so many metres are dropped.
        """
        device = next(self.parameters()).device
        pixels = completion.to_pixels(image).to(device)
        given = Given.of(sparse, (pixels.shape[2], pixels.shape[3]), max_depth)
        depth, last = given.sparse.to(device), self.networks[0].last
        if not isinstance(last, BasisFit):
            return completion.answer(self(pixels, depth), given, latent.LAPLACE)
        weight = given.weight(completion.usual_noise(last))
        weight = None if weight is None else weight.to(device)
        found = self.networks[0].explain(pixels, depth, weight, *self.fill(depth))
        return completion.answer_fit(found, given, last)

    def save(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the model to one safetensors file, with all it needs to be loaded again."""
        header = {
            "format": FORMAT, "architecture": asdict(self.architecture),
            "copies": len(self.members), **asdict(self.card),
        }  # fmt: skip
        save_tensors(path, _narrow(self.state_dict(), dtype), header)

    @classmethod
    def load(cls, path: Path) -> "Completer":
        """Read a model that `save` wrote. Nothing in the file is executed."""
        tensors, header = load_tensors(path)
        if header.get("format") != FORMAT or "architecture" not in header:
            raise ValueError(
                f"{path} is no model of this version of deepbasis: its format is "
                f"{header.get('format')!r}, and this version reads {FORMAT}"
            )
        card = Card(header["training"], header["split"], header["metrics"])
        model = cls(Architecture(**header["architecture"]), header["copies"], card)
        try:
            model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        except RuntimeError as error:
            raise ValueError(
                f"{path} is a model of another version of deepbasis: its tensors are not those of "
                "this one; train it again, or install the version that wrote it"
            ) from error
        return model

    def fill(self, sparse: Tensor) -> tuple[Tensor, ...]:
        """Depth and validity for networks that take them, else nothing."""
        if not self.architecture.depth_input:
            return ()
        pairs = [scaffold(one) for one in sparse.cpu()]
        return tuple(torch.stack(part).to(sparse.device) for part in zip(*pairs, strict=True))

    def _sample(
        self, image: Tensor, sparse: Tensor, filled: tuple[Tensor, ...], passes: int
    ) -> Prediction:
        """Several passes with dropout, the same ones every time."""
        layers = [module for module in self.modules() if isinstance(module, nn.Dropout2d)]
        devices = [image.device] if image.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(0)
            try:
                for layer in layers:
                    layer.train()
                parts = [self.members[0](image, sparse, *filled) for _ in range(passes)]
            finally:
                for layer in layers:
                    layer.eval()
        return mix(parts)


def load(name: Path | str) -> Completer:
    """Read a model: the name of one that comes with the package, a file, or a training's folder."""
    path = Path(name)
    if path.is_dir():
        return Completer.load(path / "model.safetensors")
    if path.suffix or len(path.parts) > 1:
        return Completer.load(path)
    known = sorted(file.stem for file in WEIGHTS.glob("*.safetensors"))
    if str(name) not in known:
        near = difflib.get_close_matches(str(name), known, 1, 0)
        guess = f"did you mean {near[0]!r}? Models are" if near else "models are"
        raise ValueError(
            f"no model {str(name)!r} comes with deepbasis; {guess} {', '.join(known)}, files and "
            "folders of trainings"
        )
    return Completer.load(WEIGHTS / f"{name}.safetensors")


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write a safetensors file, whole or not at all, with a JSON header."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole(path) as file:
        file.write(save(on_cpu, {"deepbasis": json.dumps(header)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote."""
    find_file(path)
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("deepbasis", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file, or was cut short ({error})") from error


def _narrow(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Store large tensors in another type; what the fit uses stays exact."""
    return {
        name: value.to(dtype) if value.is_floating_point() and ".last." not in name else value
        for name, value in state.items()
    }
