# SPDX-License-Identifier: Apache-2.0
"""Settings of commands: a dataclass whose fields are options, each with its help written once."""

import ast
import inspect
import textwrap
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import tyro

T = TypeVar("T")

# How options are shown: no `{None}` among the values, one flag for a switch, no prefixes.
CONFIG = (tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)


def options(cls: type[T]) -> type[T]:
    """Class decorator: the docstring below a field is its help, whatever its line breaks.

    A default is shown only where it tells something.
    """
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for entry, after in zip(tree.body, tree.body[1:], strict=False):
        text = after.value.value if _is_text(after) else None  # type: ignore[attr-defined]
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name) and text:
            name = entry.target.id
            kind = cls.__annotations__[name]
            shown = tyro.conf.arg(
                help=" ".join(text.split()),
                help_behavior_hint=_default,
                metavar=_metavar(name, kind),
            )
            cls.__annotations__[name] = Annotated[kind, shown]
    return cls


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _metavar(name: str, kind: Any) -> str | None:
    """How help shows the value, where tyro would show a bare type or braces."""
    if get_origin(kind) is not Annotated:
        return "HEIGHT WIDTH" if name == "size" else None
    positional = get_args(kind)[0]
    if get_origin(positional) is tuple:
        return f"{name.upper().removesuffix('S')} ..."
    return None if get_origin(positional) is Literal else name.upper()


def _default(label: str) -> str:
    return "" if label in ("", "None", "False", "True") else f"(default: {label})"
