# SPDX-License-Identifier: Apache-2.0
"""Cells of tables: one row at one pattern of points, scored once; the score is kept in a file."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from deepbasis.data.files import atomic_write
from deepbasis.data.sample import Frames
from deepbasis.data.sources import CachedFrames, Source, fingerprint
from deepbasis.evaluation import Method, Score, baseline_method, commit, model_method, tally_all
from deepbasis.layer import Errors
from deepbasis.metrics import Tally
from deepbasis_paper.config import RecipeName
from deepbasis_paper.methods import METHODS
from deepbasis_paper.model import Ensemble
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.plan import ROWS, Training, ensure

# Error models of a fit, by the name that tables give them. The first is the paper's, and of the
# paper's recipe; the others are of the corrected one.
READINGS: dict[str, Errors] = {
    "": "paper", "predictive": "independent", "correlated": "correlated"
}  # fmt: skip
BASELINES = ("linear", "kriging")


@dataclass(frozen=True)
class Row:
    """A row of tables, a line of figures: a trained method with its error model, or a baseline."""

    method: str
    regime: str = ""
    input: str = ""
    """Empty, as the regime, for classical baselines."""
    reading: str = ""
    """One of `READINGS`; all methods but bdbf have the first only."""

    @property
    def name(self) -> str:
        """Of the method, as in the paper where that has it."""
        return ", ".join(filter(None, [self.method, self.reading]))

    @property
    def rgb(self) -> bool:
        """Whether the network sees the image alone."""
        return self.input == "rgb"

    @property
    def label(self) -> str:
        """The name, with the input where it is rgb."""
        return f"rgb {self.name}" if self.rgb else self.name

    def trainings(self, plan: Plan) -> list[Training]:
        """One for each seed; none of a baseline."""
        if not self.regime:
            return []
        recipe: RecipeName = "corrected" if self.reading else "paper"
        return [
            Training(plan, self.regime, self.method, self.input, seed, recipe)
            for seed in range(plan.seeds)
        ]


class Kept(NamedTuple):
    """One training's score, its curves, and the code that made it."""

    score: Score
    curves: dict[str, list[float]]
    commit: str


class Cell(NamedTuple):
    """A row at one pattern of points: a score for each seed, and trainings not yet done."""

    kept: list[Kept]
    missing: list[Training]

    def mean(self, metric: str) -> float:
        """Over the seeds."""
        return fmean(one.score.metrics[metric] for one in self.kept)

    def show(self, metric: str, digits: int = 3) -> str:
        """Mean, and with several seeds their standard deviation."""
        if not self.kept:
            return "missing"
        text = f"{self.mean(metric):.{digits}f}"
        values = [one.score.metrics[metric] for one in self.kept]
        return f"{text} ± {stdev(values):.{digits}f}" if len(values) > 1 else text


def rows(regime: str, points: str = "") -> Iterator[Row]:
    """All rows of one half of the paper; baselines where there are points."""
    for method, depth_input in ROWS[regime]:
        for reading in READINGS if method == "bdbf" else ("",):
            yield Row(method, regime, depth_input, reading)
    if points != "0":
        yield from (Row(name) for name in BASELINES)


def source_of(plan: Plan) -> Source:
    """The data set of the plan; its test frames are scored."""
    variant = "val_selection" if plan.val_selection else None
    return Source(
        plan.data, plan.root, plan.frames, plan.size, plan.downscale, variant=variant, centred=True
    )


def score(plan: Plan, row: Row, points: str, source: Source | None = None) -> Cell:
    """Score a row on the test frames of the plan or of another source; train what is missing."""
    source = source or source_of(plan)
    if not row.regime:
        return Cell([_keep(plan, row, points, source, None)], [])
    kept, missing = [], []
    for training in row.trainings(plan):
        model = find_model(training)
        if model is None:
            missing.append(training)
        else:
            kept.append(_keep(plan, row, points, source, model))
    return Cell(kept, missing)


def find_model(training: Training) -> Path | None:
    """The model of a training, trained now if need be; None if it may not be trained."""
    if training.plan.no_train and not training.model.exists():
        return None
    return ensure(training)


def read(row: Row, model: Path | None) -> Method:
    """The method of this row."""
    if model is None:
        return baseline_method(row.method)
    return model_method(_load_model(model, digest(model)), READINGS[row.reading])


@lru_cache(maxsize=1)
def _load_model(path: Path, digest: str) -> Ensemble:
    """The last model is kept: rows that differ in their error model follow each other."""
    return Ensemble.load(path)


def evaluation(plan: Plan, row: Row, *points: str, source: Source | None = None) -> str:
    """The command that scores a row again."""
    source = source or source_of(plan)
    words = ["deepbasis-paper", "evaluate"]
    words += [str(training.model.parent) for training in row.trainings(plan)]
    words += [] if row.regime else ["--baselines", row.method]
    words += ["--data", source.data]
    for name, value in (("root", source.root), ("frames", source.count), ("size", source.size),
                        ("downscale", source.downscale), ("variant", source.variant)):  # fmt: skip
        if value and value != 1:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
    if row.regime and METHODS[row.method].fits:
        words += ["--errors", READINGS[row.reading]]
    words += ["--seed", str(plan.seed)] if plan.seed else []
    return shlex.join([*words, "--points", *points])


def open_test_frames(plan: Plan, source: Source) -> Frames:
    """The test frames of a source; read once, if the plan caches frames."""
    return _cached(source) if plan.cache else source.open("test")


@cache
def _cached(source: Source) -> Frames:
    return CachedFrames(source.open("test"))


@cache
def split(source: Source) -> str:
    """The fingerprint of a source's test frames, from their names."""
    return fingerprint(source.open("test"))


def _keep(plan: Plan, row: Row, points: str, source: Source, model: Path | None) -> Kept:
    """A score from its file, or computed and written there; the name depends on all settings."""
    about = {
        "model": digest(model) if model else row.method,
        "reading": READINGS[row.reading] if model else None,
        "points": points,
        "seed": plan.seed,
        "source": json.loads(json.dumps(asdict(source), default=str)),
        "split": split(source),
    }
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]
    folder = (model.parent if model else plan.runs / row.method) / "scores"
    path = folder / f"{points}-{row.reading or 'plain'}-{key}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        name = model.parent.name if model else row.method
        print(f"scoring {' '.join(filter(None, [name, row.reading]))} at {points}", flush=True)
        tallies = tally_all(
            {name: read(row, model)}, open_test_frames(plan, source), points, plan.seed
        )
        _write(path, about, row, tallies[name])
    return _load(path)


def _write(path: Path, about: dict[str, Any], row: Row, tally: Tally) -> None:
    found = Score.of(row.name, about["points"], tally)
    curves = tally.sparsification()._asdict() | tally.calibration()._asdict()
    kept = {
        "about": about,
        "commit": commit(),
        "score": asdict(found),
        "curves": {name: values.tolist() for name, values in curves.items()},
    }
    with atomic_write(path) as file:
        file.write((json.dumps(kept, indent=1) + "\n").encode())


def _load(path: Path) -> Kept:
    found = json.loads(path.read_text())
    score = found["score"]
    score["interval"] = {name: tuple(ends) for name, ends in score["interval"].items()}
    return Kept(Score(**score), found["curves"], found["commit"])


def digest(path: Path) -> str:
    """Of a file's bytes."""
    return _digest(path, path.stat().st_mtime_ns)


@cache
def _digest(path: Path, written: int) -> str:
    """Of a file's bytes, as it was at the time of writing `written`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
