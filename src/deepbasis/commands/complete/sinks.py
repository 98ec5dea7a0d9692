# SPDX-License-Identifier: Apache-2.0
"""Results that all frames share: a bag, a recording of Rerun. Frames done before are added too."""

import hashlib
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.inputs import Loaded, load
from deepbasis.commands.complete.plan import Planned, digest
from deepbasis.data.bags import BagWriter
from deepbasis.data.clouds import to_xyz
from deepbasis.data.extras import need
from deepbasis.data.files import atomic_write, find_folder
from deepbasis.data.formats import load_array
from deepbasis.data.recording import Recorded

# How the address of a viewer begins, its usual port, and seconds in which it must answer.
LIVE, PORT, PATIENCE = "rerun+http", 9876, 5.0
SPAWN = "spawn"
# Settings that change nothing in a bag.
NOT_IN_BAGS = ("quiet", "json", "device", "rerun", "save_calibration")


class BagRecord:
    """A file in --out that remembers which command wrote a bag, from what, and its contents.

    So the same command may write this bag again; any other bag is never replaced.
    """

    def __init__(self, settings: Complete) -> None:
        assert settings.out_bag is not None
        self.bag = settings.out_bag
        self.file = settings.out / f".{self.bag.name}.json"
        given = {k: str(v) for k, v in asdict(settings).items() if k not in NOT_IN_BAGS}
        self.command = _digest_json(given)

    def is_ours(self) -> bool:
        """Whether the bag that exists was written by this command, and not changed since."""
        found = self._read()
        files = _digest_files(self.bag)
        unchanged = found.get("files") == files and None not in files.values()
        return unchanged and found.get("command") == self.command

    def is_complete(self, planned: Sequence[Planned]) -> bool:
        """Whether the bag is ours, and holds these frames as they are now."""
        return self._read().get("frames") == _digest_frames(planned) and self.is_ours()

    def write(self, bag: Path, frames: Sequence[Planned]) -> None:
        """Remember a bag of these frames, which may still have another name."""
        found = {
            "command": self.command, "frames": _digest_frames(frames), "files": _digest_files(bag),
        }  # fmt: skip
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.file) as file:
            file.write(json.dumps(found, indent=1).encode())

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _digest_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _digest_frames(planned: Sequence[Planned]) -> dict[str, str]:
    return {one.frame.name: _digest_json(one.made_from) for one in planned}


def _digest_files(bag: Path) -> dict[str, str | None]:
    files = bag.iterdir() if bag.is_dir() else [bag]
    return {path.name: digest(path) for path in files}


class BagSink:
    """A bag of images, depth, std and clouds."""

    def __init__(self, settings: Complete) -> None:
        assert settings.out_bag is not None
        self.record = BagRecord(settings)
        self.place = f"the bag is {settings.out_bag}"
        self.writer = BagWriter(settings.out_bag, replace=self.record.is_ours())
        self.frames: list[Planned] = []

    def add(self, one: Planned, loaded: Loaded, depth: np.ndarray, std: np.ndarray) -> None:
        """Write a frame."""
        self.frames.append(one)
        recorded = Recorded(
            loaded.image, loaded.points, loaded.camera, loaded.time, loaded.frame_id
        )
        self.writer.add(recorded, depth, std)

    def close(self) -> None:
        """Finish the bag."""
        self.writer.close(lambda bag: self.record.write(bag, self.frames))

    def abandon(self) -> None:
        """Remove what was written."""
        self.writer.abandon()


