# SPDX-License-Identifier: Apache-2.0
"""Which encoder and which decoder: speed of a network, and its accuracy after a fixed time.

    python benchmarks/architectures.py --root nyu --weights mobilenet_v2.safetensors lite0.pth

Every network is trained from ImageNet weights for the same time on one core, on NYU at half size,
by `deepbasis train` with as many epochs as fit into that time. Accuracy is that of 32 validation
frames. Times are CPU times of one thread, the networks taking turns: one image of 320x240 pixels
with batch norms folded, and a training step per frame of 112x152 pixels.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis.data.sources import Source, split_validation, subsample
from deepbasis.data.training import TrainingSet, collate
from deepbasis.evaluation import evaluate, model_method
from deepbasis.model import load
from deepbasis.nets import Architecture, Network
from deepbasis.nets.decoder import DECODERS, Decoded, Decoder, JoinedConv, LightDecoder, LightUp
from deepbasis.nets.folding import fold
from deepbasis.train.config import TrainConfig
from deepbasis.train.run import train

ENCODERS = {"mobilenet_v2": "imagenet", "efficientnet_lite0": "efficientnet_lite"}
POINTS = ("5%", "500", "50", "0")
VALIDATION, SCORED, BATCH, ROUNDS = 64, 32, 4, 5
LOSSES: dict[str, Any] = {"few_points_weight": 0.02, "kernel_weight": 0.3}


class SeparableUp(LightUp):
    """A light step whose convolution is a 1x1 and a 3x3 of each channel."""

    def __init__(self, into: int, skip: int, out: int) -> None:
        super().__init__(into, skip, out)
        self.mix[0] = JoinedConv(into + skip, out, 1, bias=False)
        self.mix.insert(1, nn.Conv2d(out, out, 3, padding=1, groups=out, bias=False))


class SeparableDecoder(LightDecoder):
    """The light decoder with separable convolutions."""

    step = SeparableUp


class HalfSizeDecoder(LightDecoder):
    """The light decoder without a step at full size: its finest bases have stride 2."""

    def forward(
        self, features: list[Tensor], size: tuple[int, int], skip: Tensor | None = None
    ) -> Decoded:
        half = (features[0].shape[2], features[0].shape[3])
        colours = None if skip is None else F.interpolate(skip, half, mode="area")
        bases, last = super().forward(features, half, colours)
        full = F.interpolate(last, size, mode="bilinear", align_corners=False)
        return Decoded(bases, full)


VARIANTS: dict[str, type[Decoder]] = {
    "light": LightDecoder, "separable": SeparableDecoder, "paper": DECODERS["paper"],
    "half size": HalfSizeDecoder,
}  # fmt: skip


def make(encoder: str, decoder: str) -> Network:
    """An untrained network with a kernel."""
    torch.manual_seed(0)
    shape = Architecture(encoder, ENCODERS[encoder], decoder=decoder, embedding=8, head_width=32)
    return Network(shape)


def inference(network: Network) -> Callable[[], Any]:
    """A pass over one image."""
    folded = fold(network.bases)
    image = torch.randint(0, 255, (1, 3, 240, 320), dtype=torch.uint8)

    def run() -> Any:
        with torch.no_grad():
            return folded(image)

    return run


def training_step(network: Network, item: Any) -> Callable[[], Any]:
    """A step of the optimiser."""
    network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    adam = torch.optim.Adam(network.parameters(), fused=True)

    def run() -> None:
        adam.zero_grad()
        network.loss(item, **LOSSES).mean().backward()  # type: ignore[no-untyped-call]
        adam.step()

    return run


def times(calls: dict[Any, Callable[[], Any]]) -> dict[Any, float]:
    """CPU milliseconds of each call, median; they take turns."""
    found: dict[Any, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn:
                found[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Print the table, a row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="of NYU Depth V2")
    parser.add_argument("--weights", type=Path, nargs=2, required=True, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=20, help="of training; 0 for none")
    parser.add_argument("--out", type=Path, default=Path("architectures"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    weights = dict(zip(ENCODERS, given.weights, strict=True))
    DECODERS.update(VARIANTS)
    frames, kept_back = split_validation(
        Source("nyu", given.root, downscale=2).open("train"), VALIDATION
    )
    items = TrainingSet(frames, "2000")
    item = collate([items[index] for index in range(BATCH)])
    names = [("efficientnet_lite0", decoder) for decoder in VARIANTS]
    names += [("mobilenet_v2", "light")]
    networks = {name: make(*name) for name in names}
    image_ms = times({name: inference(one) for name, one in networks.items()})
    step_ms = times({name: training_step(one, item) for name, one in networks.items()})
    del networks
    gc.collect()
    titles = (f"MAE (m), {points}" for points in POINTS)
    print("encoder            | decoder   | image (ms) | step (ms) | epochs |", *titles, sep=" ")
    for encoder, decoder in names:
        a_frame = step_ms[encoder, decoder] / BATCH
        epochs = int(given.minutes * 60e3 / (a_frame * len(frames)))
        cells = []
        if epochs:
            config = TrainConfig(
                given.out / f"{encoder}-{decoder}".replace(" ", "-"), "nyu", given.root,
                downscale=2, cache=True, val_frames=VALIDATION, encoder=encoder,  # type: ignore[arg-type]
                decoder=decoder, encoder_weights=weights[encoder],  # type: ignore[arg-type]
                normalisation=ENCODERS[encoder], epochs=epochs, jitter=0.2, zoom=0.25,  # type: ignore[arg-type]
                lr=5e-4, workers=0, **LOSSES,
            )  # fmt: skip
            config = replace(config, resume=(config.out / "checkpoint.safetensors").exists())
            done = config.out / "model.safetensors"
            method = model_method(load(done if done.exists() else train(config)))
            scores = evaluate({"": method}, subsample(kept_back, SCORED), POINTS)
            cells = [f"{score.metrics['mae']:.4f}" for score in scores]
        print(
            f"{encoder:<18} | {decoder:<9} | {image_ms[encoder, decoder]:10.1f} | {a_frame:9.1f} "
            f"| {epochs:6d} |", *cells, flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
