# SPDX-License-Identifier: Apache-2.0
"""Third-party depth networks as bases: models of transformers, torch modules, any function.

The prediction of such a network and, if available, its features become the bases of `FrozenBases`.
A generic prior makes them usable at once: depth is what the network predicts, up to an unknown
scale, with smaller corrections. `deepbasis adapt` learns prior, kernel and calibration from frames.
"""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import fit, latent
from deepbasis.data.extras import need
from deepbasis.data.limits import read_text, reading
from deepbasis.layer import BasisFit
from deepbasis.nets.basis import Features
from deepbasis.nets.frozen import FrozenBases
from deepbasis.shapes import Float, UInt8

Kind = Literal["depth", "disparity", "metric"]
KINDS = ("depth", "disparity", "metric")
# Prefix of models of transformers, by their name on the hub or by their folder.
HUB = "hf:"
# Name in a model file for a network that only its user has.
OWN = "own network"
# What models of transformers predict, by their type; Depth Anything tells it itself.
PREDICTIONS: dict[str, Kind] = {
    "dpt": "disparity", "glpn": "metric", "zoedepth": "metric", "depth_pro": "metric",
    "prompt_depth_anything": "metric",
}  # fmt: skip
# Combinations of a network's features that become bases.
COMPONENTS = 8
# Smallest disparity, as a share of the largest: what is farther is as far.
LEAST_DISPARITY = 1e-3
# Generic prior. Log depth: its usual value, and how much it varies if the network knows no scale,
# and if it does; then how much the weights of ln d, of 1 / d and d, and of features vary.
USUAL_DEPTH, SCALE_STD, METRIC_STD = 3.0, 1.0, 0.25
POWER_STD, SHIFT_STD, FEATURE_STD = 0.25, 0.2, 0.1
# Its noise: a standard deviation of 15 %, known as if from a few points; and that alpha is about 1.
NOISE = fit.Gamma(2.0, 2.0 * 0.15**2)
ALPHA = fit.Gamma(50.0, 50.0)
# Mean and standard deviation of colours in 0..1 that most networks were trained with.
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
# Sides of images are multiples of this where a model does not say of what.
USUAL_MULTIPLE, USUAL_SIDE = 14, 518
# Images that a model works at; larger sides are mistakes, and would take all memory.
LARGEST_SIDE = 4096


