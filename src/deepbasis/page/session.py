# SPDX-License-Identifier: Apache-2.0
"""What one page works on, and the answers to its requests.

A session belongs to one connection: no other page can reach it, and it ends with the connection.
"""

import io
import zipfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

import deepbasis
from deepbasis import metrics, model, patterns
from deepbasis.data.folder import read_intrinsics
from deepbasis.data.images import read_image
from deepbasis.data.packaged import packaged
from deepbasis.data.sample import make_intrinsics
from deepbasis.joint import Quantity
from deepbasis.page.preview import Preview, one_thread, step_for
from deepbasis.page.protocol import Request, pack
from deepbasis.page.recipe import Recipe, SequenceRecipe, name_camera, name_points
from deepbasis.page.sequence import FrameSource, Sequence, ShownFrame
from deepbasis.page.uploads import Uploads, harmless, speaking_of, without_commands
from deepbasis.patterns import assumed_camera
from deepbasis.plots import DEPTH_COLOURS, ERROR_COLOURS
from deepbasis.points import Points
from deepbasis.result import Completion, Outlier
from deepbasis.shapes import Float, UInt8

LEVEL = 0.9
# Packaged frames: a name for the page, the world, and the model that was made for it.
SAMPLES = {"room": ("rooms", "indoor"), "road": ("roads", "outdoor")}
# Largest width and height of their small pictures.
THUMBNAIL = (480, 200)
# Outliers that are listed, the worst first.
LISTED = 50
# Points that a page may have.
MOST_POINTS = 50_000
# Corners of a region.
MOST_CORNERS = 5_000
# Frames of a sequence, and their pixels together: states are kept in memory.
MOST_FRAMES, MOST_SEQUENCE_PIXELS = 300, 60_000_000
NO_IMAGE = "there is no image yet; drop one, or start with the room or the road"


class Saved(NamedTuple):
    """A file for the user."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Picture:
    """An image with all that was dropped beside it."""

    name: str
    content: bytes
    """Of its file."""
    image: UInt8[np.ndarray, "h w 3"]
    sample: str | None = None
    camera: Float[Tensor, "3 3"] | None = None
    truth: Float[np.ndarray, "h w"] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return (self.image.shape[0], self.image.shape[1])


@runtime_checkable
class FileAccess(Protocol):
    """How the command line reads measurements and writes results."""

    def read_points(self, path: Path, picture: Picture, depth_scale: float | None) -> Points:
        """Measured points of an image, in any form."""
        ...

    def read_truth(
        self, path: Path, picture: Picture, depth_scale: float | None
    ) -> Float[np.ndarray, "h w"]:
        """A depth map of the image's size."""
        ...

    def open_sequence(
        self, folder: Path, depth_scale: float | None, truth_scale: float | None
    ) -> FrameSource:
        """Frames in the folder `frames`, with points and ground truth in `points` and `truth`."""
        ...

    def write(self, folder: Path, kind: str, picture: Picture, answer: Completion) -> Path:
        """Write one of the files that `deepbasis complete` writes."""
        ...


@dataclass(frozen=True)
class Workshop:
    """What all sessions share: models, readers and limits. Nothing in it changes."""

    models: tuple[str, ...]
    """Names that a page may choose, the default first."""
    files: FileAccess
    uploads: Uploads
    load: Callable[[str], model.Completer] = field(default_factory=lambda: cache(model.load))

    @property
    def greeting(self) -> dict[str, Any]:
        """What a page is told first."""
        return {
            "models": list(self.models),
            "samples": {name: kind for name, (_, kind) in SAMPLES.items()},
            "max_bytes": self.uploads.max_bytes,
            "max_pixels": self.uploads.max_pixels,
            "max_frames": MOST_FRAMES,
            "level": LEVEL,
            "version": deepbasis.__version__,
        }


