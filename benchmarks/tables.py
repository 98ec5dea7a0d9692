# SPDX-License-Identifier: Apache-2.0
"""Write the tables of the documents anew from docs/results.

Run it in the project's folder after `deepbasis evaluate`: in the model cards and in the page on
correlated errors, a table of results that is followed by its commands gets the numbers of the files
that their --out names; the table of README gets those of `indoor` and of the baselines. Tables of
how much coverage varies get the numbers that are stored in the model; the table of targets in
docs/models.md gets those of `indoor` and of docs/speed.md.

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
    "docs/models.md",
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
TARGETS = re.compile(r"(?P<head>\| `indoor` on NYU \|.*\n\|[-:| ]+\n)(?:\|.*\n)+")
# MAE and RMSE in metres; smallest and largest value; largest share of the time of version 0.1.
ERRORS = {
    "5%": (0.025, 0.068), "1%": (0.054, 0.120), "500": (0.062, 0.135),
    "50": (0.144, 0.260), "12": (0.240, 0.380), "0": (0.500, 0.680),
}  # fmt: skip
RANGES = {
    "NEES": (0.8, 1.25), "Coverage of the 90 % interval": (0.86, 0.94), "AUCE, pooled": (0, 0.03),
}  # fmt: skip
SPEED = {500: 0.45, 3840: 0.50}
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


def targets() -> str:
    """The rows of the table of targets; numbers are compared as they are shown."""
    found = [row for row in results("indoor-nyu") if row["method"] == "indoor correlated"]
    lines = []
    for points, wanted in ERRORS.items():
        (row,) = [row["metrics"] for row in found if row["points"] == points]
        today = [float(cell(row, key)) for key in ("mae", "rmse")]
        met = [a <= b for a, b in zip(today, wanted, strict=True)]
        verdict = "yes" if all(met) else "MAE only" if met[0] else "RMSE only" if met[1] else "no"
        count = points.replace("%", " % of the pixels") + ("" if "%" in points else " points")
        title = f"MAE / RMSE (m), {count}"
        lines.append([title, *("{:.3f} / {:.3f}".format(*x) for x in (wanted, today)), verdict])
    found += results("indoor-patterns")
    for title, (low, high) in RANGES.items():
        key = COLUMNS[title]
        values = {row["points"]: round(row["metrics"][key], 3) for row in found}
        missed = [points for points, value in values.items() if not low <= value <= high]
        bounds = [
            cell({key: x}, key) for x in (low, high, min(values.values()), max(values.values()))
        ]
        verdict = f"not with {', '.join(missed).replace('%', ' %')}" if missed else "yes"
        lines.append([title, *(f"{a} to {b}" for a, b in (bounds[:2], bounds[2:])), verdict])
    speed = Path("docs/speed.md").read_text()
    for number, limit in SPEED.items():
        (ratio,) = re.findall(rf"^ *{number} \|.*\|.*\|.*\| .* (\S+)$", speed, re.MULTILINE)
        title = f"CPU time relative to version 0.1, {number} points"
        verdict = "yes" if float(ratio) <= limit else "no"
        lines.append([title, f"{limit:.2f}", ratio, verdict])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
    text = TARGETS.sub(lambda found: found["head"] + targets(), text)
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
