# SPDX-License-Identifier: Apache-2.0
"""Whole networks, from the image to log depth with variance, each with its loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.data.training import Batch
from deepbasis.fit import Posterior
from deepbasis.layer import BasisFit, Errors, Fitted, Observed, Prediction
from deepbasis.nets.basis import BasisNet, Features
from deepbasis.nets.familiarity import Familiarity
from deepbasis.nets.kriging import kriging_loss, unmeasured
from deepbasis.nets.usual_size import UsualSize
from deepbasis.points import Points
from deepbasis.shapes import Bool, Float, UInt8

# Largest number of points in the loss of a fit to few points.
MOST_FEW = 200


@dataclass(frozen=True)
class Architecture:
    """Structure of a network; weights can be loaded only into the same structure."""

    encoder: str = "mobilenet_v2"
    normalisation: str = "imagenet"
    errors: Errors = "correlated"
    """Default error model; see `BasisFit`."""
    decoder: str = "paper"
    embedding: int = 0
    """Channels of the learned kernel's embedding; 0 for a kernel of position and colour."""
    head_width: int = 0
    """Channels of the convolutions in the learned kernel's head; 0 for none."""
    prediction: str = ""
    """What a third-party network predicts; see `ForeignBases`."""


class DepthNetwork(nn.Module, ABC):
    """A network that can be trained: it owns its loss."""

    @abstractmethod
    def loss(self, item: Any, *, mixed_precision: bool = False) -> Float[Tensor, "b"]:
        """Loss of each image of a batch; all images have equal weight."""

    @abstractmethod
    def predict_in_training(self, item: Any) -> Float[Tensor, "b 1 h w"]:
        """Log depth of a batch before anything was learned after the network."""

    def set_start(self, log_depth: float) -> None:
        """Set the log depth that an untrained network predicts on average, if it has one."""

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Tell the network how far the training is; some losses depend on it."""


class Network(DepthNetwork):
    """The basis network and the fit on top of it."""

    def __init__(self, architecture: Architecture, bases: Any = None) -> None:
        super().__init__()
        self.architecture = architecture
        self.bases = self.make_bases(architecture) if bases is None else bases
        self.fit = BasisFit(self.bases.channels, errors=architecture.errors)
        self.familiarity = Familiarity()
        self.usual_size = UsualSize()

    def make_bases(self, architecture: Architecture) -> BasisNet:
        """A new basis network; subclasses may have another."""
        return BasisNet(
            architecture.encoder,
            architecture.decoder,
            architecture.embedding,
            architecture.head_width,
            normalisation=architecture.normalisation,
        )

    def features(self, image: UInt8[Tensor, "b 3 h w"], bases: Any = None) -> Features:
        """What the basis network makes of images; of large ones, reduced to its usual size.

        Args:
            image: of any size.
            bases: to run in place of the network's own; see `nets.folding`.
        """
        run = self.bases if bases is None else bases
        found: Features = run(self.usual_size.reduce(image))
        return found.at_size((image.shape[2], image.shape[3]))

    def observe(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        points: Points,
        features: Features | None = None,
    ) -> Observed:
        """What the fit needs: the network's features, made now if they are not passed, and the
        points.
        """
        made = self.features(image) if features is None else features
        bases, embedding, amplitude, summary = made
        guide = image.to(bases[0].dtype) / 255 if embedding is None else embedding
        size = (image.shape[2], image.shape[3])
        observed = self.fit.observe(bases, points, size, guide, amplitude)
        return replace(observed, widening=self.familiarity.widening(summary))

    def predictor(self, image: UInt8[Tensor, "b 3 h w"]) -> Callable[..., Fitted]:
        """A function that fits any points of these images; the network runs once."""
        features = self.features(image)

        def fit(
            points: Points, *, errors: Errors | None = None, huber: float | None = None
        ) -> Fitted:
            observed = self.observe(image, points, features)
            return self.fit.fit_details(observed, errors=errors, huber=huber)

        return fit

    def forward(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> Prediction:
        """Log depth and its variance at every pixel."""
        observed = self.observe(image, Points.from_maps(sparse))
        if self.training:
            return self.fit.predict_ml(observed)
        return self.fit.fit_details(observed).prediction

    def loss(
        self,
        item: Batch,
        *,
        mixed_precision: bool = False,
        few_points_weight: float = 0.0,
        kernel_weight: float = 0.0,
    ) -> Float[Tensor, "b"]:
        """L1 of log depth of the maximum-likelihood fit and, with a weight each, of fits to few
        points and to none under the running prior, and of the pixels between the points of a
        sensor by the learned kernel; see `kriging_loss`.
        """
        z, known = to_target(item)
        sets = [Points.from_maps(item.sparse)]
        if kernel_weight:
            asked = unmeasured(item.depth, item.measured)
            sets += [Points.from_maps(item.measured), Points.from_maps(asked)]
        together = self._observe(item, mixed_precision, Points.join(sets))
        observed, *others = together.split([len(points) for points in sets])
        post = self.fit.fit_ml(observed)
        self.after_fit(item, observed, post)

        def l1_of(weights: Tensor) -> Tensor:
            return l1(observed.pyramid.combine(weights)[:, None], z, known)

        loss = l1_of(post.mean)
        if few_points_weight == kernel_weight == 0:
            return loss
        if self.training:
            self.fit.update_running_prior(post)
        if few_points_weight:
            few = self.fit.posterior_mean(observed.reweighted(thin(observed.points.weight)))
            none = self.fit.prior.mean.expand_as(few)
            loss = loss + few_points_weight * (l1_of(few) + l1_of(none))
        if kernel_weight:
            head = self.bases.head
            if head is None:
                raise ValueError("this network has no embedding, so its kernel cannot be learned")
            measured, between = others
            kriged = kriging_loss(measured, between, head.kernel, self.fit.prior.value)
            loss = loss + kernel_weight * kriged
        return loss

    def after_fit(self, item: Batch, observed: Observed, post: Posterior) -> None:
        """Called with each maximum-likelihood fit of the loss; for subclasses."""

    def predict_in_training(self, item: Batch) -> Float[Tensor, "b 1 h w"]:
        """Log depth of the maximum-likelihood fit, since there is no prior yet."""
        observed = self._observe(item, False, Points.from_maps(item.sparse))
        return observed.pyramid.combine(self.fit.fit_ml(observed).mean)[:, None]

    def features_of(self, item: Batch) -> Features:
        """Features of a training batch; networks of subclasses may look at more than its images."""
        return self.bases(item.image)

    def _observe(self, item: Batch, mixed_precision: bool, points: Points) -> Observed:
        with torch.autocast(item.image.device.type, torch.bfloat16, enabled=mixed_precision):
            features = self.features_of(item)
        return self.observe(item.image, points, features.to(item.depth.dtype))


def to_target(item: Any) -> tuple[Float[Tensor, "b 1 h w"], Bool[Tensor, "b 1 h w"]]:
    """Log of the ground truth, and where it is known."""
    known = latent.is_valid(item.depth)
    if not known.flatten(1).any(1).all():
        raise ValueError(f"one of the frames {', '.join(item.name)} has no depth to learn from")
    return latent.to_latent(torch.where(known, item.depth, 1)), known


def l1(
    mean: Float[Tensor, "b 1 h w"], z: Float[Tensor, "b 1 h w"], known: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, "b"]:
    """Mean of |z - mean| over the known pixels of each image."""
    return per_image((z - mean).abs(), known)


def per_image(
    values: Float[Tensor, "b 1 h w"], known: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, "b"]:
    """Mean over the known pixels of each image."""
    return torch.where(known, values, 0).flatten(1).sum(1) / known.flatten(1).sum(1)


def thin(weight: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Weights of about 1 to `MOST_FEW` points of each image, 0 for the others; each order of
    magnitude is as likely.
    """
    count = (weight > 0).sum(1, keepdim=True)
    share = MOST_FEW ** torch.rand_like(count, dtype=weight.dtype) / count
    return weight * (torch.rand_like(weight) < share)
