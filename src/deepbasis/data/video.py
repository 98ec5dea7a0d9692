# SPDX-License-Identifier: Apache-2.0
"""Frames of video files, read in order with PyAV."""

import threading
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from deepbasis.data.files import find_file
from deepbasis.data.limits import check_count, reading
from deepbasis.shapes import UInt8

VIDEOS = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
# Names that FFmpeg has for the formats of these files.
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,avi,matroska,webm"
# Holds the video that a thread read last: a video has one position, so threads cannot share it.
_LAST = threading.local()


def import_av() -> ModuleType:
    """Import PyAV, with a message on how to install it."""
    try:
        return import_module("av")
    except ModuleNotFoundError as error:
        raise ValueError(
            'video files need PyAV; install it with: pip install "deepbasis[video]"'
        ) from error


def count_frames(path: Path) -> int:
    """Frames of a video, counted without decoding them; a warning if it seems to be cut off."""
    av = import_av()
    count, times = 0, []
    with reading(find_file(path), "a video"), _open(av, path) as container:
        stream = _stream(container, path)
        for packet in container.demux(stream):
            if packet.size:
                count += 1
                times.append(packet.dts or 0)
        stated = stream.frames  # 0 if the file does not say
        # Where a frame is repeated, an .avi states more frames than it stores.
        seconds = (times[-1] - times[0]) * stream.time_base if times else 0
        reached = round(seconds * (stream.average_rate or 0)) + 1
    if not count:
        raise ValueError(f"{path} holds no frame")
    if max(count, reached) < stated:
        warnings.warn(
            f"{path} states that it has {stated} frames, but only {count} can be read; check that "
            "the file is complete",
            stacklevel=2,
        )
    return count


class Video:
    """The frames of a video; reading them in order is fast."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames = self._decode()
        self.next = 0

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        """A frame as RGB."""
        if index < self.next:
            self.frames, self.next = self._decode(), 0
        with reading(self.path, "a video"):
            for image in self.frames:
                self.next += 1
                if self.next > index:
                    return image
        raise ValueError(f"{self.path} ends after {self.next} frames, before frame {index}")

    def _decode(self) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
        with _open(import_av(), self.path) as container:
            for frame in container.decode(_stream(container, self.path)):
                check_count(frame.width * frame.height, self.path, "pixels")
                yield frame.to_ndarray(format="rgb24")


def open_video(path: Path) -> Video:
    """The video that this thread read last stays open, where it was."""
    video: Video | None = getattr(_LAST, "video", None)
    if video is None or video.path != path:
        video = _LAST.video = Video(find_file(path))
    return video


def _open(av: ModuleType, path: Path) -> Any:
    """Open a video, but nothing that it may refer to: playlists name other files and addresses."""
    return av.open(
        str(path), container_options={"protocol_whitelist": "file", "format_whitelist": CONTAINERS}
    )


def _stream(container: Any, path: Path) -> Any:
    if not container.streams.video:
        raise ValueError("it holds no pictures")
    stream = container.streams.video[0]
    if stream.codec_context is None:  # PyAV would crash
        raise ValueError("its codec is not known")
    check_count(stream.width * stream.height, path, "pixels")
    return stream
