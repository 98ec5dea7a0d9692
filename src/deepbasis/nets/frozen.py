# SPDX-License-Identifier: Apache-2.0
"""FrozenBases: depth bases from a monocular depth network that is not trained."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.shapes import Float

# Relative depths are clipped to this factor around the median: a disparity near 0, as for the sky,
# would dominate the fit otherwise.
REACH = 20.0


class FrozenBases(nn.Module):
    """Bases from the depth d of a network, correct up to scale, shift or power, and its features.

    They are ln d, 1 / d and d, each with d relative to the image's median, and the principal
    components of the features; `BasisFit` adds the constant. To first order they correct what a
    monocular network cannot know: a scale (the constant), a power (ln d), a shift of depth, since
    ln(d + s) = ln d + s / d + ..., and a shift of disparity, -ln(1 / d + s) = ln d - s d + ...

    It has no gradient. `learn` finds the components from some frames.

    Args:
        features: channels of the network's feature map; 0 for none.
        components: number of principal components to use.

    Examples:
        >>> bases = FrozenBases()
        >>> [scale.shape for scale in bases(torch.rand(1, 1, 4, 6) + 1)]
        [torch.Size([1, 3, 4, 6])]
        >>> bases.channels
        3
    """

    feature_mean: Tensor
    components: Tensor

    def __init__(self, features: int = 0, components: int = 8) -> None:
        super().__init__()
        components = min(components, features)
        self.channels = 3 + components
        """Number of bases, for `BasisFit`."""
        self.register_buffer("feature_mean", torch.zeros(features))
        self.register_buffer("components", torch.zeros(components, features))

    @torch.no_grad()
    def learn(self, features: Iterable[Float[Tensor, "_ c _ _"]]) -> None:
        """Find the principal components of the features of some frames; a dozen are enough.

        Args:
            features: feature maps of the network, one or a batch at a time.

        Raises:
            ValueError: if there are fewer pixels than components.
        """
        c = len(self.feature_mean)
        count, total, squares = 0, torch.zeros(c).double(), torch.zeros(c, c).double()
        for each in features:
            rows = self._checked(each).detach().double().cpu().movedim(1, -1).reshape(-1, c)
            count, total, squares = count + len(rows), total + rows.sum(0), squares + rows.mT @ rows
        k = len(self.components)
        if count <= k:
            raise ValueError(f"{count} pixels are too few for {k} components; pass more frames")
        mean = total / count
        values, vectors = torch.linalg.eigh(squares / count - torch.outer(mean, mean))
        size = values.clamp(min=torch.finfo(torch.float32).eps * float(values[-1])).rsqrt()
        self.feature_mean.copy_(mean)
        self.components.copy_((vectors * size).mT.flip(0)[:k])

    @torch.no_grad()
    def forward(
        self,
        depth: Float[Tensor, "b 1 h w"],
        features: Float[Tensor, "b c h2 w2"] | None = None,
    ) -> list[Float[Tensor, "b _ _ _"]]:
        """Bases for `BasisFit`: those of the depth, then the components at their own resolution.

        Args:
            depth: output of the network, in any unit; if it is disparity, its inverse.
            features: its feature map, if the bases use one.

        Returns:
            One tensor, or two with features, for `BasisFit`.

        Raises:
            ValueError: if the median depth is not positive, or features are missing or not yet
                learned.
        """
        if not latent.is_valid(depth.flatten(1).median(1).values).all() or depth.isnan().any():
            raise ValueError(
                "a depth map's median is not above 0, or it contains NaN; pass the depth of "
                "the network, or 1 / disparity"
            )
        median = depth.flatten(1).median(1).values[:, None, None, None]
        d = (depth / median).clamp(1 / REACH, REACH)
        bases = [torch.cat([latent.to_latent(d), 1 / d, d], 1)]
        if features is None and not len(self.feature_mean):
            return bases
        if not self.components.any():
            raise ValueError("the principal components are not known yet; call `learn` first")
        if features is None:
            raise ValueError(f"these bases need a feature map of {len(self.feature_mean)} channels")
        off = self._checked(features) - self.feature_mean[:, None, None]
        return [*bases, torch.einsum("kc,bchw->bkhw", self.components, off.to(self.components))]

    def _checked(self, features: Tensor) -> Tensor:
        if features.ndim != 4 or features.shape[1] != len(self.feature_mean):
            raise ValueError(
                f"features are {list(features.shape)}; expected [batch, {len(self.feature_mean)}, "
                "height, width]"
            )
        return features
