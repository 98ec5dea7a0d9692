# SPDX-License-Identifier: Apache-2.0
"""Selects the pixels that are scored, and rejects input that cannot be scored."""

from collections.abc import Iterator

from torch import Tensor

from deepbasis.latent import is_valid
from deepbasis.shapes import Float


def at_truth(true_m: Float[Tensor, "*s"], **values: Tensor) -> list[Float[Tensor, "n"]]:
    """True depth, then the values, in float64, at the pixels whose true depth is known."""
    for name, value in values.items():
        if value.shape != true_m.shape:
            shapes = f"{list(value.shape)} but the true depth {list(true_m.shape)}"
            raise ValueError(f"`{name}` is {shapes}; give both the same shape")
    valid = is_valid(true_m)
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
    """Raise an error if a value is 0 or negative; `meaning` explains what that would mean."""
    if bad := int((value <= 0).sum()):
        raise ValueError(f"`{name}` is 0 or negative at {bad} of {len(value)} pixels; {meaning}")


def check_variance(var: Float[Tensor, "n"]) -> None:
    """Raise an error if a variance is 0 or negative: there is no likelihood."""
    meaning = "a variance of 0 would mean a depth without any error: add the variance of the noise"
    check_positive("var", var, meaning)


def images(*tensors: Float[Tensor, "*s"]) -> Iterator[tuple[Tensor, ...]]:
    """Image by image: the last two dimensions are one; a tensor with fewer is one image, too."""
    flat = (t.flatten(0, -3) if t.dim() > 2 else t[None] for t in tensors)
    return zip(*flat, strict=True)
