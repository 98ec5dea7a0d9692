# SPDX-License-Identifier: Apache-2.0
"""Shapes in signatures: `Float[Tensor, "*b n m"]`.

With jaxtyping installed (the `dev` extra) the tests check every shape at run time; without it the
annotations are plain text, so using deepbasis needs no extra package.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["Bool", "Float", "Int", "UInt8"]

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8
else:
    try:
        from jaxtyping import Bool, Float, Int, UInt8
    except ModuleNotFoundError:

        class _Unchecked:
            def __class_getitem__(cls, item: tuple[type, str]) -> Any:
                return item[0]

        Bool = Float = Int = UInt8 = _Unchecked
