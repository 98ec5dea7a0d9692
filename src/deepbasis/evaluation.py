# SPDX-License-Identifier: Apache-2.0
"""Models x point patterns on a data set: one table, with all that is needed to reproduce it."""

import csv
import io
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import deepbasis
from deepbasis import baselines
from deepbasis.data.files import atomic_write
from deepbasis.data.sample import Frames, Sample
from deepbasis.data.sources import Source, fingerprint
from deepbasis.data.training import parse_points
from deepbasis.data.with_points import WithPoints
from deepbasis.latent import LAPLACE, ErrorDistribution
from deepbasis.layer import Errors
from deepbasis.metrics import CONVENTIONS, Tally, confidence
from deepbasis.model import load
from deepbasis.patterns import Pattern
from deepbasis.result import Completion
from deepbasis.shapes import Float, UInt8

# What tables show, and its title there; the .json and .csv files hold every metric.
SHOWN = {
    "mae": "MAE (m)",
    "rmse": "RMSE (m)",
    "delta1": "delta1 (%)",
    "ause": "AUSE (m)",
    "auce": "AUCE",
    "auce_all": "AUCE, pooled",
    "nll": "NLL (nats)",
    "nees": "NEES",
    "coverage90": "90 % coverage",
}
# Metrics of KITTI's benchmark: our metric, the factor from our unit to its own, and the title.
BENCHMARK = {
    "irmse_1/km": ("irmse", 1.0, "iRMSE (1/km)"),
    "imae_1/km": ("imae", 1.0, "iMAE (1/km)"),
    "rmse_mm": ("rmse", 1000.0, "RMSE (mm)"),
    "mae_mm": ("mae", 1000.0, "MAE (mm)"),
}
BENCHMARK_SHOWN = {name: title for name, (_, _, title) in BENCHMARK.items()}
BENCHMARK_TITLE = "The same in the units of KITTI's benchmark:"
BASELINES = ("nearest", "linear", "kriging", "colourisation")


class Estimate(NamedTuple):
    """Log depth of one frame, its variance, and the distribution of its errors."""

    mean: Float[Tensor, "h w"]
    var: Float[Tensor, "h w"]
    distribution: ErrorDistribution = LAPLACE


Method = Callable[[UInt8[Tensor, "3 h w"], Float[Tensor, "1 h w"]], Estimate]


@runtime_checkable
class Model(Protocol):
    """What can be evaluated: a `Completer`, or another model with its interface."""

    def to(self, device: torch.device) -> object:
        """Move to a device."""

    def complete(self, image: Any, points: Any, *, errors: Errors | None) -> Completion:
        """Depth with an error bar at every pixel of one image."""


@dataclass(frozen=True)
class Score:
    """One row of the table: a method at one pattern of points."""

    method: str
    points: str
    metrics: dict[str, float]
    """Means over images; see `deepbasis.metrics.CONVENTIONS`."""
    interval: dict[str, tuple[float, float]]
    """Bootstrap interval of each mean, 95 %, over images; empty for a single image."""

    @classmethod
    def of(cls, method: str, points: str, tally: Tally) -> "Score":
        """The score of a tally."""
        found = tally.finish() | {"auce_all": tally.calibration().area}
        interval = confidence(tally.per_image()) if len(tally.rows) > 1 else {}
        return cls(method, points, found, interval)

    def with_benchmark(self) -> "Score":
        """The same, with KITTI's metrics in its units."""
        values = {
            name: factor * self.metrics[ours] for name, (ours, factor, _) in BENCHMARK.items()
        }
        return replace(self, metrics=self.metrics | values)


def model_method(model: Model, errors: Errors | None = None) -> Method:
    """A model as a method that completes one frame at a time."""
    model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def complete(image: Tensor, sparse: Tensor) -> Estimate:
        out = model.complete(image.permute(1, 2, 0).numpy(), sparse[0].numpy(), errors=errors)
        mean, var = torch.from_numpy(out.latent_mean), torch.from_numpy(out.latent_var)
        return Estimate(mean, var, out.error_distribution)

    return complete


def baseline_method(name: str) -> Method:
    """A classical baseline."""
    known = {key: getattr(baselines, key) for key in BASELINES}
    if name not in known:
        raise ValueError(f"there is no baseline {name!r}; choose {', '.join(known)}")

    def complete(image: Tensor, sparse: Tensor) -> Estimate:
        mean, var = known[name](image, sparse)
        return Estimate(mean[0], var[0])

    return complete


