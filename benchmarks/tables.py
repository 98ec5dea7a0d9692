# SPDX-License-Identifier: Apache-2.0
"""Write the tables of the documents anew from docs/results.

Run it in the project's folder after `deepbasis evaluate`: in the model cards and in the page on
correlated errors, a table of results that is followed by its commands gets the numbers of the files
that their --out names; the table of README gets those of `indoor` and of the baselines. Tables of
how much coverage varies get the numbers that are stored in the model.

    python benchmarks/tables.py                   # write the documents
    python benchmarks/tables.py --spread indoor   # print how much the coverage of a model varies
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import deepbasis

DOCUMENTS = [
    "src/deepbasis/weights/*.md", "models/src/deepbasis_models/*.md", "docs/correlated-errors.md",
]  # fmt: skip
COLUMNS = {
    "MAE (m)": "mae", "RMSE (m)": "rmse", "AUSE (m)": "ause", "AUCE, pooled": "auce_all",
    "NLL (nats)": "nll", "NEES": "nees", "Coverage of the 90 % interval": "coverage90",
}  # fmt: skip
BASELINES = {"linear": "linear interpolation", "kriging": "kriging"}
# Two lines of heading, the rows, and the commands below them.
TABLE = re.compile(
    r"(?P<head>\| Points \| Method .*\n\|[-:| ]+\n)(?P<rows>(?:\|.*\n)+)"
    r"(?P<commands>\n```text\n(?:\$ .*\n)+)"
)
SPREAD = re.compile(
    r"(?:\|.*\n)+(?P<command>\n```text\n\$ python benchmarks/tables.py --spread (?P<model>\w+)\n)"
)
SPREAD_HEAD = """\
| Points | Mean | Std over draws of points | Std over frames | 9 of 10 values |
|---|---:|---:|---:|---:|
"""
# Rows of README's table: points, two cells of `indoor`, the paper's, and two of the baselines.
README_ROW = re.compile(
    r"^\| (?P<points>\d+)(?P<rest>| % of the pixels) \| [^|]+ \| [^|]+ \| (?P<paper>[^|]+) \|"
    r"[^|]+\|[^|]+\|$",
    re.MULTILINE,
)


def results(name: str) -> list[dict[str, Any]]:
    """The rows of a file in docs/results."""
    found: list[dict[str, Any]] = json.loads(Path(f"docs/results/{name}.json").read_text())["rows"]
    return found


def cell(metrics: dict[str, float], key: str) -> str:
    """A number as tables show it."""
    return f"{100 * metrics[key]:.1f} %" if key == "coverage90" else f"{metrics[key]:.3f}"


def rows(head: str, commands: str) -> str:
    """The lines of a table, by number of points in the order of the first evaluation."""
    names = re.findall(r"deepbasis evaluate .*--out docs/results/(\S+)", commands)
    found = [row for name in names for row in results(name)]
    order = list(dict.fromkeys(row["points"] for row in found))
    found.sort(key=lambda row: order.index(row["points"]))
    titles = head.splitlines()[0].strip("| ").split(" | ")
    lines = []
    for row in found:
        name, _, errors = row["method"].partition(" ")
        method = BASELINES.get(name, f"`{name}`") + (f", {errors}" if errors else "")
        cells = [cell(row["metrics"], COLUMNS[title]) for title in titles[2:]]
        lines.append(f"| {' | '.join([row['points'].replace('%', ' %'), method, *cells])} |\n")
    return "".join(lines)


def spread(model: str) -> str:
    """The table of how much the coverage of one frame varies, from the header of the model."""
    metrics: Any = deepbasis.load(model).card.metrics
    lines = [SPREAD_HEAD]
    for points, row in metrics["coverage_spread"].items():
        mean = metrics["validation"][points]["coverage_90"]
        cells = [f"{100 * each:.1f} %" for each in (mean, row["draws"], row["frames"])]
        cells.append(f"{100 * row['low']:.0f} to {100 * row['high']:.0f} %")
        lines.append(f"| {' | '.join([points.replace('%', ' %'), *cells])} |\n")
    return "".join(lines)


def readme_row(found: re.Match[str]) -> str:
    """A row of README's table."""
    points = found["points"] + ("%" if found["rest"] else "")
    scores = {
        row["method"]: row["metrics"]
        for name in ("indoor-nyu", "classical-nyu")
        for row in results(name)
        if row["points"] == points
    }
    ours, *others = (
        f"{cell(scores[name], 'mae')} / {cell(scores[name], 'rmse')}" if name in scores else "-"
        for name in ("indoor correlated", "linear", "kriging")
    )
    coverage = f"{100 * scores['indoor correlated']['coverage90']:.0f} %"
    first = f"{found['points']}{found['rest']}"
    return f"| {' | '.join([first, ours, coverage, found['paper'], *others])} |"


def renewed(path: Path) -> str:
    """A document with its tables as the results have them."""
    text = path.read_text()
    if path.name == "README.md":
        return README_ROW.sub(readme_row, text)
    text = SPREAD.sub(lambda found: spread(found["model"]) + found["command"], text)
    return TABLE.sub(
        lambda found: found["head"] + rows(found["head"], found["commands"]) + found["commands"],
        text,
    )


def main() -> None:
    """Rewrite all documents, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spread", metavar="MODEL")
    if model := parser.parse_args().spread:
        print(spread(model), end="")
        return
    for path in (Path("README.md"), *(path for each in DOCUMENTS for path in Path().glob(each))):
        new = renewed(path)
        print(f"{path}: {'as before' if new == path.read_text() else 'changed'}")
        path.write_text(new)


if __name__ == "__main__":
    main()
