# SPDX-License-Identifier: Apache-2.0
"""Networks on the basis network: a fit or a convolution, of bases that see the points or not."""

import torch
from torch import Tensor

from deepbasis.calibrate import learn
from deepbasis.data.sample import Frames
from deepbasis.data.training import Batch
from deepbasis.fit import Posterior
from deepbasis.layer import Errors, Fitted, Observed, Prediction
from deepbasis.layer.pyramid import project_in_blocks
from deepbasis.nets import Architecture, BasisNet, Features, Network
from deepbasis.nets.network import l1, per_image, to_target
from deepbasis.points import Points
from deepbasis.shapes import Float, UInt8
from deepbasis_paper.data.training import PaperItem
from deepbasis_paper.networks.architecture import PaperArchitecture
from deepbasis_paper.networks.basis import PaperBasisNet
from deepbasis_paper.networks.fits import FittingNetwork, LastEpoch
from deepbasis_paper.networks.heads import ConvHead, laplace_nll
from deepbasis_paper.networks.inputs import Direct, Given, PaperNetwork


class RgbNetwork(Network, FittingNetwork):
    """The library's network: bases of the image alone, and a fit.

    It records the fits of the last epoch, for the paper's recipe.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        self.last_epoch = LastEpoch(self.fit.channels + 1)
        self.recording = False

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Record from the first step of the last epoch."""
        self.recording = epoch == epochs - 1

    @torch.no_grad()
    def after_fit(self, item: Batch, observed: Observed, post: Posterior) -> None:
        """Record weights and NEES of a batch of the last epoch."""
        if not (self.recording and self.training):
            return
        z, known = to_target(item)
        onto = torch.cat([post.mean[..., None], post.root], -1).mT
        mean, model_var = (part.view_as(z) for part in project_in_blocks(observed.pyramid, onto))
        self.last_epoch.add(post.mean, per_image((z - mean).square() / model_var, known))

    def learn_as_in_paper(self, *, prior: bool) -> dict[str, object]:
        """Take prior and factor from the last epoch; there are no hyperpriors."""
        found = self.last_epoch
        if prior:
            self.fit.set_prior(found.prior)
        self.fit.error_model("paper").calibration.set_factors(1.0, found.factor)
        return {"nees_factor": found.factor, "last_epoch_frames": int(found.frames)}

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Fitted:
        """Fit of the points."""
        return Network.predictor(self, given.image)(given.points, errors=errors, huber=huber)

    def calibrate(self, draw: learn.Draw, frames: Frames) -> dict[str, object]:
        """Calibrate independent errors, find the kernel of correlated ones, and calibrate those."""
        found = super().calibrate(draw, frames)
        found |= learn.learn_kernel(draw, self, frames)
        groups = learn.sample_pixels(draw, self, frames, "correlated")
        return found | {"correlated": learn.calibrate(self.fit.error_model("correlated"), groups)}


class RgbdNetwork(RgbNetwork):
    """A fit of bases that see the points too, interpolated."""

    predictor = PaperNetwork.predictor  # type: ignore[assignment]  # bases depend on the points

    def make_bases(self, architecture: Architecture) -> PaperBasisNet:
        """A new basis network that takes a scaffold."""
        return PaperBasisNet(
            architecture.encoder, normalisation=architecture.normalisation, depth_input=True
        )

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Fitted:
        """Fit of the points."""
        features = self.bases(given.image, *given.depth_input)
        observed = super().observe(given.image, given.points, features)
        return self.fit.fit_details(observed, errors=errors, huber=huber)

    def observe(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        points: Points,
        features: Features | None = None,
    ) -> Observed:
        """What the fit needs: the features, made now from the points if they are not passed."""
        if features is None:
            features = self.bases(image, *Given(image, points).depth_input)
        return super().observe(image, points, features)

    def features_of(self, item: PaperItem) -> Features:  # type: ignore[override]
        """Features of a training batch."""
        return self.bases(item.image, item.scaffold, item.seen)


class ConvNetwork(PaperNetwork):
    """Log depth, and perhaps its variance, by a convolution of the bases."""

    def __init__(self, architecture: PaperArchitecture) -> None:
        super().__init__()
        spec = architecture.spec
        self.depth_input = architecture.input == "rgbd"
        self.bases = PaperBasisNet(
            architecture.encoder,
            normalisation=architecture.normalisation,
            depth_input=self.depth_input,
            dropout=spec.dropout,
        )
        self.head = ConvHead(BasisNet.channels, variance=spec.variance)

    def set_start(self, log_depth: float) -> None:
        """Set the log depth that an untrained network predicts on average."""
        self.head.set_start(log_depth)

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Direct:
        """Prediction of every pixel."""
        filled = given.depth_input if self.depth_input else ()
        mean, var = self.head(self.bases(given.image, *filled).bases, given.size)
        return Direct(Prediction(mean, torch.zeros_like(var), var), given.points.count)

    def loss(self, item: PaperItem, *, mixed_precision: bool = False) -> Float[Tensor, "b"]:
        """Laplace likelihood of log depth, or L1 if no variance is predicted."""
        z, known = to_target(item)
        mean, var = self._run(item, mixed_precision)
        return laplace_nll(mean, var, z, known) if self.head.variance else l1(mean, z, known)

    def predict_in_training(self, item: PaperItem) -> Float[Tensor, "b 1 h w"]:
        """Log depth of a batch."""
        return self._run(item, mixed_precision=False)[0]

    def _run(self, item: PaperItem, mixed_precision: bool) -> tuple[Tensor, Tensor]:
        filled = (item.scaffold, item.seen) if self.depth_input else ()
        with torch.autocast(item.image.device.type, torch.bfloat16, enabled=mixed_precision):
            features = self.bases(item.image, *filled)
        return self.head(
            features.to(item.depth.dtype).bases, (item.depth.shape[2], item.depth.shape[3])
        )
