# SPDX-License-Identifier: Apache-2.0
"""What training minimises, image by image: L1 or the Laplace likelihood of log depth.

Networks of other papers have their own losses, of depth in metres. ENet's is the mean squared error
of the fused depth and, with weights that decrease, of each branch (Hu et al., 2021). NCNN's is
Huber's error, and a reward for confidence where that is small, whose weight is 1 / epoch (Eldesokey
et al., 2018).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.data.training import Item
from deepbasis.layer import BasisFit, Errors
from deepbasis.measurements import Measurements
from deepbasis.nets import ConvHead
from deepbasis.networks import Network, TwoBranch, Unguided
from deepbasis.pyramid import Pyramid
from deepbasis.shapes import Bool, Float

# Largest number of points of the fit that trains for few.
MOST_FEW = 200


def l1(
    mean: Float[Tensor, "b 1 h w"], z: Float[Tensor, "b 1 h w"], known: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, "b"]:
    """Mean of |z - mean| over the known pixels of each image."""
    return _per_image((z - mean).abs(), known)


def laplace_nll(
    mean: Float[Tensor, "b 1 h w"],
    var: Float[Tensor, "b 1 h w"],
    z: Float[Tensor, "b 1 h w"],
    known: Bool[Tensor, "b 1 h w"],
) -> Float[Tensor, "b"]:
    """Mean of -ln p(z) over the known pixels of each image; Laplace with 2 b^2 = var."""
    log_b = 0.5 * (var / 2).log()
    return _per_image((z - mean).abs() * (-log_b).exp() + log_b + math.log(2), known)


def _per_image(values: Tensor, known: Tensor) -> Tensor:
    return torch.where(known, values, 0).flatten(1).sum(1) / known.flatten(1).sum(1)


class Loss(nn.Module):
    """A network with its loss, so that several processes can share its one forward pass.

    Args:
        network: to be trained.
        mixed: compute its bases in bfloat16; what comes after them stays exact.
        through: the errors that a fit takes for granted while it is trained.
        few: weight of the losses of a fit to few points and to none, with the prior so far.
    """

    side = 0.0
    """Weight of what other papers add to the error of the answer; see `Schedule.side`."""

    def __init__(
        self,
        network: Network,
        *,
        mixed: bool = False,
        few: float = 0.0,
        through: Errors = "independent",
    ) -> None:
        super().__init__()
        self.network, self.mixed, self.few, self.through = network, mixed, few, through

    def forward(self, item: Item) -> Float[Tensor, "b"]:
        """Loss of each image of a batch; images weigh the same whatever they measured."""
        known = latent.measured(item.depth)
        if not known.flatten(1).any(1).all():
            raise ValueError(f"one of the frames {', '.join(item.name)} has no depth to learn from")
        z = latent.to_latent(torch.where(known, item.depth, 1))
        net, last = self.network, self.network.last
        filled = (item.scaffold, item.valid) if net.architecture.depth_input else ()
        with torch.autocast(item.image.device.type, torch.bfloat16, enabled=self.mixed):
            if isinstance(net, TwoBranch):
                return self._of_branches(net, item, known)
            if isinstance(net, Unguided):
                return self._of_confidence(net, item, known)
            bases = net.features(item.image, item.sparse, *filled)
        bases = [basis.to(item.depth.dtype) for basis in bases]
        if isinstance(last, BasisFit):
            pyramid, points = last.read(bases, item.sparse)
            if self.through == "local":
                guide = item.image.to(z.dtype) / 255
                return l1(last.mean_locally(pyramid, points, guide), z, known)
            return self._of_fit(last, pyramid, points, z, known)
        assert isinstance(last, ConvHead)
        mean, var = last(bases, (z.shape[2], z.shape[3]))
        return laplace_nll(mean, var, z, known) if last.variance else l1(mean, z, known)

    def _of_fit(
        self, last: BasisFit, pyramid: Pyramid, points: Measurements, z: Tensor, known: Tensor
    ) -> Float[Tensor, "b"]:
        post = last.posterior(pyramid, points)

        def loss(weights: Tensor) -> Tensor:
            return l1(pyramid.combine(weights)[:, None], z, known)

        if self.few == 0:
            return loss(post.mean)
        last.follow(post)
        few = last.shrunk(pyramid, thin(points))
        none = last.prior_mean.expand_as(few)
        return loss(post.mean) + self.few * (loss(few) + loss(none))

    def _of_branches(self, net: TwoBranch, item: Item, known: Tensor) -> Float[Tensor, "b"]:
        depths, _ = net.run(item.image, item.sparse)
        true = torch.where(known, item.depth, 0)
        fused, colour, depth = (_per_image((one - true).square(), known) for one in depths)
        return (1 - 2 * self.side) * fused + self.side * (colour + depth)

    def _of_confidence(self, net: Unguided, item: Item, known: Tensor) -> Float[Tensor, "b"]:
        depth, confidence = net.run(item.image, item.sparse)
        error = F.smooth_l1_loss(depth, torch.where(known, item.depth, 0), reduction="none")
        return _per_image(error - self.side * confidence * (1 - error), known)


def thin(points: Measurements) -> Measurements:
    """Keep about 1 to `MOST_FEW` points of each image; each order of magnitude is as likely."""
    count = (points.weight > 0).sum(1, keepdim=True)
    share = MOST_FEW ** torch.rand_like(count, dtype=points.weight.dtype) / count
    keep = torch.rand_like(points.weight) < share
    return points._replace(weight=points.weight * keep)
