# SPDX-License-Identifier: Apache-2.0
"""Frames that end their workers, remembered by a process of its own: no heavy import is here."""

from collections import Counter


class Attempts:
    """Remembers on which frames workers have died without an error, killed or out of memory."""

    def __init__(self) -> None:
        self.alone: dict[int, str | None] = {}
        self.lost: dict[int, Counter[str]] = {}

    def begin(self, task: int) -> dict[str, int] | None:
        """A worker begins a group: None if it is the first, else how often frames were fatal."""
        if task not in self.alone:
            self.alone[task] = None
            return None
        lost = self.lost.setdefault(task, Counter())
        if (name := self.alone[task]) is not None:
            lost[name] += 1
            self.alone[task] = None
        return dict(lost)

    def work_on(self, task: int, name: str | None) -> None:
        """The worker has only this frame in hand."""
        self.alone[task] = name

    def end(self, task: int) -> None:
        """The group is done."""
        self.alone.pop(task, None)
        self.lost.pop(task, None)
