# SPDX-License-Identifier: Apache-2.0
"""Models x point patterns on a data set: one table, with all that is needed to make it again."""

import csv
import io
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import deepbasis
from deepbasis import classical
from deepbasis.data.files import whole
from deepbasis.data.points import WithPoints
from deepbasis.data.sample import Frames, Sample
from deepbasis.data.sources import Source, fingerprint
from deepbasis.data.training import parse_points
from deepbasis.latent import LAPLACE, Shape
from deepbasis.layer import Errors
from deepbasis.metrics import CONVENTIONS, Tally, confidence
from deepbasis.model import Completer, Variance, load
from deepbasis.prediction import Prediction
from deepbasis.shapes import Float, UInt8
from deepbasis.sparse import Pattern

# What the screen shows; the files hold every metric.
SHOWN = ("mae", "rmse", "delta1", "ause", "auce", "auce_all", "nll", "nees", "coverage90")
# What KITTI's benchmark tells: our metric, and the factor from our unit to its own.
BENCHMARK = {
    "irmse_1/km": ("irmse", 1.0),
    "imae_1/km": ("imae", 1.0),
    "rmse_mm": ("rmse", 1000.0),
    "mae_mm": ("mae", 1000.0),
}
BENCHMARK_TITLE = "The same in the units of KITTI's benchmark:"
CLASSICAL = ("nearest", "linear", "kriging", "colourisation")


class Answer(NamedTuple):
    """Log depth of one frame, its variance, and the shape of its errors."""

    mean: Float[Tensor, "h w"]
    var: Float[Tensor, "h w"]
    shape: Shape = LAPLACE


Method = Callable[[UInt8[Tensor, "3 h w"], Float[Tensor, "1 h w"]], Answer]


@dataclass(frozen=True)
class Score:
    """One row of the table: a method at one pattern of points."""

    method: str
    points: str
    metrics: dict[str, float]
    """Means over images; see `deepbasis.metrics.CONVENTIONS`."""
    interval: dict[str, tuple[float, float]]
    """Bootstrap interval of each mean, 95 %, over images."""

    @classmethod
    def of(cls, method: str, points: str, tally: Tally) -> "Score":
        """What a tally says."""
        found = tally.finish() | {"auce_all": tally.calibration().area}
        return cls(method, points, found, confidence(tally.per_image()))

    def with_benchmark(self) -> "Score":
        """The same, and KITTI's numbers in its units."""
        told = {name: factor * self.metrics[ours] for name, (ours, factor) in BENCHMARK.items()}
        return replace(self, metrics=self.metrics | told)


def model_method(model: Completer) -> Method:
    """A trained model, asked for one frame at a time."""

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)

    def complete(image: Tensor, sparse: Tensor) -> Answer:
        parts = model(image[None].to(device), sparse[None].to(device))
        one = Prediction(*(part[0, 0].cpu() for part in parts))
        return Answer(one.mean, one.var, model.shape(one, sparse[0]))

    return complete


def classical_method(name: str) -> Method:
    """A completer without a network."""
    known = {key: getattr(classical, key) for key in CLASSICAL}
    if name not in known:
        raise ValueError(f"there is no classical completer {name!r}; choose {', '.join(known)}")

    def complete(image: Tensor, sparse: Tensor) -> Answer:
        mean, var = known[name](image, sparse)
        return Answer(mean[0], var[0])

    return complete


def open_methods(
    models: Sequence[Path],
    classics: Sequence[str],
    errors: Sequence[Errors] = (),
    variances: Sequence[Variance] = (),
) -> dict[str, Method]:
    """Methods by the name that the table gives them: the file's, or its folder's.

    Without `errors` or `variances` each model takes them as it was made to.
    """
    readings = list(product(errors or (None,), variances or (None,)))
    found: dict[str, Method] = {}
    taken = set(classics)
    for path in models:
        file = path / "model.safetensors" if path.is_dir() else path
        name = file.resolve().parent.name if file.name == "model.safetensors" else file.stem
        if name in taken:
            raise ValueError(f"two rows of the table would be called {name!r}; rename a model")
        taken.add(name)
        for reading in readings:
            label = " ".join([name, *filter(None, reading)])
            found[label] = model_method(load(path).assume(*reading))
    return found | {name: classical_method(name) for name in classics}


def evaluate(
    methods: dict[str, Method],
    frames: Frames,
    points: Sequence[str],
    seed: int = 0,
    workers: int = 0,
) -> Iterator[Score]:
    """Score every method at every pattern, on the same points, one pattern after the other."""
    for word in points:
        for name, tally in tally_all(methods, frames, word, seed, workers).items():
            yield Score.of(name, word, tally)