class Session:
    """One page's image, scene and last completion."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self.model = workshop.models[0]
        self.picture: Picture | None = None
        self.preview: Preview | None = None
        self.rows = np.zeros((0, 3))
        self.answer: Completion | None = None
        self.sequence: Sequence | None = None
        self.folder: TemporaryDirectory[str] | None = None
        """Files of the sequence."""

    def close(self) -> None:
        """Remove what is kept."""
        if self.folder is not None:
            self.folder.cleanup()
        self.folder, self.sequence = None, None

    def greet(self) -> bytes:
        """The first message: what the server offers, colours, and pictures of the samples."""
        colours = {"depth_colours": DEPTH_COLOURS, "error_colours": ERROR_COLOURS}
        arrays = {name: _colours(colour) for name, colour in colours.items()}
        arrays |= {name: _thumbnail(name) for name in SAMPLES}
        return pack({"event": "hello"} | self.workshop.greeting, arrays)

    def reply(self, request: Request) -> Generator[bytes]:
        """One message or more; each is computed when it is asked for."""
        actions: dict[str, Callable[[Request], Iterator[tuple[dict[str, Any], Any]]]] = {
            "open": self._open, "model": self._choose_model, "camera": self._set_camera,
            "truth": self._set_truth, "points": self._read_points, "draw": self._draw,
            "complete": self._complete, "rest": self._rest, "closer": self._closer,
            "distance": self._distance, "region": self._region, "next": self._next,
            "save": self._save, "recipe": self._recipe, "frame": self._show_frame,
        }  # fmt: skip
        found = actions.get(request.action)
        if found is None:
            raise ValueError(f"the server does not know the action {request.action[:40]!r}")
        for header, arrays in found(request):
            yield pack({"id": request.header.get("id")} | header, arrays)

    def _open(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """An image: one of the packaged samples, or a file; or the files of a sequence."""
        chosen = self._model_of(request)
        if "files" in request.header:
            yield from self._open_sequence(request, chosen)
            return
        if "sample" in request.header:
            picture = _sample(request.text("sample"))
        else:
            name = request.text("name")
            with self.workshop.uploads.stored(name, request.content) as path:
                picture = Picture(path.name, request.content, read_image(path))
        self._prepare(picture, chosen)
        self.close()
        self.rows = np.zeros((0, 3))
        yield self._describe(), {"image": picture.image} | _truth_of(picture)

    def _open_sequence(self, request: Request, chosen: str) -> Iterator[tuple[dict[str, Any], Any]]:
        """A folder or a video; the first frame is completed."""
        uploads, name = self.workshop.uploads, harmless(request.text("name"))
        folder = uploads.kept_folder()
        try:
            with speaking_of(folder.name):
                uploads.unpack(Path(folder.name), request.header["files"], request.content)
                scales = _scale(request), _scale(request, "truth_scale")
                source = self.workshop.files.open_sequence(Path(folder.name), *scales)
                cameras = sorted(Path(folder.name).glob("camera/*"))
                camera = read_intrinsics(cameras[0]) if cameras else None
                sequence = self._start_sequence(source, chosen, camera)
                sequence.edited = _edited(request)
                (shown,) = sequence.play_to(0)
        except BaseException:
            folder.cleanup()
            raise
        self.close()
        self.folder, self.sequence, self.model = folder, sequence, chosen
        self.picture = Picture(name, b"", shown.frame.image, camera=camera)
        self.preview = None
        self._take(shown)
        yield self._describe(), {"image": self._shown.image} | _truth_of(self._shown)

    def _start_sequence(
        self, source: FrameSource, chosen: str, camera: Float[Tensor, "3 3"] | None
    ) -> Sequence:
        first = source.read(0, camera)
        height, width = first.image.shape[:2]
        self.workshop.uploads.check_pixels(first.name, (height, width))
        most = min(MOST_FRAMES, MOST_SEQUENCE_PIXELS // (height * width))
        return Sequence(source, self.workshop.load(chosen), camera, max(most, 1))

    def _restart_sequence(self, chosen: str, camera: Float[Tensor, "3 3"] | None) -> None:
        """The same frames and points from the first frame, with another model or camera."""
        assert self.sequence is not None
        started = self._start_sequence(self.sequence.source, chosen, camera)
        started.edited = self.sequence.edited
        (first,) = started.play_to(0)
        self.sequence, self.model = started, chosen
        self.picture = replace(self._shown, camera=camera)
        self._take(first)

    def _take(self, shown: ShownFrame) -> None:
        """Work on a frame of the sequence."""
        frame = shown.frame
        self.picture = replace(self._shown, image=frame.image, truth=frame.truth)
        self.rows, self.answer = shown.rows, shown.answer

    def _show_frame(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """A frame of the sequence; those that must be completed before it come first, in small."""
        if self.sequence is None or self.folder is None:
            raise ValueError("there is no sequence; drop a folder of frames, or a video")
        number, metres = int(request.number("number")), request.number("metres")
        with speaking_of(self.folder.name):
            for shown in self.sequence.play_to(number):
                self._take(shown)
                if shown.number != number:
                    step = step_for(self._shown.size)
                    small = _maps(shown.answer) | self._frame_maps(metres)
                    yield (
                        {"frame": shown.number, "step": step, "metres": metres},
                        {name: values[::step, ::step] for name, values in small.items()},
                    )
        answer = self._answer
        arrays = _maps(answer) | self._frame_maps(metres) | _truth_of(self._shown)
        rest = {"rows": self.rows.tolist(), "step": 1, "metres": metres, "done": True}
        yield self._describe() | rest | self._summary(answer), arrays

    def _frame_maps(self, metres: float) -> dict[str, np.ndarray]:
        return {"image": self._shown.image, "closer": self._answer.probability_closer(metres)}

    def _choose_model(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        chosen = self._model_of(request)
        if self.sequence is None:
            self._prepare(self._shown, chosen)
        else:
            self._restart_sequence(chosen, self._shown.camera)
        yield self._describe(), {}

    def _set_camera(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """The camera, from a file or from four numbers."""
        if request.content:
            with self.workshop.uploads.stored(request.text("name"), request.content) as path:
                camera = read_intrinsics(path)
        else:
            camera = make_intrinsics(*(request.number(name) for name in ("fx", "fy", "cx", "cy")))
            if not (camera.diag() > 0).all():
                raise ValueError("the focal lengths fx and fy must be positive, in pixels")
        if self.sequence is None:
            self._prepare(replace(self._shown, camera=camera), self.model)
        else:
            self._restart_sequence(self.model, camera)
        yield self._describe(), {}

    def _set_truth(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """A ground truth, a depth map of the image's size."""
        if self.sequence is not None:
            raise ValueError("drop the ground truth of a sequence in one folder with its frames")
        with self.workshop.uploads.stored(request.text("name"), request.content) as path:
            truth = self.workshop.files.read_truth(path, self._shown, _scale(request))
        self.picture = replace(self._shown, truth=truth)
        yield self._describe(), _truth_of(self._shown)

    def _read_points(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """Points of a file, or pasted as text; the page decides what to do with them."""
        with self.workshop.uploads.stored(request.text("name"), request.content) as path:
            points = self.workshop.files.read_points(path, self._shown, _scale(request))
        points = points.inside(self._shown.size)
        yield {"rows": points.rows.tolist(), "dropped": points.dropped}, {}

    def _draw(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """Points that a sensor would measure of the ground truth."""
        picture = self._shown
        if picture.truth is None:
            raise ValueError("points are drawn from a ground truth; drop one first")
        pattern = patterns.parse(request.text("pattern"))
        drawn = pattern(
            torch.from_numpy(picture.truth)[None],
            torch.from_numpy(picture.image).permute(2, 0, 1),
            self._camera,
            torch.Generator().manual_seed(int(request.number("seed")) % 2**63),
        )
        yield {"rows": Points.from_map(drawn[0].numpy()).rows.tolist()}, {}

    def _complete(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """Every n-th pixel, if there are many; the page asks for the rest when these are drawn."""
        rows = _points_of(request)
        if self.sequence is not None and self.folder is not None:
            with speaking_of(self.folder.name):
                *_, _ = self.sequence.play_to(int(request.number("frame")))
                self._take(self.sequence.change(rows))
            yield from self._rest(request)
            return
        if self.preview is None:
            raise ValueError(NO_IMAGE)
        self.answer, self.rows = None, rows
        if self.preview.step == 1:
            yield from self._rest(request)
            return
        with one_thread():
            small = _maps(self.preview.complete(rows))
        yield {"step": self.preview.step}, small

    def _rest(self, _: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """All pixels, from the points that `complete` was asked for."""
        answer = self._answer
        yield {"step": 1, "done": True} | self._summary(answer), _maps(answer)

    def _closer(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        metres = request.number("metres")
        yield {"metres": metres}, {"closer": self._answer.probability_closer(metres)}

    def _distance(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """Distance between two pixels."""
        ends = request.rows("ends", (2,))
        if len(ends) != 2:
            raise ValueError(f"a distance has two ends, not {len(ends)}")
        found = self._answer.distance(ends[0], ends[1], self._camera.numpy(), level=LEVEL)
        yield {"distance": found._asdict()}, {}

    def _region(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """Depth and size of a polygon, and whether anything in it is closer than a distance."""
        corners = request.rows("corners", (2,))
        if not 3 <= len(corners) <= MOST_CORNERS:
            raise ValueError("a region has at least three corners; draw around it")
        mask, metres = _fill(corners, self._shown.size), request.number("metres")
        size = self._answer.size(mask, self._camera.numpy(), level=LEVEL)
        sizes: dict[str, Quantity] = size._asdict()
        yield (
            {
                "pixels": int(mask.sum()),
                "closer": self._answer.probability_closer(metres, mask),
                "metres": metres,
            }
            | {name: quantity._asdict() for name, quantity in sizes.items()},
            {},
        )

    def _next(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """Pixels to measure next."""
        yield {"pixels": self._answer.next_points(int(request.number("count"))).tolist()}, {}

    def _save(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """A file with results."""
        name, content = self._file(request.text("what"))
        yield {"name": name}, {"file": np.frombuffer(content, np.uint8)}

    def _recipe(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """The command line and the Python that do the same."""
        picture, sequence = self._shown, None
        if self.sequence is not None:
            sequence = SequenceRecipe(
                self.sequence.names,
                self.sequence.at.number,
                self.sequence.source.is_video,
                self.sequence.source.reduced,
                any(len(rows) for _, rows in self.sequence.points),
            )
        recipe = Recipe(
            picture.name, picture.sample, self.model, self.rows, picture.camera, sequence
        )
        yield {"command": recipe.command, "python": recipe.python}, {}

    def _file(self, what: str) -> Saved:
        picture, answer = self._shown, self._answer
        if what == "image":
            if self.sequence is None:
                return Saved(picture.name, picture.content)
            return Saved(f"{self.sequence.at.frame.name}.png", _png(picture.image))
        if what == "points":
            name = name_points(picture.name)
            if self.sequence is None:
                return Saved(name, _table(self.rows))
            stem = PurePath(name).stem
            return Saved(f"{stem}.zip", _zip(stem, self.sequence))
        if what == "camera":
            numbers = self._describe()["camera"]
            return Saved(name_camera(picture.name), " ".join(f"{x:.10g}" for x in numbers).encode())
        with self.workshop.uploads.folder() as folder:
            name = picture.name if self.sequence is None else f"{self.sequence.at.frame.name}.png"
            shown = Picture(name, b"", picture.image, None, self._camera, picture.truth)
            path = self.workshop.files.write(folder, what, shown, answer)
            return Saved(path.name, path.read_bytes())

    @property
    def _shown(self) -> Picture:
        if self.picture is None:
            raise ValueError(NO_IMAGE)
        return self.picture

    @property
    def _answer(self) -> Completion:
        """The completion from the last points; made now if the page did not wait for it."""
        if self.answer is None and self.preview is None:
            raise ValueError(NO_IMAGE)
        if self.answer is None:
            assert self.preview is not None
            self.answer = self.preview.scene.complete(self.rows)
        return self.answer

    @property
    def _camera(self) -> Float[Tensor, "3 3"]:
        """The camera, or one with a usual field of view."""
        known = self._shown.camera
        return assumed_camera(*self._shown.size) if known is None else known

    def _model_of(self, request: Request) -> str:
        chosen = request.text("model") if "model" in request.header else self.model
        if chosen not in self.workshop.models:
            raise ValueError(
                f"there is no model {chosen[:40]!r} here; choose {', '.join(self.workshop.models)}"
            )
        return chosen

    def _prepare(self, picture: Picture, chosen: str) -> None:
        """Run the network; what was there before stays if that fails."""
        self.workshop.uploads.check_pixels(picture.name, picture.size)
        preview = Preview(self.workshop.load(chosen).prepare(picture.image, picture.camera))
        self.picture, self.preview, self.model, self.answer = picture, preview, chosen, None

    def _describe(self) -> dict[str, Any]:
        picture, camera = self._shown, self._camera
        return {
            "name": picture.name,
            "sample": picture.sample,
            "size": list(picture.size),
            "model": self.model,
            "camera": [float(camera[i]) for i in ((0, 0), (1, 1), (0, 2), (1, 2))],
            "camera_known": picture.camera is not None,
            "truth_known": picture.truth is not None,
        } | self._describe_sequence()

    def _describe_sequence(self) -> dict[str, Any]:
        if self.sequence is None:
            return {}
        source = self.sequence.source
        return {
            "frames": list(self.sequence.names),
            "frames_in_all": len(source.names),
            "frame": self.sequence.at.number,
            "reduced": source.reduced,
        }

    def _summary(self, answer: Completion) -> dict[str, Any]:
        outliers = answer.outliers if self.sequence is None else self.sequence.outliers
        return {
            "points": len(answer.points),
            "dropped": answer.dropped,
            "median_std": float(np.median(answer.std)),
            "outlier_count": len(outliers),
            "outliers": [_tell(one) for one in outliers[:LISTED]],
            "warnings": [without_commands(warning) for warning in answer.warnings],
            "score": _score(answer, self._shown.truth),
        }


def _maps(answer: Completion) -> dict[str, np.ndarray]:
    low, high = answer.interval(LEVEL)
    return {"depth": answer.depth, "std": answer.std, "low": low, "high": high}


def _score(answer: Completion, truth: Float[np.ndarray, "h w"] | None) -> dict[str, float] | None:
    """Error and coverage, if there is a ground truth."""
    if truth is None:
        return None
    depth, true = torch.from_numpy(answer.depth), torch.from_numpy(truth)
    low, high = (torch.from_numpy(bound) for bound in answer.interval(LEVEL))
    return {
        "mae": float(metrics.mae(depth, true)),
        "rmse": float(metrics.rmse(depth, true)),
        "coverage": float(metrics.coverage(low, high, true)),
    }


def _tell(outlier: Outlier) -> dict[str, float]:
    names = ("u", "v", "depth", "expected", "probability")
    return {name: float(getattr(outlier, name)) for name in names}


def _truth_of(picture: Picture) -> dict[str, np.ndarray]:
    return {} if picture.truth is None else {"truth": picture.truth}


def _edited(request: Request) -> dict[int, Float[np.ndarray, "n columns"]]:
    """Points of frames that the user had changed before the connection broke."""
    listed = request.header.get("edited") or {}
    if not isinstance(listed, dict) or not all(str(number).isdecimal() for number in listed):
        raise ValueError("the request has no table 'edited' of frames")
    return {int(n): _points_of(Request({"points": rows}, b"")) for n, rows in listed.items()}


def _points_of(request: Request) -> Float[np.ndarray, "n columns"]:
    """Points of one image."""
    rows = request.rows("points", (3, 4))
    if len(rows) > MOST_POINTS:
        raise ValueError(f"{len(rows)} points are more than the page allows, {MOST_POINTS}")
    return rows


def _table(rows: Float[np.ndarray, "n columns"]) -> bytes:
    """Points as .csv."""
    header = "u,v,metres,sigma" if rows.shape[1] == 4 else "u,v,metres"
    lines = [",".join(f"{number:.10g}" for number in row) for row in rows]
    return "\n".join([header, *lines, ""]).encode()


def _zip(folder: str, sequence: Sequence) -> bytes:
    """A file of points for each frame that has some, in a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in sequence.points:
            if len(rows):
                archive.writestr(f"{folder}/{name}.csv", _table(rows))
    return buffer.getvalue()


def _png(image: UInt8[np.ndarray, "h w 3"]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _scale(request: Request, name: str = "depth_scale") -> float | None:
    """What depths are divided by; None if the user did not say."""
    if request.header.get(name) is None:
        return None
    scale = request.number(name)
    if scale <= 0:
        raise ValueError(f"the depth scale is {scale:g}; metres = value / scale")
    return scale


def _fill(corners: Float[np.ndarray, "n 2"], size: tuple[int, int]) -> np.ndarray:
    """The pixels of a polygon."""
    canvas = Image.new("1", (size[1], size[0]))
    limit = 4.0 * max(size)
    ends = [(float(u), float(v)) for u, v in corners.clip(-limit, limit)]
    ImageDraw.Draw(canvas).polygon(ends, fill=1, outline=1)
    mask = np.array(canvas, dtype=bool)
    if not mask.any():
        raise ValueError("the region holds no pixel of the image; draw around some")
    return mask


def _sample(name: str) -> Picture:
    if name not in SAMPLES:
        raise ValueError(f"there is no sample {name[:40]!r}; choose {', '.join(SAMPLES)}")
    frames = packaged(SAMPLES[name][0])
    frame, path = frames[0], next(iter(frames.images.values()))
    return Picture(
        f"{name}{path.suffix}", path.read_bytes(), frame.image.permute(1, 2, 0).numpy(), name,
        frame.intrinsics, frame.depth[0].numpy(),
    )  # fmt: skip


@cache
def _thumbnail(name: str) -> UInt8[np.ndarray, "h w 3"]:
    """A small picture of a sample."""
    small = Image.fromarray(_sample(name).image)
    small.thumbnail(THUMBNAIL)
    return np.array(small)


@cache
def _colours(name: str) -> UInt8[np.ndarray, "256 3"]:
    """A colour map of 256 colours."""
    from matplotlib import colormaps

    return (colormaps[name](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
