# SPDX-License-Identifier: Apache-2.0
"""The exported network in 8-bit integers: file size, CPU time, and error of the depth.

    deepbasis export indoor --out indoor.onnx
    python benchmarks/int8.py indoor.onnx [--encoder-only]

Convolutions are quantised statically by onnxruntime, per channel, calibrated on rendered rooms. The
error is that of the whole model, network and fit, on other rooms. Results are printed and
`indoor-int8.onnx` is written beside the network.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from deepbasis.data.worlds import Worlds

COUNTS = (0, 50, 500)
REPEATS = 15
# To be worth it: the MAE at most 1 % larger, and the time at least a third shorter.
MOST_ERROR, MOST_TIME = 1.01, 2 / 3


class Rooms(CalibrationDataReader):  # type: ignore[misc]
    """Images of rendered rooms, one at a time."""

    def __init__(self, rooms: Worlds) -> None:
        self.images: Iterator[np.ndarray] = (rooms[i].image.numpy() for i in range(len(rooms)))

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next image, or None after the last."""
        image = next(self.images, None)
        return None if image is None else {"image": image[None]}


def quantise(path: Path, rooms: Worlds, *, encoder_only: bool) -> Path:
    """Write the network with its convolutions, or those of its encoder, in 8-bit integers."""
    prepared, small = (path.with_name(f"{path.stem}-{end}.onnx") for end in ("prepared", "int8"))
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    nodes = [node for node in onnx.load(prepared).graph.node if node.op_type == "Conv"]
    kept = [node.name for node in nodes if encoder_only and ".encoder." not in node.input[1]]
    quantize_static(
        prepared, small, Rooms(rooms), op_types_to_quantize=["Conv"], per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, nodes_to_exclude=kept,
    )  # fmt: skip
    prepared.unlink()
    return small


def open_graph(path: Path) -> onnxruntime.InferenceSession:
    """A graph that runs on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def run(graph: onnxruntime.InferenceSession, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs of a graph by name."""
    names = [output.name for output in graph.get_outputs()]
    return dict(zip(names, graph.run(names, given), strict=True))


def cpu_seconds(graphs: list[onnxruntime.InferenceSession], image: np.ndarray) -> list[float]:
    """Median CPU time of each graph; they take turns."""
    found: list[list[float]] = [[] for _ in graphs]
    for _ in range(REPEATS + 1):
        for graph, times in zip(graphs, found, strict=True):
            start = time.process_time()
            run(graph, {"image": image})
            times.append(time.process_time() - start)
    return [float(np.median(times[1:])) for times in found]  # the first warms up


def errors(
    network: onnxruntime.InferenceSession, fit: onnxruntime.InferenceSession, rooms: Worlds
) -> list[float]:
    """MAE in metres at each number of points, mean over rooms."""
    wanted = {x.name: x.shape for x in fit.get_inputs()}
    found = np.zeros((len(rooms), len(COUNTS)))
    for i in range(len(rooms)):
        image, depth = rooms[i].image.numpy()[None], rooms[i].depth[0].numpy()
        maps = {"image": image} | run(network, {"image": image})
        row, column = np.nonzero(depth)
        order = np.random.default_rng(i).permutation(len(row))
        for j, count in enumerate(COUNTS):
            chosen = row[order[:count]], column[order[:count]]
            points = np.zeros(wanted["points"], np.float32)
            points[:count, :3] = np.stack([chosen[1], chosen[0], depth[chosen]], 1)
            given = {k: v for k, v in (maps | {"points": points}).items() if k in wanted}
            off = np.abs(run(fit, given)["depth"] - depth)
            found[i, j] = off[depth > 0].mean()
    return found.mean(0).tolist()


def main() -> None:
    """Print the tables and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", type=Path)
    parser.add_argument("--rooms", type=int, default=10)
    parser.add_argument("--size", type=int, nargs=2, default=(240, 320))
    parser.add_argument("--encoder-only", action="store_true")
    settings = parser.parse_args()
    size = tuple(settings.size)
    path = settings.network
    learn, test = (Worlds("rooms", settings.rooms, size=size, seed=seed) for seed in (101, 102))
    small = quantise(path, learn, encoder_only=settings.encoder_only)
    fit = open_graph(path.with_name(f"{path.stem}-fit.onnx"))
    graphs = [open_graph(path), open_graph(small)]
    seconds = cpu_seconds(graphs, test[0].image.numpy()[None])
    scores = [errors(graph, fit, test) for graph in graphs]
    print(f"onnxruntime {onnxruntime.__version__}, {settings.rooms} rooms of {size[0]} x {size[1]}")
    heads = " | ".join(f"MAE (m), {count} points" for count in COUNTS)
    print(f"| Network | Size (MB) | CPU time (s) | {heads} |\n|---|" + "---:|" * (2 + len(COUNTS)))
    for name, file, taken, mae in zip(
        ("float32", "8-bit integers"), (path, small), seconds, scores, strict=True
    ):
        numbers = " | ".join(f"{x:.3f}" for x in (taken, *mae))
        print(f"| {name} | {file.stat().st_size / 1e6:.1f} | {numbers} |")
    good = seconds[1] <= MOST_TIME * seconds[0]
    good &= all(b <= MOST_ERROR * a for a, b in zip(*scores, strict=True))
    print(
        "worth it" if good else "not worth it: the MAE rises by more than 1 %, or little is saved"
    )


if __name__ == "__main__":
    main()
