# SPDX-License-Identifier: Apache-2.0
"""FrozenBases: depth bases from a monocular depth network that stays as it is."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.shapes import Float

# Depths so many times nearer or farther than an image's median count as that: a disparity of
# nearly 0, as networks give for the sky, would else rule the fit.
REACH = 20.0


class FrozenBases(nn.Module):
    """Bases from a network's depth d, right but for scale, shift or power, and its features.

    They are ln d, 1 / d and d, each with d relative to the image's median, and the principal
    components of the features; `BasisFit` adds the constant. To first order they undo what a
    monocular network cannot know: a scale (the constant), a power (ln d), a shift of depth, since
    ln(d + s) = ln d + s / d + ..., and a shift of disparity, -ln(1 / d + s) = ln d - s d + ...

    Nothing in it has a gradient. The components are learned from some frames, by `learn`.

    Args:
        features: channels of the network's feature map; 0 to do without.
        components: principal components of them to use.

    Example:
        >>> bases = FrozenBases()
        >>> [scale.shape for scale in bases(torch.rand(1, 1, 4, 6) + 1)]
        [torch.Size([1, 3, 4, 6])]
        >>> bases.channels
        3
    """

    middle: Tensor
    turn: Tensor

    def __init__(self, features: int = 0, components: int = 8) -> None:
        super().__init__()
        components = min(components, features)
        self.channels = 3 + components
        """Bases, as `BasisFit` wants to know."""
        self.register_buffer("middle", torch.zeros(features))
        self.register_buffer("turn", torch.zeros(components, features))

    @torch.no_grad()
    def learn(self, features: Iterable[Float[Tensor, "_ c _ _"]]) -> None:
        """Find the principal components of the features of some frames; a dozen will do."""
        c = len(self.middle)
        count, total, squares = 0, torch.zeros(c).double(), torch.zeros(c, c).double()
        for each in features:
            rows = self._checked(each).detach().double().cpu().movedim(1, -1).reshape(-1, c)
            count, total, squares = count + len(rows), total + rows.sum(0), squares + rows.mT @ rows
        k = len(self.turn)
        if count <= k:
            raise ValueError(f"{count} pixels cannot tell {k} components; pass features of frames")
        mean = total / count
        values, vectors = torch.linalg.eigh(squares / count - torch.outer(mean, mean))
        size = values.clamp(min=torch.finfo(torch.float32).eps * float(values[-1])).rsqrt()
        self.middle.copy_(mean)
        self.turn.copy_((vectors * size).mT.flip(0)[:k])

    @torch.no_grad()
    def forward(
        self,
        depth: Float[Tensor, "b 1 h w"],
        features: Float[Tensor, "b c h2 w2"] | None = None,
    ) -> list[Float[Tensor, "b _ _ _"]]:
        """Bases for `BasisFit`: those of the depth, then the components at their own resolution.

        Args:
            depth: what the network says, in any unit; of a network that gives disparity, 1 / that.
            features: its feature map, if the bases were made for one.
        """
        if not latent.measured(depth.flatten(1).median(1).values).all() or depth.isnan().any():
            raise ValueError(
                "a depth map's median is not above 0, or it holds NaN; pass the network's depth, "
                "and 1 / disparity if it gives that"
            )
        middle = depth.flatten(1).median(1).values[:, None, None, None]
        d = (depth / middle).clamp(1 / REACH, REACH)
        bases = [torch.cat([latent.to_latent(d), 1 / d, d], 1)]
        if features is None and not len(self.middle):
            return bases
        if not self.turn.any():
            raise ValueError("the principal components are not known yet; call `learn` first")
        if features is None:
            raise ValueError(f"these bases need a feature map of {len(self.middle)} channels")
        off = self._checked(features) - self.middle[:, None, None]
        return [*bases, torch.einsum("kc,bchw->bkhw", self.turn, off.to(self.turn))]

    def _checked(self, features: Tensor) -> Tensor:
        if features.ndim != 4 or features.shape[1] != len(self.middle):
            raise ValueError(
                f"features are {list(features.shape)}; expected [batch, {len(self.middle)}, "
                "height, width]"
            )
        return features
