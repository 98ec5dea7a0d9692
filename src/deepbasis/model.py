# SPDX-License-Identifier: Apache-2.0
"""Whole models: a network with all that prediction needs, in one file."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, overload

import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor, nn

from deepbasis.arguments import to_array, to_bool
from deepbasis.data.images import ImageLike, to_pixels
from deepbasis.data.limits import in_memory, reading
from deepbasis.data.tensors import load_tensors, save_tensors
from deepbasis.data.video import VIDEOS
from deepbasis.fit.memory import Memory
from deepbasis.layer import Errors, Fitted, Observed, Prediction, Pyramid
from deepbasis.layer.learned_prior import LearnedPrior
from deepbasis.nets import Architecture, Features, Network
from deepbasis.nets.folding import FoldedNetwork
from deepbasis.nets.foreign import HUB, OWN, ForeignBases, HubNetwork, Kind, is_hub
from deepbasis.points import Points, check_max_depth, doubt_camera, to_camera, to_points
from deepbasis.pretrained import find_pretrained
from deepbasis.result import Completion
from deepbasis.shapes import Float, UInt8
from deepbasis.stream import Stream

PointsLike = ArrayLike | Points | None

# Raised when a file can no longer be read by earlier versions.
FORMAT = 3
# Channels of an embedding, or of its head, that a file may claim; ours have 8 and 32.
MOST_CHANNELS = 256


@dataclass(frozen=True)
class Card:
    """Information about the training, stored in the model file."""

    training: dict[str, Any] = field(default_factory=dict)
    """Settings of the training."""
    split: dict[str, Any] = field(default_factory=dict)
    """Which frames were trained on."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Accuracy on validation frames."""

    @classmethod
    def of(cls, header: dict[str, Any]) -> "Card":
        """The card from the header of a model file.

        Args:
            header: of the file.

        Returns:
            The card.

        Raises:
            ValueError: if a part of it is missing.
        """
        parts = [header.get(name) for name in ("training", "split", "metrics")]
        if not all(isinstance(part, dict) for part in parts):
            raise ValueError("its header lacks a table `training`, `split` or `metrics`")
        return cls(*(part for part in parts if isinstance(part, dict)))


