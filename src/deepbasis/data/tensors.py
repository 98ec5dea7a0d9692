# SPDX-License-Identifier: Apache-2.0
"""Tensors with a JSON header in one safetensors file: loading it never runs code."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from deepbasis.data.files import atomic_write, find_file
from deepbasis.data.limits import reading


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write a file atomically."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as file:
        file.write(save(on_cpu, {"deepbasis": json.dumps(header)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that `save_tensors` wrote."""
    find_file(path)
    with reading(path, "a safetensors file"), safe_open(path, "pt") as file:
        header = json.loads((file.metadata() or {}).get("deepbasis", "{}"))
        if not isinstance(header, dict):
            raise ValueError("its header is not a table")
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
