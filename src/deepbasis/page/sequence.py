# SPDX-License-Identifier: Apache-2.0
"""Frames in order, each filtered by those before it; any of them can be shown and changed."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from deepbasis.model import Completer, Scene
from deepbasis.result import Completion, Outlier
from deepbasis.shapes import Float, UInt8
from deepbasis.stream import LastFrame, Stream

# The state before every n-th frame is kept, so that going back computes a few frames only.
KEPT_EVERY = 4


class SequenceFrame(NamedTuple):
    """One frame as read."""

    name: str
    image: UInt8[np.ndarray, "h w 3"]
    rows: Float[np.ndarray, "n columns"]
    """Measured points."""
    truth: Float[np.ndarray, "h w"] | None


@runtime_checkable
class FrameSource(Protocol):
    """Where frames come from: a folder or a video."""

    names: tuple[str, ...]
    is_video: bool
    reduced: int
    """How many times frames are narrower than in their file."""
    measured: frozenset[int]
    """Numbers of the frames with a file of points."""

    def read(self, number: int, camera: Float[Tensor, "3 3"] | None) -> SequenceFrame:
        """Read a frame."""
        ...


class ShownFrame(NamedTuple):
    """The frame that was completed last."""

    number: int
    frame: SequenceFrame
    rows: Float[np.ndarray, "n columns"]
    scene: Scene
    before: LastFrame | None
    answer: Completion


class Sequence:
    """Frames of one camera, completed in order as `Completer.stream` does."""

    def __init__(
        self,
        source: FrameSource,
        model: Completer,
        camera: Float[Tensor, "3 3"] | None,
        most: int,
    ) -> None:
        self.source, self.model, self.camera = source, model, camera
        self.names = source.names[:most]
        self.edited: dict[int, Float[np.ndarray, "n columns"]] = {}
        """Points of frames that the user changed."""
        self.states: dict[int, LastFrame | None] = {0: None}
        """What is known before a frame, by its number."""
        self.stream = Stream(model.network.fit)
        self.next = 0
        """Number of the frame that the stream is ready for."""
        self.shown: ShownFrame | None = None

    def play_to(self, number: int) -> Iterator[ShownFrame]:
        """Complete all frames up to this one that are needed for it.

        Frames that cannot be read are passed over, unless it is this one.
        """
        if not 0 <= number < len(self.names):
            raise ValueError(f"there is no frame {number}; choose from 0 to {len(self.names) - 1}")
        if self.shown is not None and number == self.shown.number == self.next - 1:
            yield self.shown
            return
        start = max(first for first in self.states if first <= number)
        if not start <= self.next <= number:
            self._rewind(start, self.states[start])
        while self.next <= number:
            try:
                yield self._advance()
            except ValueError:
                if self.next > number:
                    raise

    def change(self, rows: Float[np.ndarray, "n columns"]) -> ShownFrame:
        """Complete the shown frame again, from other points; those after it are forgotten."""
        number, frame, _, scene, before, _ = self.at
        self._rewind(number, before)
        self.shown = self._add(number, frame, rows, scene)
        self.edited[number] = rows
        self.states = {n: state for n, state in self.states.items() if n <= number}
        return self.shown

    @property
    def points(self) -> Iterator[tuple[str, Float[np.ndarray, "n columns"]]]:
        """Names of frames, and their points: those of the user, or else the measured ones."""
        for number, name in enumerate(self.names):
            if number in self.edited:
                yield name, self.edited[number]
            elif number in self.source.measured:
                with suppress(ValueError, OSError):  # such a frame is passed over
                    yield name, self.source.read(number, self.camera).rows

    @property
    def outliers(self) -> list[Outlier]:
        """Among the points of the shown frame, judged by its other points."""
        shown = self.at
        return list(shown.scene.complete(shown.rows).outliers) if len(shown.rows) else []

    @property
    def at(self) -> ShownFrame:
        """The frame that was completed last."""
        assert self.shown is not None, "play to a frame first"
        return self.shown

    def _rewind(self, number: int, state: LastFrame | None) -> None:
        self.stream = replace(self.stream, last=state, count=number, resets=[])
        self.next = number

    def _advance(self) -> ShownFrame:
        number = self.next
        if number % KEPT_EVERY == 0:
            last = self.stream.last
            self.states[number] = None if last is None else last.light
        self.next = number + 1
        frame = self.source.read(number, self.camera)
        size, usual = frame.image.shape[:2], self.shown and self.shown.frame.image.shape[:2]
        if usual is not None and size != usual:  # before the network runs on it
            raise ValueError(
                f"{frame.name} is {size[0]} x {size[1]} pixels (height x width), but the other "
                f"frames are {usual[0]} x {usual[1]}; frames of a sequence must have the same size"
            )
        rows = self.edited.get(number, frame.rows)
        scene = self.model.prepare(frame.image, self.camera)
        self.shown = self._add(number, frame, rows, scene)
        return self.shown

    def _add(
        self,
        number: int,
        frame: SequenceFrame,
        rows: Float[np.ndarray, "n columns"],
        scene: Scene,
    ) -> ShownFrame:
        before = self.stream.last
        answer = self.stream.add(scene, rows)
        self.next = number + 1
        return ShownFrame(number, frame, rows, scene, before, answer)