class RerunSink:
    """A recording of Rerun: in a file, in a viewer that is listening, or in one that is started.

    Along the timelines `frame` and, if it is known, `time`: the image with its points, depth and
    std and, if the camera is known, its frustum and a cloud coloured like the image.
    """

    def __init__(self, target: str) -> None:
        self.rerun = need("rerun", "rerun", "writing a recording of Rerun")
        self.target, self.frames = target, 0
        self.stream = self.rerun.RecordingStream("deepbasis")
        self.part: Path | None = None
        self.place: str | None = None
        with self._guard():
            if target == SPAWN:
                self.stream.spawn()
            elif target.startswith(LIVE):
                self._find_viewer()
                self.stream.connect_grpc(target)
            elif target.endswith(".rrd"):
                path = Path(target)
                find_folder(path.parent, "create it first")
                self.part = path.with_name(f".{path.name}.part")
                self.stream.save(self.part)
                self.place = f"the recording of Rerun is {path}"
            else:
                raise ValueError(
                    f"--rerun {target} is not a .rrd file, nor {SPAWN}, nor the address of a "
                    f"viewer, {LIVE}://HOST:{PORT}/proxy"
                )

    def add(self, one: Planned, loaded: Loaded, depth: np.ndarray, std: np.ndarray) -> None:
        """Log a frame."""
        rerun, stream = self.rerun, self.stream
        stream.set_time("frame", sequence=self.frames)
        if loaded.time is not None:
            stream.set_time("time", timestamp=np.datetime64(loaded.time, "ns"))
        if loaded.camera is not None:
            size = [depth.shape[1], depth.shape[0]]
            lens = rerun.Pinhole(image_from_camera=loaded.camera.numpy(), resolution=size)
            stream.log("camera", lens)
            xyz, where = to_xyz(depth, loaded.camera)
            stream.log("cloud", rerun.Points3D(xyz, colors=loaded.image[where]))
        stream.log("camera/image", rerun.Image(loaded.image))
        stream.log("camera/depth", rerun.DepthImage(depth, meter=1.0))
        stream.log("camera/std", rerun.DepthImage(std, meter=1.0, colormap="magma"))
        rows = np.zeros((0, 3)) if loaded.points is None else loaded.points.rows
        labels = {"labels": [f"{z:.2f} m" for z in rows[:, 2]], "show_labels": False}
        stream.log("camera/image/points", rerun.Points2D(rows[:, :2] + 0.5, **labels))
        stream.log("name", rerun.TextLog(one.frame.name))
        self.frames += 1

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Rerun's own errors as one sentence."""
        try:
            yield
        except RuntimeError as error:
            raise ValueError(f"--rerun {self.target} cannot be written: {error}") from error

    def _find_viewer(self) -> None:
        """Refuse an address that does not answer; Rerun would wait long, and then lose frames."""
        try:
            found = urlsplit(self.target)
            place = found.hostname or "", found.port or PORT
            socket.create_connection(place, PATIENCE).close()
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--rerun {self.target}: no viewer answers there ({error}); start one with "
                f"`rerun`, or pass --rerun {SPAWN}"
            ) from error

    def close(self) -> None:
        """Finish the recording."""
        with self._guard():
            self.stream.flush()
            self.stream.disconnect()
        if self.part is not None:
            self.part.replace(self.target)

    def abandon(self) -> None:
        """Remove what was written."""
        self.stream.disconnect()
        if self.part is not None:
            self.part.unlink(missing_ok=True)


class Sinks:
    """All that were asked for, but a bag that holds the frames, all of which are done, already."""

    def __init__(self, settings: Complete, done: Sequence[Planned] = ()) -> None:
        self.settings = settings
        self.sinks: list[BagSink | RerunSink] = []
        self.places: list[str] = []
        if settings.out_bag is not None:
            if done and BagRecord(settings).is_complete(done):
                self.places.append(f"the bag {settings.out_bag} is up to date")
            else:
                self.sinks.append(BagSink(settings))
        if settings.rerun is not None:
            self.sinks.append(RerunSink(settings.rerun))
        self.places += [sink.place for sink in self.sinks if sink.place is not None]

    def __bool__(self) -> bool:
        return bool(self.sinks)

    def add(self, one: Planned) -> None:
        """Add a frame whose files are written."""
        if not self.sinks:
            return
        loaded = load(one.frame, self.settings)
        depth, std = (load_array(one.files[f"{kind}.npy"]) for kind in ("depth", "std"))
        for sink in self.sinks:
            sink.add(one, loaded, depth, std)


@contextmanager
def open_sinks(settings: Complete, done: Sequence[Planned] = ()) -> Iterator[Sinks]:
    """Sinks that get their names when all frames were added; on an error they are removed.

    Args:
        settings: of the command.
        done: all frames, if none is left to complete.
    """
    sinks = Sinks(settings, done)
    try:
        yield sinks
    except BaseException:
        for sink in sinks.sinks:
            sink.abandon()
        raise
    for sink in sinks.sinks:
        sink.close()
