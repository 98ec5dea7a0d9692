# SPDX-License-Identifier: Apache-2.0
"""Every public name says what it takes, what it gives and when it refuses; the site shows this."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import deepbasis
from deepbasis import baselines, fit, latent, metrics, patterns, points
from deepbasis.joint import Quantity, Size
from deepbasis.model import Card, Scene
from deepbasis.result import Outlier

CLASSES = [
    deepbasis.Completer, deepbasis.Completion, deepbasis.BasisFit, deepbasis.FrozenBases,
    Scene, Card, Outlier, Quantity, Size,
]  # fmt: skip


def public(module: Any) -> Iterator[Any]:
    """Functions and classes that are a module's own, or in its `__all__`."""
    for name in getattr(module, "__all__", vars(module)):
        found = getattr(module, name)
        own = hasattr(module, "__all__") or getattr(found, "__module__", "") == module.__name__
        if own and not name.startswith("_") and (inspect.isclass(found) or callable(found)):
            yield found


def is_class(found: Any) -> bool:
    return inspect.isclass(found) and "deepbasis" in found.__module__


def members(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A class with its own `__init__`, and its own methods; properties have no arguments."""
    if issubclass(cls, torch.nn.Module):
        yield cls.__name__, cls
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function):
            yield f"{cls.__name__}.{name}", function


def documented() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {"load": deepbasis.load}
    # Implementations of a protocol are described by it.
    described = {f"{c}.{m}" for c in ("Laplace", "StudentT") for m in vars(latent.Laplace)}
    for one in [*CLASSES, *(o for m in MODULES for o in public(m))]:
        if is_class(one):
            found |= {name: it for name, it in members(one) if name not in described}
        elif inspect.isfunction(one):
            found[f"{one.__module__.split('.')[1]}.{one.__name__}"] = one
    return found


MODULES = (fit, metrics, latent, patterns, points, baselines)
DOCUMENTED = documented()
RECORDS = [
    one
    for one in [*CLASSES, *(o for m in MODULES for o in public(m))]
    if is_class(one) and (dataclasses.is_dataclass(one) or hasattr(one, "_fields"))
]


def entries(doc: str, section: str) -> list[str]:
    """Names that a section of a docstring describes."""
    body = re.search(rf"^{section}:\n((?: .*\n?|\n)+)", doc, re.MULTILINE)
    return re.findall(r"^ {4}(\*{0,2}\w+):", body[1], re.MULTILINE) if body else []


def tree(function: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_arguments_result_and_refusals_are_described(name):
    function = inspect.unwrap(DOCUMENTED[name])
    doc = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    arguments = [
        stars.get(one.kind, "") + one.name
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    assert doc.strip()
    if arguments:
        assert entries(doc, "Args") == arguments
        gives = not inspect.isclass(function) and signature.return_annotation not in (None, "None")
        assert bool(re.search(r"^(Returns|Yields):\n {4}\S", doc, re.MULTILINE)) == gives
        if not inspect.isclass(function):
            raised = {
                node.exc.func.id
                for node in ast.walk(tree(function))
                if isinstance(node, ast.Raise)
                and isinstance(node.exc, ast.Call)
                and isinstance(node.exc.func, ast.Name)
            }
            assert raised <= set(entries(doc, "Raises"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_a_record_is_described(record):
    body = tree(record).body[0].body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and not node.target.id.startswith("_"):
            described = isinstance(following, ast.Expr) and isinstance(
                following.value, ast.Constant
            )
            assert described, f"{record.__name__}.{node.target.id}"


def test_the_names_that_users_build_on_are_among_them():
    assert {"load", "Completer.complete", "Scene.complete", "Completion.interval"} <= set(
        DOCUMENTED
    )
    assert {"fit.evidence", "metrics.ause", "Points.from_rows", "BasisFit"} <= set(DOCUMENTED)
    assert {"patterns.parse", "latent.to_latent", "baselines.linear"} <= set(DOCUMENTED)