def open_methods(
    models: Sequence[Path],
    classical: Sequence[str],
    errors: Sequence[Errors] = (),
    load: Callable[[Path], Model] = load,
) -> dict[str, Method]:
    """Methods by the name that the table gives them: that of the file, or of its folder.

    Without `errors` each model uses its own error model; otherwise there is a row for each.
    """
    found: dict[str, Method] = {}
    taken = set(classical)
    for path in models:
        file = path / "model.safetensors" if path.is_dir() else path
        name = file.resolve().parent.name if file.name == "model.safetensors" else file.stem
        if name in taken:
            raise ValueError(f"two rows of the table would be called {name!r}; rename a model")
        taken.add(name)
        model = load(path)
        for option in errors or (None,):
            found[" ".join(filter(None, [name, option]))] = model_method(model, option)
    return found | {name: baseline_method(name) for name in classical}


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
    """Tallies of every method at one pattern, on the same points.

    Classical baselines need points, and are left out without them.
    """
    pattern = parse_one(points)
    tallies = {name: Tally() for name in methods if not (points == "0" and name in BASELINES)}
    loader: DataLoader[Sample] = DataLoader(
        WithPoints(frames, pattern, seed=seed),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=workers,
    )
    for sample in loader:
        for name, tally in tallies.items():
            mean, var, distribution = methods[name](sample.image, sample.sparse)
            tally.add(sample.name, mean, var, sample.depth[0], distribution=distribution)
    return tallies


def table(scores: Sequence[Score], shown: Mapping[str, str] = SHOWN) -> str:
    """The main metrics as text."""
    width = {name: max(9, 2 + len(title)) for name, title in shown.items()}
    titles = "".join(title.rjust(width[name]) for name, title in shown.items())
    head = f"{'points':<10} {'method':<24}{titles}"
    rows = [
        f"{score.points:<10} {score.method:<24}"
        + "".join(f"{score.metrics[name]:{width[name]}.3f}" for name in shown)
        for score in scores
    ]
    return "\n".join([head, *rows])


def markdown(scores: Sequence[Score], shown: Mapping[str, str] = SHOWN) -> str:
    """The main metrics for a page; the best number of each column and pattern is bold."""
    lines = [
        "| points | method | " + " | ".join(shown.values()) + " |",
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
    with atomic_write(Path(f"{out}.json")) as file:
        file.write((json.dumps(about, indent=1) + "\n").encode())
    text = io.StringIO()
    names = list(scores[0].metrics)
    writer = csv.writer(text, lineterminator="\n")
    bounds = [f"{name} {end}" for name in scores[0].interval for end in ("low", "high")]
    writer.writerow(["method", "points", *names, *bounds])
    for score in scores:
        ends = [end for name in score.interval for end in score.interval[name]]
        writer.writerow([score.method, score.points, *score.metrics.values(), *ends])
    with atomic_write(Path(f"{out}.csv")) as file:
        file.write(text.getvalue().encode())
    foot = f"{len(frames)} frames, split {fingerprint(frames)}, code {commit()}; "
    page = [f"# {out.stem}", markdown(scores)]
    if source.data == "kitti":
        page += [BENCHMARK_TITLE, markdown(scores, BENCHMARK_SHOWN)]
    page += [foot + CONVENTIONS["images"], f"```text\n$ {command}\n```\n"]
    with atomic_write(Path(f"{out}.md")) as file:
        file.write("\n\n".join(page).encode())


def commit() -> str:
    """The commit of the code, if it runs from a clone; "+" means uncommitted changes."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        run = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()


def parse_one(points: str) -> Pattern | None:
    """A pattern of points; None for the data set's own."""
    pattern = parse_points(points)
    if not isinstance(pattern, Pattern | None):
        raise ValueError(f"points {points!r} are a range; evaluation takes one number at a time")
    return pattern


def report(
    methods: dict[str, Method],
    source: Source,
    points: Sequence[str],
    out: Path | None,
    command: str,
    seed: int = 0,
    workers: int = 0,
) -> list[Score]:
    """Evaluate, print the table row by row, write the files."""
    for one in points:
        parse_one(one)  # refused before anything is computed
    frames = source.open("test")
    torch.manual_seed(seed)
    scores: list[Score] = []
    for score in evaluate(methods, frames, points, seed, workers):
        lines = table([score]).split("\n")
        print(lines[1] if scores else "\n".join(lines), flush=True)
        scores.append(score.with_benchmark() if source.data == "kitti" else score)
    if source.data == "kitti":
        print(f"{BENCHMARK_TITLE}\n{table(scores, BENCHMARK_SHOWN)}")
    print(f"{len(frames)} frames, split {fingerprint(frames)}; {CONVENTIONS['images']}")
    if out is not None:
        write(out, scores, source, frames, command)
        print(f"written to {out}.json, {out}.csv and {out}.md")
    return scores
