# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out predictions in closed form, to find points that contradict the others.

The posterior of the weights is a product in which point i appears once, as p(z_i | the others, w).
Dividing by that factor gives the posterior without the point (Sherman and Morrison): its residual e
and model variance v become e / (1 - h) and v / (1 - h), with the leverage h = beta v / ratio and
ratio / beta the variance of the factor.
"""

import torch
from torch import Tensor

from deepbasis.fit import correlated
from deepbasis.fit.checks import check_points
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.linear import Posterior
from deepbasis.fit.neighbours import others
from deepbasis.shapes import Bool, Float, Int


@torch.no_grad()
def leave_one_out(
    post: Posterior,
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    ratio: Float[Tensor, "*b n"],
    used: Bool[Tensor, "*b n"] | None = None,
) -> tuple[Float[Tensor, "*b n"], Float[Tensor, "*b n"]]:
    """Each point's z minus its prediction from all others, and that prediction's model variance.

    Args:
        post: the fit of all points.
        phi: bases at the points, with independent errors as they were fitted.
        z: log depth of the points.
        ratio: variance of each point in the fit, times beta: 1 / `post.weight`.
        used: points that were fitted, by default all; the fit does not depend on the others.
    """
    exact = post.exact or post
    phi, z, ratio = phi.double(), z.double(), ratio.double()
    model_var = (phi @ exact.root).square().sum(-1)
    # A point that alone determines a direction has leverage 1: no other predicts it.
    rest = 1 - exact.beta[..., None] * model_var / ratio
    rest = rest if used is None else torch.where(used, rest, 1)
    rest = rest.clamp(min=torch.finfo(torch.float64).eps)
    error = z - (phi @ exact.mean[..., None])[..., 0]
    return error / rest, model_var / rest


@torch.no_grad()
def leave_one_out_correlated(
    kernel: Kernel,
    post: Posterior,
    x: Float[Tensor, "n f"],
    phi: Float[Tensor, "n m"],
    z: Float[Tensor, "n"],
    weight: Float[Tensor, "n"],
    used: Bool[Tensor, "n"] | None = None,
    which: Int[Tensor, "q"] | None = None,
    *,
    k: int = correlated.NEIGHBOURS,
) -> tuple[Float[Tensor, "q"], Float[Tensor, "q"], Float[Tensor, "q"]]:
    """`leave_one_out` of one image with correlated errors, and d: the noise variance is d / beta.

    Each point is conditioned on its k nearest neighbours, before and after it in the fit's order,
    of those that were used in the fit, by default all. All weights must be positive, also those of
    points that were not used; `post` is a batch of one. `which` are the points that are asked for,
    by default all.
    """
    points = check_points(phi, z, weight)
    near = others(x[:, :2], k, used, which)
    innovations = correlated.whiten_at(kernel, x, points, near, which)
    if used is not None and which is not None:
        used = used[which]
    error, model_var = leave_one_out(
        post,
        innovations.phi[None],
        innovations.z[None],
        innovations.weight[None],
        None if used is None else used[None],
    )
    ratio = innovations.variance_ratio
    return error[0] * ratio.sqrt(), model_var[0] * ratio, ratio