def tally_all(
    methods: dict[str, Method], frames: Frames, points: str, seed: int = 0, workers: int = 0
) -> dict[str, Tally]:
    """All that is known of every method at one pattern, on the same points.

    Classical completers have nothing to say without points, and are left out there.
    """
    pattern = parse_points(points)
    if not isinstance(pattern, Pattern | None):
        raise ValueError(f"points {points!r} are a range; evaluation wants one number at a time")
    tallies = {name: Tally() for name in methods if not (points == "0" and name in CLASSICAL)}
    loader: DataLoader[Sample] = DataLoader(
        WithPoints(frames, pattern, seed=seed),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=workers,
    )
    for sample in loader:
        for name, tally in tallies.items():
            answer = methods[name](sample.image, sample.sparse)
            tally.add(sample.name, answer.mean, answer.var, sample.depth[0], shape=answer.shape)
    return tallies


def table(scores: Sequence[Score], shown: Sequence[str] = SHOWN) -> str:
    """The main metrics as text."""
    head = f"{'points':<10} {'method':<24}" + "".join(f"{name:>11}" for name in shown)
    rows = [
        f"{score.points:<10} {score.method:<24}"
        + "".join(f"{score.metrics[name]:11.3f}" for name in shown)
        for score in scores
    ]
    return "\n".join([head, *rows])


def markdown(scores: Sequence[Score], shown: Sequence[str] = SHOWN) -> str:
    """The main metrics for a page; the best number of each column and pattern is bold."""
    lines = [
        "| points | method | " + " | ".join(shown) + " |",
        "|---|---|" + "---:|" * len(shown),
    ]
    for score in scores:
        rivals = [other for other in scores if other.points == score.points]
        cells = []
        for name in shown:
            best = min(rivals, key=lambda rival: _distance(name, rival.metrics[name]))
            text = f"{score.metrics[name]:.3f}"
            cells.append(f"**{text}**" if score is best else text)
        lines.append(f"| {score.points} | {score.method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _distance(name: str, value: float) -> float:
    """How far a metric is from where it should be."""
    ideal = {"delta1": 100.0, "nees": 1.0, "coverage90": 0.9}
    return abs(value - ideal[name]) if name in ideal else value


def write(out: Path, scores: Sequence[Score], source: Source, frames: Frames, command: str) -> None:
    """Write OUT.json, with everything, OUT.csv, with the numbers, and OUT.md, to be read."""
    about: dict[str, Any] = {
        "command": command,
        "version": deepbasis.__version__,
        "commit": commit(),
        "data": json.loads(json.dumps(asdict(source), default=str)),
        "split": fingerprint(frames),
        "convention": CONVENTIONS["images"],
        "rows": [asdict(score) for score in scores],
    }
    with whole(Path(f"{out}.json")) as file:
        file.write((json.dumps(about, indent=1) + "\n").encode())
    text = io.StringIO()
    names = list(scores[0].metrics)
    writer = csv.writer(text, lineterminator="\n")
    bounds = [f"{name} {end}" for name in scores[0].interval for end in ("low", "high")]
    writer.writerow(["method", "points", *names, *bounds])
    for score in scores:
        ends = [end for name in score.interval for end in score.interval[name]]
        writer.writerow([score.method, score.points, *score.metrics.values(), *ends])
    with whole(Path(f"{out}.csv")) as file:
        file.write(text.getvalue().encode())
    told = f"{len(frames)} frames, split {fingerprint(frames)}, code {commit()}; "
    page = [f"# {out.stem}", markdown(scores)]
    if source.data == "kitti":
        page += [BENCHMARK_TITLE, markdown(scores, list(BENCHMARK))]
    page += [told + CONVENTIONS["images"], f"```text\n$ {command}\n```\n"]
    with whole(Path(f"{out}.md")) as file:
        file.write("\n\n".join(page).encode())


def commit() -> str:
    """The code's commit, if it runs from a clone; "+" means that files were changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        run = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()


def run(
    models: Sequence[Path],
    classics: Sequence[str],
    source: Source,
    points: Sequence[str],
    out: Path | None,
    command: str,
    errors: Sequence[Errors] = (),
    variances: Sequence[Variance] = (),
    seed: int = 0,
    workers: int = 0,
) -> list[Score]:
    """Evaluate, show the table row by row, write the files."""
    methods = open_methods(models, classics, errors, variances)
    if not methods or (set(points) == {"0"} and not models):
        raise ValueError(
            "nothing to evaluate; name a model, or a --classical completer and points for it"
        )
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    frames = source.open("test")
    torch.manual_seed(seed)
    scores: list[Score] = []
    for score in evaluate(methods, frames, points, seed, workers):
        lines = table([score]).split("\n")
        print(lines[1] if scores else "\n".join(lines), flush=True)
        scores.append(score.with_benchmark() if source.data == "kitti" else score)
    if source.data == "kitti":
        print(f"{BENCHMARK_TITLE}\n{table(scores, list(BENCHMARK))}")
    print(f"{len(frames)} frames, split {fingerprint(frames)}; {CONVENTIONS['images']}")
    if out is not None:
        write(out, scores, source, frames, command)
        print(f"written to {out}.json, {out}.csv and {out}.md")
    return scores
