# SPDX-License-Identifier: Apache-2.0
"""The paper's two tables on KITTI: published methods, and unguided normalised convolutions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deepbasis.evaluation import BENCHMARK, BENCHMARK_SHOWN
from deepbasis_paper.config import PaperConfig
from deepbasis_paper.targets.cells import Cell, Row, score
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.pages import again, markdown, write_page
from deepbasis_paper.targets.paper import PUBLISHED, UNGUIDED
from deepbasis_paper.targets.plan import Training

POINTS = "sensor"
# Epochs, and learning rates: few parameters take a large one.
EPOCHS = 10
RATES = {"ncnn-l2": 1e-2, "pncnn": 1e-3, "pncnn-exp": 1e-3}
FITS = (Row("bdbf", "mid", "rgbd"), Row("bdbf", "mid", "rgbd", "correlated"))
CLASSICAL = (Row("linear"), Row("kriging"))
# Columns of the second table: our metric, the factor to the unit of the title, digits, and title.
COLUMNS = (
    ("mae", 1000, 2, "MAE (mm)"), ("rmse", 1000, 2, "RMSE (mm)"), ("ause", 1, 3, "AUSE"),
    ("auce", 1, 3, "AUCE"), ("nll", 1, 2, "NLL"),
)  # fmt: skip
PUBLISHED_TEXT = (
    "Rows of the paper are those that it prints, of the benchmark's test frames, whose depth is "
    "not public. Ours are of {frames}, by a {encoder}, at a size reduced by {downscale}; compare "
    "them with published numbers only if these are 1,000 frames of `--val-selection` at full size "
    "by a resnet34."
)
UNGUIDED_TEXT = (
    "Methods without the image, and `bdbf` for comparison. Rows of the paper are those that it "
    "prints, of KITTI's validation frames. Ours are of {frames}, at a size reduced by {downscale}, "
    "on the same points. pNCNN and pNCNN-Exp were written from their equations, and all three are "
    "trained here. AUSE of ours is in metres, a mean over images; the convention of the printed "
    "ones is not stated."
)


@dataclass(frozen=True)
class UnguidedTraining(Training):
    """A training of normalised convolutions, on the points of the sensor."""

    @property
    def name(self) -> str:
        """Folder below the plan's."""
        return f"{self.method}-s{self.seed}"

    @property
    def config(self) -> PaperConfig:
        """Its settings: the frames of the others, and a schedule of its own."""
        return replace(
            super().config, epochs=self.plan.epochs or EPOCHS, lr=RATES[self.method],
            schedule="cosine", encoder="mobilenet_v2", encoder_weights=None,
            normalisation="imagenet",
        )  # fmt: skip


class UnguidedRow(Row):
    """A row of normalised convolutions."""

    def trainings(self, plan: Plan) -> list[Training]:
        """One for each seed."""
        seeds = range(plan.seeds)
        return [UnguidedTraining(plan, self.regime, self.method, "rgb", seed) for seed in seeds]


ROWS = tuple(UnguidedRow(method, "mid", "rgb") for method in RATES)


def write_published(plan: Plan, command: str) -> None:
    """The benchmark's metrics of ours, below the rows that the paper prints."""
    cells = _score(plan, (*FITS, *CLASSICAL))
    lines = [[name, "paper", *(f"{value:.2f}" for value in row)] for name, row in PUBLISHED.items()]
    for (row, _), cell in cells.items():
        values = (_show(cell, ours, factor, 2) for ours, factor, _ in BENCHMARK.values())
        lines.append([row.name, "ours", *values])
    head = ["method", "numbers", *BENCHMARK_SHOWN.values()]
    told = PUBLISHED_TEXT.format(**_about(plan), encoder=plan.encoder)
    _write(plan, "published", command, told, markdown(head, lines), cells)


def write_unguided(plan: Plan, command: str) -> None:
    """Accuracy and uncertainty of normalised convolutions and of ours."""
    cells = _score(plan, (*ROWS, *FITS))
    lines = [
        [name, "paper", *("-" if value is None else f"{value:g}" for value in row)]
        for name, row in UNGUIDED.items()
    ]
    for (row, _), cell in cells.items():
        values = (_show(cell, ours, factor, digits) for ours, factor, digits, _ in COLUMNS)
        lines.append([row.name, "ours", *values])
    head = ["method", "numbers", *(title for *_, title in COLUMNS)]
    told = UNGUIDED_TEXT.format(**_about(plan))
    _write(plan, "unguided", command, told, markdown(head, lines), cells)


def _score(plan: Plan, rows: Iterable[Row]) -> dict[tuple[Row, str], Cell]:
    if plan.data != "kitti":
        raise ValueError(f"this table is about KITTI: choose --data kitti, not {plan.data}")
    return {(row, POINTS): score(plan, row, POINTS) for row in rows}


def _about(plan: Plan) -> dict[str, object]:
    selected = "the benchmark's selection of validation frames"
    frames = selected if plan.val_selection else "the frames of the validation drives"
    return {"frames": frames, "downscale": plan.downscale}


def _show(cell: Cell, metric: str, factor: float, digits: int) -> str:
    return f"{factor * cell.mean(metric):.{digits}f}" if cell.kept else "missing"


def _write(
    plan: Plan,
    target: str,
    command: str,
    told: str,
    table: Sequence[str],
    cells: Mapping[tuple[Row, str], Cell],
) -> None:
    rows = [row for row, _ in cells]
    lines = [told, "", *table, *again(plan, rows, [POINTS])]
    write_page(plan, target, command, lines, cells)
