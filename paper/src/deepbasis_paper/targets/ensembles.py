# SPDX-License-Identifier: Apache-2.0
"""The ensembles of the paper's table 1 that it does not evaluate, trained for a shorter time."""

from dataclasses import dataclass, replace

from deepbasis_paper.config import PaperConfig
from deepbasis_paper.targets.cells import Row, score
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.pages import again, table, write_page
from deepbasis_paper.targets.plan import Training, points_to_test

METHODS = ("dropout", "dropout+log", "bootstrap", "bootstrap+log")
TESTED = ("5%", "1%")
TEXT = (
    "Ensembles of the paper's table 1 that it does not evaluate. **They were trained for {epochs} "
    "epochs each, a third of the {full} of other methods without a fit**, since bootstrap takes "
    "five trainings; compare them with each other, and with `log` below, which had the full time."
)


@dataclass(frozen=True)
class ShortTraining(Training):
    """A training of a third of the usual epochs."""

    @property
    def name(self) -> str:
        """Folder below the plan's."""
        return f"short-{super().name}"

    @property
    def config(self) -> PaperConfig:
        """Its settings."""
        usual = super().config
        return replace(usual, epochs=max(1, usual.epochs // 3))


class ShortRow(Row):
    """A row of a short training."""

    def trainings(self, plan: Plan) -> list[Training]:
        """One for each seed."""
        seeds = range(plan.seeds)
        return [ShortTraining(plan, self.regime, self.method, self.input, seed) for seed in seeds]


def write(plan: Plan, command: str) -> None:
    """Score the ensembles, and `log` for comparison."""
    rows = [*(ShortRow(name, "mid", "rgbd") for name in METHODS), Row("log", "mid", "rgbd")]
    tested = points_to_test(plan, "mid", TESTED)
    cells = {(row, points): score(plan, row, points) for points in tested for row in rows}
    short, full = (row.trainings(plan)[0].config.epochs for row in (rows[0], rows[-1]))
    lines = [TEXT.format(epochs=short, full=full), ""]
    for points in tested:
        here = {row: cell for (row, at), cell in cells.items() if at == points}
        lines += [f"## Tested with {points}", "", *table(here, {}, points)]
    write_page(plan, "ensembles", command, [*lines, *again(plan, rows, tested)], cells)
