# SPDX-License-Identifier: Apache-2.0
"""Classical baselines without a network: nearest, linear, kriging and colourisation.

Each takes an image and sparse depth and returns log depth with a variance. Interpolation has no
variance of its own; here its standard deviation grows with the distance to the nearest point.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.interpolate import LinearNDInterpolator
from scipy.ndimage import distance_transform_edt
from scipy.sparse import csr_array, identity
from scipy.sparse.linalg import spsolve
from scipy.spatial import QhullError
from torch import Tensor

from deepbasis import fit
from deepbasis.fit import Kernel, correlated
from deepbasis.latent import is_valid, to_latent
from deepbasis.shapes import Bool, Float, UInt8

Array = npt.NDArray[Any]
Image = UInt8[Tensor, "3 h w"]
Depth = Float[Tensor, "1 h w"]

# Standard deviation of log depth at a measured pixel, and its increase per image width of distance.
AT_A_POINT, PER_WIDTH = 0.02, 2.0
# Kernel of log depth itself: longer than that of a network's errors.
KRIGING = Kernel(length=40 / 152, colour=30 / 152, nugget=0.02)
# Standard deviation of log depth in a scene, about 0.3; it matters with fewer than two points.
SPREAD = fit.Hyperprior(alpha=fit.Gamma(1e3, 1e3), beta=fit.Gamma(1.0, 0.1))
CONSTANT = fit.Prior(torch.zeros(1), torch.ones(1, 1))
# Variance of grey levels (0..1) due to noise, and the smallest weight of a neighbour, which keeps
# every pixel connected to a point.
MIN_SPREAD, MIN_AFFINITY = 1e-4, 1e-6


class BaselineDepth(NamedTuple):
    """Log depth at every pixel, and its variance."""

    mean: Depth
    """Log depth."""
    var: Depth
    """Variance of log depth."""


def nearest(image: Image, sparse: Depth) -> BaselineDepth:
    """Each pixel has the depth of the nearest point.

    Args:
        image: colours from 0 to 255.
        sparse: depth in metres; 0 where nothing was measured.

    Returns:
        Mean and variance of log depth at every pixel.

    Raises:
        ValueError: if nothing was measured, or image and depth differ in size.
    """
    known = _known(image, sparse)
    return BaselineDepth(to_latent(_nearest(sparse)), _distance_variance(known).to(sparse))


def linear(image: Image, sparse: Depth) -> BaselineDepth:
    """Linear interpolation of metres on the Delaunay triangulation; outside of it, the nearest.

    Args:
        image: colours from 0 to 255.
        sparse: depth in metres; 0 where nothing was measured.

    Returns:
        Mean and variance of log depth at every pixel.

    Raises:
        ValueError: if nothing was measured, or image and depth differ in size.
    """
    known = _known(image, sparse)
    between = _interpolate(sparse, known)
    inside = between.isfinite() & ~known  # measured pixels keep their depth, to the bit
    depth = torch.where(inside, between, _nearest(sparse))
    return BaselineDepth(to_latent(depth), _distance_variance(known).to(sparse))


def kriging(
    image: Image, sparse: Depth, kernel: Kernel = KRIGING, *, k: int = correlated.NEIGHBOURS
) -> BaselineDepth:
    """Ordinary kriging of log depth over position and colour: correlated errors around a constant.

    The variance is that of kriging, with a scale that is estimated for each image.

    Args:
        image: colours from 0 to 255.
        sparse: depth in metres; 0 where nothing was measured.
        kernel: covariance over position and colour.
        k: neighbours of a pixel.

    Returns:
        Mean and variance of log depth at every pixel.

    Raises:
        ValueError: if nothing was measured, or image and depth differ in size.
    """
    height, width = sparse.shape[1:]
    points, offset = _points(image, sparse)
    phi, z = points.phi[None], points.z[None]
    innovations = correlated.whiten(kernel, points.x[None], phi, z, k=k)
    post = fit.evidence(innovations.phi, innovations.z, CONSTANT, hyperprior=SPREAD)
    field = correlated.Field.of(kernel, points.x, (height, width), _guide(image, sparse), k=k)

    def constant(start: int, stop: int) -> Float[Tensor, "1 p 1"]:
        return phi.new_ones(1, (stop - start) * width, 1)

    mean, model_var, variance_ratio = correlated.predict(
        [field], post, phi, z, constant, bounded=False
    )
    var = model_var + variance_ratio / post.beta[:, None]
    return BaselineDepth(offset + mean.view_as(sparse), var.view_as(sparse))


def colourisation(image: Image, sparse: Depth) -> BaselineDepth:
    """Each unmeasured pixel is a mean of its eight neighbours, weighted by similar brightness.

    After Levin, Lischinski and Weiss, Colorization using optimization, SIGGRAPH 2004, with log
    depth in place of colour: one sparse linear system, exact at the points.

    Args:
        image: colours from 0 to 255.
        sparse: depth in metres; 0 where nothing was measured.

    Returns:
        Mean and variance of log depth at every pixel.

    Raises:
        ValueError: if nothing was measured, or image and depth differ in size.
    """
    known = _known(image, sparse)
    at = known.flatten().cpu().numpy()
    z = to_latent(sparse).flatten().double().cpu().numpy()
    affinity = _affinity(image.double().mean(0).cpu().numpy() / 255)
    system = (identity(at.size, format="csr") - affinity)[~at]
    if not at.all():
        z[~at] = spsolve(system[:, ~at].tocsc(), -(system[:, at] @ z[at]))
    mean = torch.from_numpy(z).to(sparse).view_as(sparse)
    return BaselineDepth(mean, _distance_variance(known).to(sparse))


def _affinity(grey: Array) -> Any:
    """Weights of each pixel's eight neighbours, larger for similar ones; their sum is 1."""
    height, width = grey.shape
    number = np.pad(np.arange(grey.size).reshape(grey.shape), 1, constant_values=-1)
    shifted = np.stack([
        number[1 + down : height + 1 + down, 1 + right : width + 1 + right].ravel()
        for down in (-1, 0, 1) for right in (-1, 0, 1)
    ])  # fmt: skip
    there = shifted >= 0
    values = np.where(there, grey.ravel()[shifted], np.nan)
    spread = np.nanvar(values, 0).clip(min=MIN_SPREAD)
    weight = np.exp(-np.square(values - grey.ravel()) / (2 * spread)).clip(min=MIN_AFFINITY)
    weight[4], there[4] = 0, False  # the pixel itself
    weight /= np.nansum(weight, 0)
    column, row = shifted[there], np.nonzero(there)[1]
    return csr_array((weight[there], (row, column)), shape=(grey.size, grey.size))


