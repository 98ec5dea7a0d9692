# SPDX-License-Identifier: Apache-2.0
"""The paper's two tables: trained with many points or few, and tested with those and with fewer."""

from collections.abc import Mapping

from deepbasis_paper.targets.cells import READINGS, Row, rows, score
from deepbasis_paper.targets.claims import claims
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.pages import Cells, again, markdown, table, write_page
from deepbasis_paper.targets.paper import METRICS, Numbers
from deepbasis_paper.targets.paper import table as paper_table
from deepbasis_paper.targets.plan import Training, points_to_test

TESTED = {"mid": ("5%", "1%"), "low": ("500", "50", "0")}
LEGEND = (
    "Ours / the paper's; the best of ours is bold. `bdbf` and `dbf` are fitted as in the paper "
    "(`--recipe paper`). The two rows below `bdbf` are the same networks with our corrections "
    "(`--recipe corrected`): `predictive` has independent errors and the variance of the noise, "
    "`correlated` models errors as spatially correlated. Rows without an input are classical "
    "baselines, which need points."
)


def write(plan: Plan, regime: str, command: str) -> None:
    """Score every row at every pattern, and write the page."""
    tested = points_to_test(plan, regime, TESTED[regime])
    cells = {
        (row, points): score(plan, row, points) for points in tested for row in rows(regime, points)
    }
    paper = paper_table(plan.stands_for, regime)
    fits, others = (
        Training(plan, regime, method, "rgbd").config.epochs for method in ("bdbf", "log")
    )
    budget = f"Trained with points: {tested[0]}; {fits} epochs for fits, {others} for the others."
    lines = [f"{budget} {LEGEND}", ""]
    for points in tested:
        here = {row: cell for (row, at), cell in cells.items() if at == points}
        lines += [f"## Tested with {points}", "", *table(here, paper, points)]
    verdicts = judge(regime, cells, paper, tested[0])
    lines += show_verdicts(verdicts)
    lines += again(plan, list(rows(regime)), tested)
    write_page(plan, regime, command, lines, cells, paper=_plain(paper), claims=verdicts)
    print("\n".join(show_verdicts(verdicts)))


def numbers_of(cells: Cells) -> Numbers:
    """Ours in the form of the paper's."""
    return {
        (points, row.input, row.name): {name: cell.mean(name) for name in (*METRICS, "nees")}
        for (row, points), cell in cells.items()
        if cell.kept
    }


def judge(regime: str, cells: Cells, paper: Numbers, points: str) -> dict[str, dict[str, str]]:
    """Each claim with its goal, the paper's number and ours, for each error model."""
    ours = numbers_of(cells)
    found: dict[str, dict[str, str]] = {}
    names = [Row("bdbf", reading=reading).name for reading in READINGS]
    columns = [("paper", paper, "bdbf"), *((name, ours, name) for name in names)]
    for column, numbers, name in columns:
        for verdict in claims(regime, numbers, name, points):
            found.setdefault(verdict.claim, {"goal": verdict.goal})[column] = str(verdict)
    return found


def show_verdicts(verdicts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """As a table."""
    head = ["claim", *next(iter(verdicts.values()))]
    lines = [[claim, *row.values()] for claim, row in verdicts.items()]
    return ["## Do the paper's claims hold?", "", *markdown(head, lines, len(head))]


def _plain(paper: Numbers) -> dict[str, dict[str, float]]:
    return {" ".join(key): values for key, values in paper.items()}
