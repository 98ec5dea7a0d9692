# SPDX-License-Identifier: Apache-2.0
"""Commands in documents and on result pages can be parsed."""

import re
import shlex
from pathlib import Path

import pytest
import tyro

from deepbasis.options import CONFIG
from deepbasis_paper.cli import COMMANDS

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"^\$ deepbasis-paper (.*)$", re.MULTILINE)
DOCUMENTS = {
    path.relative_to(ROOT): lines
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "paper").rglob("*.md")]
    if (lines := COMMAND.findall(path.read_text().replace("\\\n", " ")))
}


def test_there_are_commands():
    assert Path("paper/docs/kitti.md") in DOCUMENTS
    assert sum(map(len, DOCUMENTS.values())) > 100


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_commands_are_parsed(path):
    """One of each kind: those of tables differ in their paths only."""
    lines = {re.sub(r"runs/\S+", "runs/x", line): line for line in DOCUMENTS[path]}
    for line in lines.values():
        words = shlex.split(line, comments=True)
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=words, config=CONFIG)
