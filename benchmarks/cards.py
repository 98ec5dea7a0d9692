# SPDX-License-Identifier: Apache-2.0
"""Write the tables of the model cards anew from docs/results.

Run it in the project's folder after `deepbasis evaluate`: in each card, a table of results that is
followed by its command gets the numbers of the file that the command's --out names.
"""

import json
import re
from pathlib import Path

CARDS = ["src/deepbasis/weights/*.md", "models/src/deepbasis_models/*.md"]
COLUMNS = {"mae": "{:.3f}", "rmse": "{:.3f}", "ause": "{:.3f}", "nll": "{:.3f}", "nees": "{:.3f}"}
BASELINES = {"linear": "linear interpolation", "kriging": "kriging"}
# Two lines of heading, the rows, and the commands below them.
TABLE = re.compile(
    r"(?P<head>\| Points \| Method .*\n\|[-:| ]+\n)(?P<rows>(?:\|.*\n)+)"
    r"(?P<commands>\n```text\n(?:\$ .*\n)+)"
)


def rows(commands: str) -> str:
    """The lines of a table, by number of points in the order of the first evaluation."""
    names = re.findall(r"deepbasis evaluate .*--out docs/results/(\S+)", commands)
    files = [json.loads(Path(f"docs/results/{name}.json").read_text()) for name in names]
    found = [row for file in files for row in file["rows"]]
    order = list(dict.fromkeys(row["points"] for row in found))
    found.sort(key=lambda row: order.index(row["points"]))
    lines = []
    for row in found:
        name, _, errors = row["method"].partition(" ")
        method = BASELINES.get(name, f"`{name}`") + (f", {errors}" if errors else "")
        cells = [form.format(row["metrics"][key]) for key, form in COLUMNS.items()]
        cells += [f"{100 * row['metrics']['coverage90']:.1f} %"]
        lines.append(f"| {' | '.join([row['points'].replace('%', ' %'), method, *cells])} |\n")
    return "".join(lines)


def main() -> None:
    """Rewrite all cards."""
    for card in (path for pattern in CARDS for path in Path().glob(pattern)):
        old = card.read_text()
        new = TABLE.sub(
            lambda found: found["head"] + rows(found["commands"]) + found["commands"], old
        )
        card.write_text(new)
        print(f"{card}: {'changed' if new != old else 'as before'}")


if __name__ == "__main__":
    main()