class ForeignBases(nn.Module):
    """Bases from a network that is not trained here.

    Args:
        predict: takes images [b, 3, h, w] in 0..1 and returns depth [b, 1, h, w], or depth and
            features [b, c, h, w]; each may have its own size.
        prediction: "metric" if it is depth in metres, "depth" if its scale is not known,
            "disparity" if it is inverse depth of unknown scale.
    """

    mix: Tensor
    head = None
    """Has no learned kernel: errors are correlated where colours are similar."""

    def __init__(self, predict: Callable[..., Any], prediction: Kind) -> None:
        super().__init__()
        if prediction not in KINDS:
            raise ValueError(
                f"`prediction` is {prediction!r}; choose one of {', '.join(map(repr, KINDS))}"
            )
        # Not a module of this one: its weights are not saved with what is learned here.
        self.hidden = [predict.eval() if isinstance(predict, nn.Module) else predict]
        self.prediction, self.frozen = prediction, FrozenBases()
        _, features = self._predict(torch.full((1, 3, 112, 112), 0.5))
        found = 0 if features is None else features.shape[1]
        draw = torch.Generator().manual_seed(0)
        mix = torch.randn(min(COMPONENTS, found), found, generator=draw)
        self.register_buffer("mix", mix / math.sqrt(max(found, 1)))
        self.channels = self.frozen.channels + len(mix)

    @torch.no_grad()
    def forward(self, image: UInt8[Tensor, "b 3 h w"]) -> Features:
        """Bases of the prediction, then random combinations of the features."""
        depth, features = self._predict(image.to(self.mix.dtype) / 255)
        if self.prediction == "disparity":
            largest = depth.flatten(1).amax(1).clamp(min=1e-30)[:, None, None, None]
            depth = 1 / depth.clamp(min=LEAST_DISPARITY * largest)
        (bases,) = self.frozen(depth)
        if self.prediction == "metric":
            known = depth.clamp(min=latent.LEAST_DEPTH * 2, max=latent.LARGEST_DEPTH / 2)
            bases = torch.cat([latent.to_latent(known), bases[:, 1:]], 1)
        if not len(self.mix):
            return Features([bases])
        assert features is not None
        off = features - features.mean((2, 3), keepdim=True)
        off = off / off.square().mean((2, 3), keepdim=True).sqrt().clamp(min=1e-6)
        return Features([torch.einsum("kc,bchw->bkhw", self.mix, off), bases])

    def set_generic_prior(self, layer: BasisFit) -> None:
        """Depth as predicted, up to what the network cannot know."""
        metric, found = self.prediction == "metric", len(self.mix)
        mean = torch.zeros(self.channels + 1)
        mean[0] = 0.0 if metric else math.log(USUAL_DEPTH)
        mean[1 + found] = 1.0  # of ln d
        std = torch.full_like(mean, FEATURE_STD)
        std[0] = METRIC_STD if metric else SCALE_STD
        std[1 + found :] = torch.tensor([POWER_STD, SHIFT_STD, SHIFT_STD])
        # At the median d is 1: what 1 / d and d add to the scale there, the constant takes back.
        change = torch.eye(len(mean))
        change[0, 2 + found :] = -1
        cov = change @ torch.diag(std.square()) @ change.mT
        layer.set_prior(fit.Prior(mean, cov), fit.Hyperprior(ALPHA, NOISE))
        layer.correlated.noise.set(NOISE)

    def _predict(
        self, image: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, "b 1 _ _"], Float[Tensor, "b c _ _"] | None]:
        with torch.no_grad():
            found = self.hidden[0](image)
        depth, features = found if isinstance(found, tuple) else (found, None)
        if isinstance(depth, Tensor) and depth.ndim == 3:
            depth = depth[:, None]
        for name, one, channels in (("depth", depth, 1), ("features", features, None)):
            if one is None and name == "features":
                continue
            if (
                not isinstance(one, Tensor)
                or one.ndim != 4
                or len(one) != len(image)
                or not one.numel()
                or (channels is not None and one.shape[1] != channels)
            ):
                what = f"of {list(one.shape)}" if isinstance(one, Tensor) else type(one).__name__
                hub = hasattr(one, "predicted_depth")
                hint = "; to use a model of transformers, pass hf: and its name or folder"
                raise ValueError(
                    f"the network returned {name} {what} for images {list(image.shape)}; expected "
                    f"a tensor [{len(image)}, {channels or 'channels'}, height, width]"
                    f"{hint if hub else ''}"
                )
        return depth.float(), None if features is None else features.float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ForeignBases":
        """Move the hidden network too."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if isinstance(self.hidden[0], nn.Module):
            self.hidden[0]._apply(fn)  # type: ignore[no-untyped-call]
        return self


class HubNetwork(nn.Module):
    """A model of transformers for depth estimation, with its preprocessing."""

    def __init__(self, name: str) -> None:
        super().__init__()
        transformers = need("transformers", "hub", "loading a model of transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        # Else it would print a line for each new try at a hub that it cannot reach.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        folder = Path(name)
        if not folder.is_dir() and (folder.is_absolute() or name.count("/") != 1):
            raise FileNotFoundError(f"there is no folder {name} of a model; check its name")
        with reading(folder, "a model of transformers for depth estimation"):
            self.network = transformers.AutoModelForDepthEstimation.from_pretrained(
                name,
                trust_remote_code=False,  # else it would ask whether to run the model's own
            )
            self.config = self.network.config
            settings = self._read_settings(folder)
            self.mean, self.std = (
                _colours(settings.get(key) or usual, key)
                for key, usual in zip(("image_mean", "image_std"), IMAGENET, strict=True)
            )
            size = settings.get("size") or {}
            if isinstance(size, int | float):  # as older models write it
                size = {"height": size}
            self.side = int(size.get("height") or size.get("shortest_edge") or USUAL_SIDE)
            backbone = getattr(self.config, "backbone_config", None) or self.config
            self.patch = getattr(backbone, "patch_size", None)
            own = settings.get("ensure_multiple_of") or settings.get("size_divisor")
            self.multiple = max(int(own or 1), self.patch or USUAL_MULTIPLE)
            if not (0 < self.side <= LARGEST_SIDE and self.multiple <= LARGEST_SIDE):
                raise ValueError(f"it asks for images of {self.side} pixels")

    @property
    def prediction(self) -> Kind:
        """What it predicts."""
        if self.config.model_type == "depth_anything":
            metric = getattr(self.config, "depth_estimation_type", "relative") == "metric"
            return "metric" if metric else "disparity"
        if self.config.model_type not in PREDICTIONS:
            raise ValueError(
                f"it is not known what models of type {self.config.model_type!r} predict; pass "
                f"`prediction`, one of {', '.join(map(repr, KINDS))}"
            )
        return PREDICTIONS[self.config.model_type]

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor | None]:
        """Prediction and the last features, at the size that the model works at."""
        height, width = image.shape[2:]
        ratio = self.side / min(height, width)
        size = [max(round(x * ratio / self.multiple), 1) * self.multiple for x in (height, width)]
        scaled = F.interpolate(image, size, mode="bicubic", align_corners=False, antialias=True)
        mean, std = (torch.tensor(x).to(image).view(3, 1, 1) for x in (self.mean, self.std))
        found = self.network(
            pixel_values=(scaled.clamp(0, 1) - mean) / std, output_hidden_states=True
        )
        hidden = getattr(found, "hidden_states", None)
        return found.predicted_depth[:, None], self._to_map(hidden, size) if hidden else None

    def _to_map(self, hidden: Any, size: list[int]) -> Tensor | None:
        """The last features as a map; None if their layout is not known."""
        last = hidden[-1]
        if last.ndim == 4:
            return last
        if last.ndim != 3 or self.patch is None:
            return None
        rows, columns = (x // self.patch for x in size)
        if last.shape[1] < rows * columns:
            return None
        # Tokens of the image come last, after that of the class and registers.
        return last[:, -rows * columns :].mT.reshape(len(last), -1, rows, columns)

    def _read_settings(self, folder: Path) -> dict[str, Any]:
        """Of the image processor, if they are there."""
        path = folder / "preprocessor_config.json"
        if not path.is_file():
            if folder.is_dir():
                return {}
            transformers = need("transformers", "hub", "loading a model of transformers")
            found, _ = transformers.ImageProcessingMixin.get_image_processor_dict(str(folder))
            return dict(found)
        content = json.loads(read_text(path))
        if not isinstance(content, dict):
            raise ValueError(f"{path} does not hold settings of an image processor")
        return content


def _colours(values: Any, name: str) -> list[float]:
    """Three numbers, one for each colour."""
    found = [float(value) for value in values]
    good = len(found) == 3 and all(map(math.isfinite, found))
    if not good or (name == "image_std" and 0 in found):
        raise ValueError(f"its {name} is {values}, not three numbers")
    return found


def is_hub(name: object) -> bool:
    """Whether this names a model of transformers: by `hf:`, or by its folder."""
    if not isinstance(name, str | Path):
        return False
    return str(name).startswith(HUB) or (Path(name) / "config.json").is_file()