@dataclass(frozen=True)
class Scene:
    """One image after the network has run on it; fitting points to it takes milliseconds."""

    network: Network
    """Of the model."""
    image: UInt8[Tensor, "1 3 h w"]
    """As passed to the network."""
    features: Features
    """Output of the network."""
    pyramid: Pyramid
    """Its bases, at all scales."""
    depth_factor: float = 1.0
    """Factor on the depth without points, for a camera with another field of view."""
    memory: Memory | None = None
    """Makes completions faster if few points differ from those of the previous one."""
    doubts: tuple[str, ...] = ()
    """Warnings about the camera."""

    @overload
    def complete(
        self,
        points: PointsLike = None,
        *,
        errors: Errors | None = None,
        robust: bool = True,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> Completion: ...

    @overload
    def complete(
        self,
        points: list[PointsLike],
        *,
        errors: Errors | None = None,
        robust: bool = True,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> list[Completion]: ...

    @torch.no_grad()
    def complete(
        self,
        points: PointsLike | list[PointsLike] = None,
        *,
        errors: Errors | None = None,
        robust: bool = True,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> Completion | list[Completion]:
        """Depth with an error bar at every pixel; see `Completer.complete`.

        Args:
            points: as in `Completer.complete`; or a list of such sets of points.
            errors: error model, see `BasisFit`; by default the model's own.
            robust: leave out points that contradict the others; `outliers` names them.
            huber: down-weight points whose residual is beyond this many standard deviations;
                typical value 1.345.
            max_depth: drop points beyond this many metres.

        Returns:
            The completion; for a list of sets of points, a list of completions.

        Raises:
            ValueError: if points cannot be understood, or an option is out of range.
        """
        given: Any = points
        if isinstance(given, list) and _holds_sets(given):
            return [
                self.complete(one, errors=errors, robust=robust, huber=huber, max_depth=max_depth)
                for one in given
            ]
        limit, robust = check_max_depth(max_depth), to_bool(robust, "`robust`")
        used = to_points(given, self.pyramid.size).inside(self.pyramid.size, limit)
        with in_memory(f"the fit of {len(used)} points to this image"):
            observed, layer = self.observe(used, errors=errors), self.network.fit
            told = self.familiarity, self.doubts
            if not robust:
                fitted = layer.fit_details(observed, errors=errors, huber=huber)
                prediction = fitted.predict_with(self.memory)
                return Completion.of(prediction, used, fitted, layer.judge, *told)
            wrong = layer.judge(observed)
            fitted = layer.fit_without_wrong(observed, wrong, errors=errors, huber=huber)
            prediction = fitted.predict_with(self.memory)
            return Completion.of(prediction, used, fitted, wrong, *told)

    @property
    def familiarity(self) -> float | None:
        """See `Completion.familiarity`."""
        return self.network.familiarity.of(self.features.summary)

    def fit(
        self,
        points: Points,
        *,
        errors: Errors | None = None,
        huber: float | None = None,
        prior: LearnedPrior | None = None,
        widened: bool = True,
    ) -> Fitted:
        """Fit the points of the image, by default with the model's own prior.

        Args:
            points: inside the image.
            errors: error model, see `BasisFit`; by default the model's own.
            huber: down-weight points whose residual is beyond this many standard deviations;
                typical value 1.345.
            prior: in place of the model's own.
            widened: False for a prior that is valid for this scene even if it is unfamiliar.

        Returns:
            The fit, with prediction and posterior.
        """
        observed = self.observe(points, errors=errors)
        if not widened:
            observed = replace(observed, widening=None)
        return self.network.fit.fit_details(observed, errors=errors, huber=huber, prior=prior)

    def observe(self, points: Points, *, errors: Errors | None = None) -> Observed:
        """The points of the image, with weights from their sigma, and their bases.

        Args:
            points: inside the image.
            errors: error model, see `BasisFit`; by default the model's own.

        Returns:
            What an error model fits.
        """
        layer, image = self.network.fit, self.image
        weighted = points.with_noise(layer.error_model(errors).usual_noise)
        batch = Points.pad([weighted]).to(image.device, torch.float32)
        _, embedding, amplitude, summary = self.features
        guide = image.to(torch.float32) / 255 if embedding is None else embedding
        widening = self.network.familiarity.widening(summary)
        if widening is not None:
            widening = widening._replace(shift=math.log(self.depth_factor))
        return Observed(self.pyramid, batch, guide, amplitude, widening)


class Completer(nn.Module):
    """A model ready for use: sparse depth and an image in, depth with an error bar out.

    Args:
        architecture: of the network.
        card: information about the training.
        bases: a third-party network, in place of ours.
    """

    def __init__(
        self,
        architecture: Architecture,
        card: Card | None = None,
        bases: ForeignBases | None = None,
    ) -> None:
        super().__init__()
        self.architecture, self.card = architecture, card or Card()
        self.network = Network(architecture, bases)
        self.folded = FoldedNetwork()
        self.eval()

    @torch.no_grad()
    def forward(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> Prediction:
        """Log depth and its variance at every pixel of a batch of images.

        Args:
            image: colours from 0 to 255.
            sparse: depth in metres; 0, NaN and infinity mean no measurement.

        Returns:
            Mean, model variance and noise variance of log depth.
        """
        prediction: Prediction = self.network(image, sparse)
        return prediction

    @torch.no_grad()
    def prepare(self, image: ImageLike, intrinsics: ArrayLike | None = None) -> Scene:
        """Run the network on an image, once; the scene is then completed from any points.

        Args:
            image: as in `complete`.
            intrinsics: of the camera, 3 x 3 in pixels of the image. With them, depth without points
                is corrected for a longer lens than that of the training frames, if the model knows
                it. There is a warning if their principal point is far from the centre.

        Returns:
            The image with its bases.

        Raises:
            ValueError: if the image or the intrinsics cannot be understood.
        """
        pixels = to_pixels(image)
        height, width = pixels.shape[2:]
        with in_memory(f"the network on an image of {height} x {width} pixels (height x width)"):
            pixels = pixels.to(self.network.fit.prior.mean.device)
            folded = self.folded.of(self.network.bases)
            features = self.network.features(pixels, folded).contiguous()
            pyramid = Pyramid(features.bases, (height, width))
        factor, doubts = 1.0, list[str]()
        if intrinsics is not None:
            camera = to_camera(intrinsics)
            factor = self.network.familiarity.depth_factor(float(camera[0, 0]) / width)
            doubts = doubt_camera(camera, (height, width))
        return Scene(self.network, pixels, features, pyramid, factor, Memory(), tuple(doubts))

    @overload
    def complete(
        self,
        image: ImageLike,
        points: PointsLike = None,
        *,
        errors: Errors | None = None,
        robust: bool = True,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> Completion: ...

    @overload
    def complete(
        self,
        image: list[Any],
        points: list[Any] | None = None,
        *,
        errors: Errors | None = None,
        robust: bool = True,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> list[Completion]: ...

    def complete(
        self,
        image: ImageLike | list[Any],
        points: PointsLike | list[Any] = None,
        *,
        errors: Errors | None = None,
        robust: bool = True,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> Completion | list[Completion]:
        """Depth with an error bar at every pixel of one image, or of each image of a list.

        Args:
            image: a path, a PIL image, or an array or tensor, grey, RGB or RGBA, of uint8, uint16
                or floating point in 0..1; or a list of images.
            points: a map of the image's size in metres, where 0, NaN and infinity mean no
                measurement; or rows of `u v metres` or `u v metres sigma`, u the column and v the
                row, counted from the centre of the top left pixel, sigma the standard deviation in
                metres; or `Points`; or None. For a list of images, a list of these.
            errors: error model, see `BasisFit`; by default the model's own.
            robust: leave out points that contradict the others; `outliers` names them.
            huber: down-weight points whose residual is beyond this many standard deviations;
                typical value 1.345.
            max_depth: drop points beyond this many metres.

        Returns:
            The completion; for a list of images, a list of completions.

        Raises:
            ValueError: if an image or points cannot be understood, or an option is out of range.
        """
        if isinstance(image, list):
            each = [None] * len(image) if points is None else points
            if not isinstance(each, list):
                raise ValueError(
                    f"the images are a list, but the points are of type {type(points).__name__}; "
                    "pass a list with one set of points for each image"
                )
            if len(each) != len(image):
                raise ValueError(
                    f"the list of images has the length {len(image)}, that of points {len(each)}; "
                    "pass one set of points for each image"
                )
            pairs = list(zip(image, each, strict=True))
        else:
            pairs = [(image, points)]
        found = [
            replace(self.prepare(one), memory=None).complete(
                some, errors=errors, robust=robust, huber=huber, max_depth=max_depth
            )
            for one, some in pairs
        ]
        return found if isinstance(image, list) else found[0]

    def stream(
        self,
        frames: Iterable[Any],
        *,
        intrinsics: ArrayLike | None = None,
        errors: Errors | None = None,
        robust: bool = True,
        huber: float | None = None,
        max_depth: float | None = None,
    ) -> Iterator[Completion]:
        """Complete the frames of a sequence, each starting from the estimate of the previous one.

        Args:
            frames: images; or pairs of an image and its points; or triples of an image, its points
                and the pose of the camera, 4 x 4, from the camera's frame to the world's. All in
                order and of one size; points may be None.
            intrinsics: of the camera, 3 x 3 in pixels, as in `prepare`; needed with poses.
            errors: as in `complete`.
            robust: as in `complete`.
            huber: as in `complete`.
            max_depth: as in `complete`.

        Yields:
            The completion of each frame, as soon as it is available.

        Raises:
            ValueError: if a frame cannot be understood, or differs in size from the first.
        """
        if isinstance(frames, str | Path) and Path(frames).suffix.lower() in VIDEOS:
            raise ValueError(
                f"`stream` takes images, not the path of a video; pass the frames of {frames} as "
                "`deepbasis.data.video.Video(path).read(number)` gives them, or the path to "
                "`deepbasis complete --sequence`"
            )
        one = isinstance(frames, str | Path | Image.Image) or getattr(frames, "ndim", 4) < 4
        if one or not isinstance(frames, Iterable):
            raise ValueError(
                "`stream` takes the frames of a sequence; pass a list of images, or one image to "
                "`complete`"
            )
        stream = Stream(self.network.fit, errors, robust, huber, max_depth, intrinsics)
        for frame in frames:
            image, *rest = frame if isinstance(frame, tuple) else (frame,)
            if len(rest) > 2:
                raise ValueError(
                    f"frame {stream.count} is a tuple of {1 + len(rest)}; pass an image, its "
                    "points, and the pose of the camera"
                )
            yield stream.add(self.prepare(image, intrinsics), *rest)

    def save(self, path: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the model to one safetensors file, with everything that loading it needs.

        Args:
            path: of the file.
            dtype: of the weights in it.
        """
        own = {k: v for k, v in asdict(self.architecture).items() if v or k != "prediction"}
        header = {"format": FORMAT, "architecture": own, **asdict(self.card)}
        save_tensors(Path(path), _narrow(self.state_dict(), dtype), header)

    @classmethod
    def of(cls, network: Callable[..., Any], prediction: Kind, *, name: str = OWN) -> "Completer":
        """A model with the bases of a third-party network, and a generic prior; see `load`.

        Args:
            network: a torch module or any function; see `load`.
            prediction: "metric", "depth" or "disparity"; see `load`.
            name: of the network, for the model file.

        Returns:
            The model.
        """
        bases = ForeignBases(network, prediction)
        model = cls(Architecture(encoder=name, prediction=prediction), bases=bases)
        bases.set_generic_prior(model.network.fit)
        return model

    @classmethod
    def load(cls, path: Path, network: Callable[..., Any] | None = None) -> "Completer":
        """Read a model that `save` wrote. Nothing in the file is executed.

        Args:
            path: of the file.
            network: third-party network that the model was created from, if any.

        Returns:
            The model.

        Raises:
            ValueError: if the file is not a model of this version, or is damaged.
        """
        tensors, header = load_tensors(path)
        if header.get("format") == 2:
            with reading(path, "a model of version 0.1"):
                tensors, header = migrate_format_2(tensors, header)
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} is not a model of this version of deepbasis: its format is "
                f"{header.get('format')!r}, and this version reads {FORMAT}"
            )
        with reading(path, "a model"):
            architecture, card = Architecture(**header["architecture"]), Card.of(header)
            for one in fields(architecture):
                if type(value := getattr(architecture, one.name)) is not type(one.default):
                    raise ValueError(f"its {one.name} is {value!r}")
            for name in ("embedding", "head_width"):
                if not 0 <= (channels := getattr(architecture, name)) <= MOST_CHANNELS:
                    raise ValueError(f"its {name} has {channels} channels")
            check_finite(tensors)
            size = tensors.get("network.usual_size.size", torch.ones(2))
            if size.shape != (2,) or not (size >= 1).all():
                raise ValueError(f"its usual image size is {size.tolist()}")
        bases = find_bases(architecture, network, path)
        with reading(path, "a model"):
            model = cls(architecture, card, bases)
        # Kernels had no rough part at first.
        tensors.setdefault("network.fit.models.correlated.rough", torch.zeros(()))
        try:
            model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        except RuntimeError as error:
            raise ValueError(
                f"{path} is a model of another version of deepbasis: its tensors are not those of "
                "this one; train it again, or install the version that wrote it"
            ) from error
        return model


def _holds_sets(points: list[Any]) -> bool:
    """Whether a list holds sets of points, rather than the rows of one set."""
    return any(one is None or isinstance(one, Points) or _is_table(one) for one in points)


def _is_table(points: Any) -> bool:
    return to_array(points, "the points").ndim == 2


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse weights that would make every prediction NaN."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"its tensor {name} holds NaN or infinity")


def load(
    name: Path | str | Callable[..., Any],
    *,
    network: Callable[..., Any] | None = None,
    prediction: Kind | None = None,
) -> Completer:
    """Load a model: a pretrained one by name, a file, or the folder of a training.

    Also a third-party depth network, with a generic prior: `hf:` and the name or the folder of a
    model of transformers, a torch module, or any function. It takes images [b, 3, h, w] in 0..1 and
    returns depth [b, 1, h, w], or depth and features [b, c, h, w].

    Args:
        name: of the model, or the network itself.
        network: that a model file of `adapt` needs again, if it was a module or a function.
        prediction: of a third-party network: "metric" if it is depth in metres, "depth" if its
            scale is not known, "disparity" if it is inverse depth of unknown scale. For models of
            transformers it is known from their type.

    Returns:
        The model, in evaluation mode.

    Raises:
        ValueError: if there is no such model, the file is damaged, or `prediction` is missing.
    """
    if is_hub(name):
        source = str(name).removeprefix(HUB)
        hub = HubNetwork(source)
        return Completer.of(hub, prediction or hub.prediction, name=f"{HUB}{source}")
    if callable(name):
        if prediction is None:
            raise ValueError(
                'what does the network predict? Pass `prediction`: "metric", "depth" or "disparity"'
            )
        return Completer.of(name, prediction)
    if not isinstance(name, str | PathLike):
        raise ValueError(
            f"expected the name of a model, a file or a network, got {type(name).__name__}; "
            "see `deepbasis models`"
        )
    return Completer.load(find_model(name), network)


def find_bases(
    architecture: Architecture, network: Callable[..., Any] | None, path: Path
) -> ForeignBases | None:
    """The third-party network that a model file was created from; None for one of ours."""
    name = architecture.encoder
    if not (name.startswith(HUB) or name == OWN):
        return None
    if network is None and name == OWN:
        raise ValueError(
            f"{path} was made with a network of your own, which only Python "
            "can pass: deepbasis.load(path, network=network)"
        )
    kind: Any = architecture.prediction
    own = HubNetwork(name.removeprefix(HUB)) if network is None else network
    return ForeignBases(own, kind)


def find_model(name: Path | str) -> Path:
    """The file of a model."""
    path = Path(name)
    if str(name).startswith(HUB):
        return path
    if path.is_dir():
        return path / "model.safetensors"
    if path.suffix or len(path.parts) > 1:
        return path
    return find_pretrained(str(name))


def migrate_format_2(
    tensors: dict[str, Tensor], header: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A model file of version 0.1, whose fit was stored in packed tensors, with current names."""
    before = header["architecture"]
    if before["method"] != "bdbf" or before["depth_input"]:
        raise ValueError("it is a model of the paper's experiments, which cannot be migrated")
    old = {name.removeprefix("members.0."): tensor for name, tensor in tensors.items()}
    prior, local, tails = old["last.hyperprior"], old["last.local"], old["last.tails"]
    noise, model, nees = old["last.calibration"]
    one, table = torch.ones(()), "models.{}.calibration.{}"
    new = {"prior.mean": old["last.prior_mean"], "prior.cov": old["last.prior_cov"]}
    new |= {"prior.alpha.shape": prior[0, 0], "prior.alpha.rate": prior[0, 1]}
    plain = torch.tensor([0.0, 1, 0, 1]).expand_as(tails[0])
    for name, beta, factors, rows in (
        ("independent", prior[1], (noise, model), tails[0]),
        ("correlated", local[4:6], local[6:], tails[1]),
        ("paper", prior[1], (one, nees), plain),
    ):
        new |= {f"models.{name}.noise.shape": beta[0], f"models.{name}.noise.rate": beta[1]}
        columns = (*factors, *rows.unbind(1))
        names = ("noise_factor", "model_factor", "points", "factor", "dof", "width")
        new |= {table.format(name, key): x for key, x in zip(names, columns, strict=True)}
    for key, value in zip(("length", "colour", "nugget", "smoothness"), local, strict=False):
        new[f"models.correlated.{key}"] = value
    state = {f"network.{name}": x for name, x in old.items() if name.startswith("bases.")}
    state |= {f"network.fit.{name}": x for name, x in new.items()}
    errors = {"local": "correlated"}.get(before["errors"], before["errors"])
    now = {name: before[name] for name in ("encoder", "normalisation")} | {"errors": errors}
    return state, header | {"format": FORMAT, "architecture": now}


def _narrow(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Store the network in another type; what the fit uses stays exact."""
    return {
        name: value.to(dtype) if value.is_floating_point() and ".bases." in name else value
        for name, value in state.items()
    }
