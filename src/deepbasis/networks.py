# SPDX-License-Identifier: Apache-2.0
"""One network of each kind: image and points in, log depth with variance out."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.layer import BasisFit, Errors
from deepbasis.methods import METHODS
from deepbasis.nets import BasisNet, ConvHead
from deepbasis.nets.enet import ColourBranch, DepthBranch
from deepbasis.nets.heads import Spread
from deepbasis.nets.ncnn import NCNN
from deepbasis.prediction import Explained, Prediction
from deepbasis.shapes import Bool, Float, UInt8

# Log depths of a fit are cut here, 0.05 m to 400 m: metres far beyond would rule ENet's loss.
FIT_RANGE = (-3.0, 6.0)
# Depth in metres whose logarithm is taken is at least this.
LEAST_DEPTH = 1e-3
# Confidence of a pixel that no measurement reaches, when a variance is asked for.
LEAST_CONFIDENCE = 1e-6


@dataclass(frozen=True)
class Architecture:
    """What a model is made of; the weights fit no other."""

    method: str = "bdbf"
    encoder: str = "mobilenet_v2"
    depth_input: bool = False
    normalisation: str = "imagenet"
    errors: Errors = "independent"
    """How a fit takes the errors of pixels; see `BasisFit`."""
    width: int = 32
    """Of ENet: channels at full size."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"`method` is {self.method!r}; choose one of {', '.join(METHODS)}")


class Network(nn.Module):
    """The basis network and, on top of it, the method's last layer."""

    bases: nn.Module
    last: BasisFit | ConvHead | Spread

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.build(architecture)

    def build(self, architecture: Architecture) -> None:
        """Make `bases` and `last`."""
        recipe = METHODS[architecture.method]
        self.bases = BasisNet(
            architecture.encoder,
            depth_input=architecture.depth_input,
            normalisation=architecture.normalisation,
            dropout=recipe.dropout,
        )
        self.last = (
            BasisFit(BasisNet.channels, errors=architecture.errors)
            if recipe.fits
            else ConvHead(BasisNet.channels, variance=recipe.variance)
        )

    def set_start(self, start: float) -> None:
        """Set the log depth that an untrained network predicts on average, if it has one."""
        if isinstance(self.last, ConvHead):
            self.last.set_start(start)

    def features(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        sparse: Float[Tensor, "b 1 h w"],
        depth: Float[Tensor, "b 1 h w"] | None = None,
        valid: Bool[Tensor, "b 1 h w"] | None = None,
    ) -> list[Tensor]:
        """What the last layer is given; `depth` and `valid` are the scaffold of the depth input."""
        return self.bases(image, depth, valid)

    def explain(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
        *filled: Tensor | None,
    ) -> Explained:
        """What `forward` does if it fits, with all that it found on the way."""
        assert isinstance(self.last, BasisFit)
        bases = self.features(image, sparse, *filled)
        return self.last.explain(bases, sparse, weight, guide=image.to(sparse.dtype) / 255)

    def forward(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        sparse: Float[Tensor, "b 1 h w"],
        depth: Float[Tensor, "b 1 h w"] | None = None,
        valid: Bool[Tensor, "b 1 h w"] | None = None,
    ) -> Prediction:
        """Log depth and its variance; `depth` and `valid` are the scaffold of the depth input."""
        if isinstance(self.last, BasisFit):
            return self.explain(image, sparse, None, depth, valid).prediction
        bases = self.features(image, sparse, depth, valid)
        mean, var = self.last(bases, (sparse.shape[2], sparse.shape[3]))
        return Prediction(mean, torch.zeros_like(var), var)


class Branches(NamedTuple):
    """Depth in metres: of the two branches together, and of each."""

    fused: Float[Tensor, "b 1 h w"]
    colour: Float[Tensor, "b 1 h w"]
    depth: Float[Tensor, "b 1 h w"]