def _points(image: Image, sparse: Depth) -> tuple[fit.FramePoints, Float[Tensor, ""]]:
    """The points with their mean log depth subtracted, and that mean."""
    known = _known(image, sparse)
    _, row, column = known.nonzero(as_tuple=True)
    x = correlated.locate(row.to(sparse), column.to(sparse), sparse.shape[2], _guide(image, sparse))
    z = to_latent(sparse[known])
    return fit.FramePoints(x, torch.ones_like(z)[:, None], z - z.mean()), z.mean()


def _guide(image: Image, sparse: Depth) -> Float[Tensor, "3 h w"]:
    return image.to(sparse) / 255


def _known(image: Image, sparse: Depth) -> Bool[Tensor, "1 h w"]:
    if image.shape[1:] != sparse.shape[1:]:
        raise ValueError(
            f"the image is {list(image.shape[1:])} pixels (height, width), the sparse depth "
            f"{list(sparse.shape[1:])}; they must have the same size"
        )
    if sparse.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the sparse depth is {sparse.dtype}; pass float32 or float64, in metres")
    known = is_valid(sparse)
    if not known.any():
        raise ValueError("there are no points; classical baselines need at least one")
    return known


def _interpolate(sparse: Depth, known: Bool[Tensor, "1 h w"]) -> Depth:
    """Depth on the triangles between the points; NaN elsewhere."""
    row, column = known[0].cpu().numpy().nonzero()
    z = sparse[known].double().cpu().numpy()
    try:
        between = LinearNDInterpolator(np.stack([column, row], 1), z)
    except QhullError:  # fewer than three points, or all on a line
        return torch.full_like(sparse, torch.nan)
    return torch.from_numpy(between(*np.indices(known.shape[1:])[::-1])).to(sparse)[None]


def _nearest(sparse: Depth) -> Depth:
    at = distance_transform_edt(~is_valid(sparse)[0].cpu().numpy(), return_indices=True)[1]
    row, column = torch.from_numpy(at).long().to(sparse.device)
    return sparse[:, row, column]


def _distance_variance(known: Bool[Tensor, "1 h w"]) -> Depth:
    distance = torch.from_numpy(distance_transform_edt(~known[0].cpu().numpy()))[None]
    return (AT_A_POINT + PER_WIDTH * distance / known.shape[2]).square()
