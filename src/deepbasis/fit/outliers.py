# SPDX-License-Identifier: Apache-2.0
"""What all other points say of each point, in closed form: for finding those that contradict.

The posterior of the weights is a product in which point i stands once, as p(z_i | the others, w).
Dividing by that factor leaves what the others know (Sherman and Morrison): the residual e and the
model variance v of a point become e / (1 - h) and v / (1 - h), with the leverage h = beta v / share
and share / beta the variance of the factor.
"""

import torch
from torch import Tensor

from deepbasis.fit import local
from deepbasis.fit.checks import check_points
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.linear import Posterior
from deepbasis.fit.neighbours import others
from deepbasis.shapes import Float


@torch.no_grad()
def leave_one_out(
    post: Posterior,
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    share: Float[Tensor, "*b n"],
) -> tuple[Float[Tensor, "*b n"], Float[Tensor, "*b n"]]:
    """Each point's z minus its prediction from all others, and that prediction's model variance.

    Args:
        post: the fit of all points.
        phi: bases at the points, with independent errors as they were fitted.
        z: log depth of the points.
        share: variance with which a point entered the fit, times beta: 1 / `post.weight`.
    """
    exact = post.exact or post
    phi, z, share = phi.double(), z.double(), share.double()
    model_var = (phi @ exact.root).square().sum(-1)
    # A point that alone fixes a direction has leverage 1 and nothing else to predict it.
    others_know = 1 - exact.beta[..., None] * model_var / share
    others_know = others_know.clamp(min=torch.finfo(torch.float64).eps)
    error = z - (phi @ exact.mean[..., None])[..., 0]
    return error / others_know, model_var / others_know


@torch.no_grad()
def leave_one_out_locally(
    kernel: Kernel,
    post: Posterior,
    x: Float[Tensor, "n f"],
    phi: Float[Tensor, "n m"],
    z: Float[Tensor, "n"],
    weight: Float[Tensor, "n"],
    *,
    k: int = local.NEIGHBOURS,
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"], Float[Tensor, "n"]]:
    """The same for one image with local errors, and the share d: the noise variance is d / beta.

    Each point is conditioned on its k nearest others, before and after it in the fit's order. All
    weights must be positive; `post` is a batch of one.
    """
    points = check_points(phi, z, weight)
    news = local.whiten_at(kernel, x, points, others(x[:, :2], k))
    error, model_var = leave_one_out(post, news.phi[None], news.z[None], news.weight[None])
    return error[0] * news.share.sqrt(), model_var[0] * news.share, news.share
