# SPDX-License-Identifier: Apache-2.0
"""Writing a model as two graphs of ONNX: the network, for any image size, and the fit."""

import json
import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepbasis.data.extras import need
from deepbasis.model import Completer
from deepbasis.nets.folding import fold
from deepbasis.nets.foreign import ForeignBases
from deepbasis.nets.network import Network
from deepbasis.portable.fit_graph import FitGraph

WHAT = "exporting a model"
OUTPUTS = ("log_depth", "variance", "depth", "std", "low90", "high90")
# Size of the image that the graphs are traced with; they take any other.
TRACED = (72, 104)
OPSET = 18


class NetworkGraph(nn.Module):
    """The network with its maps as a plain tuple: those of the kernel, the widening of the prior,
    then the bases.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.bases = fold(network.bases).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.familiarity = network.familiarity

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Embedding and amplitude, if the kernel is learned, `scale` and `offset_var` of a
        `Widening`, and the bases, coarse to fine.
        """
        bases, embedding, amplitude, summary = self.bases(image)
        by = self.familiarity.widening(summary)
        widening = torch.tensor([1.0, 0.0]) if by is None else torch.cat(by[:2])
        return (*(x for x in (embedding, amplitude) if x is not None), widening, *bases)


def export(model: Completer, network_path: Path, fit_path: Path, points: int) -> None:
    """Write both graphs; if one fails, neither is written.

    Args:
        model: to export.
        network_path: of the network: image [1, 3, h, w] of uint8 to its maps.
        fit_path: of the fit: points and maps to depth with error bars.
        points: maximum number of points.
    """
    for module in ("onnx", "onnxscript"):
        need(module, "onnx", WHAT)
    if isinstance(model.network.bases, ForeignBases):
        raise ValueError(
            "a third-party network cannot be exported; export a model whose network is ours, such "
            "as indoor"
        )
    learned = model.network.bases.head is not None
    network = NetworkGraph(model.network)
    graph = FitGraph(model.network.fit, points, embedding=learned)
    image = torch.zeros(1, 3, *TRACED, dtype=torch.uint8)
    with torch.no_grad():
        maps = network.eval()(image)
    names = ["embedding", "amplitude"] if learned else []
    names += ["widening", *(f"bases{i}" for i in range(len(maps) - len(names) - 1))]
    size = model.network.usual_size.size
    usual = None if size is None else [int(side) for side in size]
    known = {"points": points, "usual_size": usual, "training": model.card.training}
    about = {"deepbasis": json.dumps(known)}
    measured = torch.zeros(points, 4)
    measured[:3] = torch.tensor([[10.0, 20, 2, 0], [50, 40, 3, 0], [90, 60, 2.5, 0]])
    inputs = (measured, *(() if learned else (image,)), *maps)
    given = ["points", *([] if learned else ["image"]), *names]
    shapes = (
        None, _any_size(), tuple(_any_size() if x.dim() == 4 else None for x in inputs[2:])
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=network_path.parent, prefix=".export-") as folder:
        parts = [Path(folder) / path.name for path in (network_path, fit_path)]
        _write(network, (image,), parts[0], ["image"], names, (_any_size(),), about)
        _write(graph.eval(), inputs, parts[1], given, list(OUTPUTS), shapes, about)
        for part, path in zip(parts, (network_path, fit_path), strict=True):
            part.replace(path)


def _any_size() -> dict[int, Any]:
    return {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}


def _write(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    path: Path,
    given: Sequence[str],
    found: Sequence[str],
    shapes: tuple[Any, ...],
    about: dict[str, str],
) -> None:
    from torch.onnx import export as to_program

    from deepbasis.portable.onnx_inverse import spd_inverse_loop

    own: dict[Any, Any] = {torch.ops.deepbasis.spd_inverse.default: spd_inverse_loop}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        for name in ("torch.onnx", "onnxscript", "onnx_ir"):
            logging.getLogger(name).setLevel(logging.ERROR)
        program = to_program(
            module, inputs, dynamo=True, input_names=list(given), output_names=list(found),
            dynamic_shapes=shapes, opset_version=OPSET,
            custom_translation_table=own, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update(about)
    program.save(str(path))
