# SPDX-License-Identifier: Apache-2.0
"""Which pixels are scored, and what is refused."""

from collections.abc import Iterator

from torch import Tensor

from deepbasis.latent import measured
from deepbasis.shapes import Float


def at_truth(true_m: Float[Tensor, "*s"], **values: Tensor) -> list[Float[Tensor, "n"]]:
    """Truth, then the values, in float64, at the pixels whose true depth is known."""
    for name, value in values.items():
        if value.shape != true_m.shape:
            shapes = f"{list(value.shape)} but the true depth {list(true_m.shape)}"
            raise ValueError(f"`{name}` is {shapes}; give both the same shape")
    valid = measured(true_m)
    if not valid.any():
        raise ValueError("no pixel has a true depth, so nothing can be scored; is the map empty?")
    picked = {name: value.detach()[valid].double() for name, value in values.items()}
    for name, value in picked.items():
        if bad := int((~value.isfinite()).sum()):
            raise ValueError(
                f"`{name}` is NaN or infinite at {bad} of {len(value)} pixels that have a true "
                "depth; find out why before scoring it"
            )
    return [true_m.detach()[valid].double(), *picked.values()]


def check_positive(name: str, value: Float[Tensor, "n"], meaning: str) -> None:
    """Refuse values of 0 and below, and say what they would mean."""
    if bad := int((value <= 0).sum()):
        raise ValueError(f"`{name}` is 0 or negative at {bad} of {len(value)} pixels; {meaning}")


def check_variance(var: Float[Tensor, "n"]) -> None:
    """Refuse variances that no likelihood exists for."""
    meaning = "no variance claims a depth without any error: add the variance of the noise"
    check_positive("var", var, meaning)


def images(*tensors: Float[Tensor, "*s"]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors image by image: the last two dimensions are one; fewer are one image, too."""
    flat = (t.reshape(-1, *t.shape[-2:]) if t.dim() > 2 else t[None] for t in tensors)
    return zip(*flat, strict=True)