class TwoBranch(Network):
    """ENet (see `nets.enet`), whose colour branch ends in a convolution or in a fit.

    Each branch gives depth and confidence; the answer weighs the depths by the softmax of the
    confidences. A fit, of log depth to the features before the convolution that it replaces, has
    the confidence tanh(1 / std), its std in metres (in log depth, the tanh would be 1 everywhere).

    The variance of the answer is that of the fit, with factors that calibrate it to the errors of
    the fused depth; without a fit it is one number for all pixels, learned after training. In the
    paper depths are the output of a ReLU in metres; here of a softplus in units of the usual depth
    of the training frames, so that a short training need not find out the scale.
    """

    head: nn.Conv2d | None
    unit: Tensor

    def build(self, architecture: Architecture) -> None:
        """Make both branches and their last layers."""
        width, fits = architecture.width, METHODS[architecture.method].fits
        self.bases = ColourBranch(width)
        self.head = None if fits else nn.Conv2d(width, 2, 3, padding=1)
        self.last = BasisFit(width) if fits else Spread(doubts=False)
        self.second = DepthBranch(width)
        self.register_buffer("unit", torch.ones(()))

    def set_start(self, start: float) -> None:
        """Set the unit of depth to a usual one, given as log depth."""
        self.unit.fill_(float(latent.to_depth(torch.tensor(start))))

    def features(
        self, image: Tensor, sparse: Tensor, depth: Tensor | None = None, valid: object = None
    ) -> list[Tensor]:
        """What the fit is given: the last features of the colour branch."""
        return self.bases(image, self._scale(sparse))[-1:]

    def explain(
        self, image: Tensor, sparse: Tensor, weight: Tensor | None = None, *filled: Tensor | None
    ) -> Explained:
        """The fit of the colour branch, but the prediction of both."""
        branches, found = self.run(image, sparse, weight)
        assert found is not None
        mean = latent.to_latent(branches.fused.clamp(min=LEAST_DEPTH))
        return found._replace(prediction=found.prediction._replace(mean=mean))

    def forward(self, image: Tensor, sparse: Tensor, *filled: Tensor | None) -> Prediction:
        """Log of the fused depth, and its variance."""
        if isinstance(self.last, BasisFit):
            return self.explain(image, sparse).prediction
        mean = latent.to_latent(self.run(image, sparse)[0].fused.clamp(min=LEAST_DEPTH))
        return Prediction(mean, torch.zeros_like(mean), self.last(torch.ones_like(mean)))

    def run(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> tuple[Branches, Explained | None]:
        """Depth of both branches and of each, and the fit, if there is one."""
        seen, found = self._scale(sparse), None
        features = self.bases(image, seen)
        if isinstance(self.last, BasisFit):
            found = self.last.explain(features[-1:], sparse, weight)
            first = latent.to_depth(found.prediction.mean.clamp(*FIT_RANGE))
            trust = (1 / (first * found.prediction.var.sqrt())).tanh()
        else:
            assert self.head is not None
            first, trust = self._read(self.head(features[-1]))
        other, other_trust = self._read(self.second(first / self.unit, seen, features))
        share = torch.cat([trust, other_trust], 1).softmax(1)
        fused = (share * torch.cat([first, other], 1)).sum(1, keepdim=True)
        return Branches(fused, first, other), found

    def _scale(self, sparse: Tensor) -> Tensor:
        """Sparse depth as the branches see it: 0 is none, and 1 a usual depth."""
        return torch.where(latent.measured(sparse), sparse, 0) / self.unit

    def _read(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Depth in metres and confidence from two channels; a 0 in the first is the unit."""
        out = out.to(torch.promote_types(out.dtype, torch.float32))  # leaves mixed precision
        # softplus(0) is ln 2
        return self.unit * F.softplus(out[:, :1]) / F.softplus(out.new_zeros(())), out[:, 1:]


class Unguided(Network):
    """NCNN (see `nets.ncnn`), whose std is a power of its confidence, learned after training.

    Where no measurement reaches, the depth is the usual one of the training frames.
    """

    start: Tensor

    def build(self, architecture: Architecture) -> None:
        """Make the network and what gives its variance."""
        self.bases = NCNN()
        self.last = Spread(doubts=True)
        self.register_buffer("start", torch.zeros(()))

    def set_start(self, start: float) -> None:
        """Set the log depth of pixels that no measurement reaches."""
        self.start.fill_(start)

    def run(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> tuple[Float[Tensor, "b 1 h w"], Float[Tensor, "b 1 h w"]]:
        """Depth in metres and confidence."""
        depth, confidence = self.bases(image, sparse)
        return torch.where(confidence > 0, depth, latent.to_depth(self.start)), confidence

    def forward(self, image: Tensor, sparse: Tensor, *filled: Tensor | None) -> Prediction:
        """Log depth and its variance."""
        depth, confidence = self.run(image, sparse)
        mean = latent.to_latent(depth)
        assert isinstance(self.last, Spread)
        var = self.last(1 / confidence.clamp(min=LEAST_CONFIDENCE))
        return Prediction(mean, torch.zeros_like(var), var)


KINDS: dict[str, type[Network]] = {"basis": Network, "enet": TwoBranch, "ncnn": Unguided}


def new_network(architecture: Architecture) -> Network:
    """A new network of the kind that the method stands on."""
    return KINDS[METHODS[architecture.method].network](architecture)
