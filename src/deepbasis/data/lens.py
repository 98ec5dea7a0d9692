# SPDX-License-Identifier: Apache-2.0
"""Cameras with lens distortion: images as a pinhole camera of the same matrix would take them.

The models are those of ROS and OpenCV: "plumb_bob" (k1 k2 p1 p2 k3), "rational_polynomial" (also k4
k5 k6), and "equidistant", a fisheye (k1 k2 k3 k4).
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.points import check_camera
from deepbasis.shapes import Float, UInt8

# Names of each model, and how many coefficients it may have.
MODELS = {
    "plumb_bob": 5, "radtan": 5, "rational_polynomial": 8, "equidistant": 4, "fisheye": 4, "": 5,
    "none": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Lens:
    """A camera matrix with distortion coefficients."""

    matrix: Float[Tensor, "3 3"]
    model: str = "plumb_bob"
    coefficients: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_camera(self.matrix)
        if self.model not in MODELS:
            known = ", ".join(name for name in MODELS if name)
            raise ValueError(f"the distortion model {self.model!r} is not one of {known}")
        if any(self.coefficients[MODELS[self.model] :]):
            raise ValueError(
                f"{self.model!r} has {MODELS[self.model]} distortion coefficients, not "
                f"{len(self.coefficients)}"
            )
        if not np.isfinite(self.coefficients).all():
            raise ValueError(f"the distortion coefficients {self.coefficients} are not finite")

    @property
    def distorts(self) -> bool:
        """Whether a coefficient is not 0."""
        return any(self.coefficients)

    def distort(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Where a ray (x, y, 1) appears, also in units of the focal length."""
        k = [*self.coefficients, *[0.0] * 8][:8]
        r2 = x * x + y * y
        if self.model in ("equidistant", "fisheye"):
            r = r2.sqrt()
            a = r.atan()
            a2 = a * a
            bent = a * (1 + a2 * (k[0] + a2 * (k[1] + a2 * (k[2] + a2 * k[3]))))
            ratio = torch.where(r > 1e-9, bent / r.clamp(min=1e-9), 1)
            return x * ratio, y * ratio
        radial = 1 + r2 * (k[0] + r2 * (k[1] + r2 * k[4]))
        radial = radial / (1 + r2 * (k[5] + r2 * (k[6] + r2 * k[7])))
        along = 2 * k[2] * x * y + k[3] * (r2 + 2 * x * x)
        down = k[2] * (r2 + 2 * y * y) + 2 * k[3] * x * y
        return x * radial + along, y * radial + down

    def source(self, size: tuple[int, int]) -> Float[Tensor, "1 h w 2"]:
        """Where each pixel of the pinhole image is in the camera's image, as `grid_sample` takes
        it.
        """
        (fx, skew, cx), (_, fy, cy), _ = self.matrix.double().tolist()
        v, u = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in size), indexing="ij")
        y = (v - cy) / fy
        x, y = self.distort((u - cx - skew * y) / fx, y)
        u, v = fx * x + skew * y + cx, fy * y + cy
        grid = torch.stack([2 * u / max(size[1] - 1, 1) - 1, 2 * v / max(size[0] - 1, 1) - 1], -1)
        return grid.nan_to_num(2.0, 2.0, 2.0)[None].float()

    def undistort(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
        """The image of the pinhole camera; black where the camera saw nothing."""
        if not self.distorts:
            return image
        pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
        found = F.grid_sample(pixels, self.source(image.shape[:2]), align_corners=True)
        return found[0].round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()

    def undistort_depth(self, depth: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
        """A depth map of the pinhole camera: depths of the nearest pixels, none is mixed."""
        if not self.distorts:
            return depth
        values, grid = torch.from_numpy(depth.astype(np.float32)), self.source(depth.shape)
        found = F.grid_sample(values[None, None], grid, mode="nearest", align_corners=True)
        return found[0, 0].numpy()
