# SPDX-License-Identifier: Apache-2.0
"""Odd arguments for what is built on a completion: scenes, streams, samples, checks, the page."""

import contextlib
import io
import json
import os
import random
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from cases import (
    NUMBERS,
    SIZE,
    check,
    check_completion,
    damage,
    finite,
    make_array,
    make_image,
    make_points,
)  # fmt: skip

from deepbasis import cli, load
from deepbasis.commands.serve.file_access import CommandLineFiles
from deepbasis.conformal import ConformalTable
from deepbasis.model import Completer
from deepbasis.page.protocol import unpack
from deepbasis.page.session import Session, Workshop
from deepbasis.page.uploads import Uploads
from deepbasis.result import Completion
from deepbasis.self_check import check as self_check
from deepbasis.self_check import check_frame
from deepbasis.stream import Stream

CAMERA = [[40.0, 0, 15.5], [0, 40.0, 11.5], [0, 0, 1]]
# Of a page, which are sent as JSON.
WORDS = ["", "room", "500", "lidar16", "1e9", "indoor", "points.csv", "../../x", "a\0b", "\ud800",
         "ж" * 300, "x" * 300, "depth.npy", "figure", "cloud", "image", "json", "points",
         "lidar99999999", "8x8", "99999x99999", "features500"]  # fmt: skip
ACTIONS = ["open", "model", "camera", "truth", "points", "draw", "complete", "closer", "distance",
           "region", "next", "save", "recipe", "frame"]  # fmt: skip

# Of `deepbasis complete`.
OPTIONS = {
    "--sparse": ["depth.npy", "depth.npz", "rows.csv", "cloud.ply", "depth.pfm", "rows.npy"],
    "--intrinsics": ["camera.txt", "camera.json"], "--extrinsics": ["pose.txt", "pose.json"],
    "--ground-truth": ["depth.npy", "depth.pfm"], "--confidence": ["trust.png"],
    "--trajectory": ["poses.txt"], "--poses": ["poses.txt"], "--calibration": ["table.json"],
    "--image": ["/c/image", "/c/compressed", "/points"], "--points": ["/points", "/c/depth"],
}  # fmt: skip
NUMBERS_OF_OPTIONS = {
    "--depth-scale": ["1000", "0", "nan", "1e-300"], "--huber": ["1.345", "inf", "-1"],
    "--max-depth": ["3", "1e-9", "nan"], "--interval": ["0.9", "0.5", "1.5", "1e-9"],
    "--tolerance": ["0", "1e9", "nan", "-1"], "--errors": ["paper", "independent"],
}  # fmt: skip
ALWAYS = ["--model", "model.safetensors", "--out", "out", "--no-figure", "--device", "cpu"]


def make_number(rng: random.Random, usual: float) -> object:
    """A number, usually a possible one."""
    odd = [*NUMBERS, 10**400, -(10**30), 2**63, True, None, "3", [], {}, np.float32(2), np.int64(2),
           torch.tensor(2.0), torch.ones(2), 1 + 2j]  # fmt: skip
    return usual if rng.random() < 0.6 else rng.choice(odd)


def make_camera(rng: random.Random) -> object:
    """Intrinsics, or not."""
    if rng.random() < 0.6:
        return CAMERA
    camera = np.array(CAMERA)
    camera.flat[rng.randrange(9)] = rng.choice(NUMBERS)
    return rng.choice([camera, None, make_array(rng, [(3, 3), (4, 4), (2, 3, 3)]), torch.eye(3)])


def make_pose(rng: random.Random) -> object:
    """A pose, or not."""
    pose = np.eye(4)
    pose[0, 3] = rng.choice([0.0, 0.1, 1e3, 1e30])
    if rng.random() < 0.7:
        return pose
    pose.flat[rng.randrange(16)] = rng.choice(NUMBERS)
    return rng.choice([pose, None, make_array(rng, [(4, 4), (3, 4)]), "pose"])


def good_points(rng: random.Random, count: int) -> np.ndarray:
    draw = np.random.default_rng(rng.getrandbits(32))
    return draw.uniform([0, 0, 1], [SIZE[1] - 1, SIZE[0] - 1, 5], (count, 3))


class Calls:
    """Odd calls, of one model."""

    def __init__(self, folder: Path, model: Completer) -> None:
        self.model = model
        draw = np.random.default_rng(1)
        self.image = draw.integers(256, size=(*SIZE, 3), dtype=np.uint8)
        self.scene = model.prepare(self.image)
        rng = random.Random(0)
        self.outs = [
            self.scene.complete(good_points(rng, count), errors=errors)
            for count in (0, 1, 30)
            for errors in (None, "independent", "paper")
        ]
        scores, group = draw.exponential(size=400), np.arange(400) // 20
        table = ConformalTable.learn(scores, draw.uniform(0, 20, 400), group)
        self.outs.append(self.outs[-3].with_conformal(table))
        uploads = tempfile.mkdtemp(dir=folder, prefix="uploads-")
        self.workshop = Workshop(
            ("tiny",),
            CommandLineFiles(),
            Uploads(Path(uploads), 2_000_000, 20_000),
            lambda _: model,
        )
        self.folder, self.links = folder, {path.name for path in folder.iterdir()}
        self.files = {
            path.name: path.read_bytes()
            for path in folder.iterdir()
            if path.is_file() and path.stat().st_size < 50_000
        }

    def joint(self, rng: random.Random) -> Callable[[], object]:
        """Quantities of whole maps."""
        out: Completion = rng.choice(self.outs)
        mask = np.zeros(SIZE, bool)
        mask[rng.randrange(24), :] = rng.random() < 0.9
        odd_mask = mask if rng.random() < 0.6 else make_array(rng, [SIZE, (3, 3)])
        ends = [
            [rng.randrange(32), rng.randrange(24)] if rng.random() < 0.8
            else make_array(rng, [(2,), (3,)])
            for _ in range(2)
        ]  # fmt: skip
        count, seed, metres, level = (make_number(rng, x) for x in (3, 1, 2.5, 0.9))
        camera = make_camera(rng)
        which = rng.randrange(7)

        def run() -> None:
            if which == 0:
                maps = out.sample(count, seed)
                finite(maps)
                check((maps > 0).all(), "a depth is not positive")
            elif which == 1:
                finite(*out.distance(*ends, camera, level=level))
            elif which == 2:
                for quantity in out.size(odd_mask, camera, level=level):
                    finite(*quantity)
            elif which == 3:
                chance = out.probability_closer(metres)
                check(((chance >= 0) & (chance <= 1)).all(), "not a probability")
            elif which == 4:
                check(0 <= out.probability_closer(metres, odd_mask) <= 1, "not a probability")
            elif which == 5:
                found = out.next_points(count)
                check(found.shape == (int(count), 2), "another number of points")
            else:
                low, high = out.interval(level)
                finite(low, high)
                check((low <= high).all(), "an interval is upside down")

        return run

    def scenes(self, rng: random.Random) -> Callable[[], object]:
        """Several sets of points of one scene, options, and the check without ground truth."""
        sets = [make_points(rng) for _ in range(rng.choice([0, 1, 2]))]
        options = {
            "errors": rng.choice([None, None, "independent", "paper", "none", 3]),
            "robust": rng.choice([True, False, None]),
            "huber": make_number(rng, 1.345) if rng.random() < 0.5 else None,
            "max_depth": make_number(rng, 10.0) if rng.random() < 0.5 else None,
        }
        which = rng.choice([0, 0, 0, 0, 1, 1, 1, 2])  # the last takes as long as ten others
        camera = make_camera(rng)
        points = good_points(rng, rng.choice([1, 5, 60, 300]))
        points[rng.randrange(len(points)), 2] *= rng.choice([1, 3, 1e3, 1e20])

        def run() -> None:
            if which == 0:
                check_completion(self.scene.complete(sets, **options))
            elif which == 1:
                check_completion(self.model.prepare(self.image, camera).complete(points, **options))
            else:
                out = self.scene.complete(points)
                json.dumps(self_check(self.scene, out).report(), allow_nan=False)

        return run

    def stream(self, rng: random.Random) -> Callable[[], object]:
        """A sequence with odd frames; a few are checked, which takes as long as ten others."""
        frames: list[object] = []
        for _ in range(rng.choice([1, 2, 3])):
            usual = rng.random() < 0.8
            image = np.roll(self.image, rng.randrange(3), 1) if usual else make_image(rng)
            points = good_points(rng, 8) if rng.random() < 0.6 else make_points(rng)
            parts = [image, points, make_pose(rng), None][: rng.choice([1, 2, 2, 3, 3, 3, 4])]
            frames.append(tuple(parts) if rng.random() < 0.9 else rng.choice([(), None, parts]))
        camera = make_camera(rng)
        depth = make_number(rng, 10.0) if rng.random() < 0.3 else None
        checked = good_points(rng, rng.choice([1, 60])), make_pose(rng)

        def check_frames() -> None:
            state = Stream(self.model.network.fit, intrinsics=camera, max_depth=depth)
            for frame in (checked, (make_points(rng), checked[1])):
                found = check_frame(state, self.scene, *frame)
                json.dumps(found.report(), allow_nan=False)
                check_completion(state.add(self.scene, *frame))

        if rng.random() < 0.05:
            return check_frames

        def run() -> None:
            for out in self.model.stream(frames, intrinsics=camera, max_depth=depth):
                check_completion(out)

        return run

    def foreign(self, rng: random.Random) -> Callable[[], object]:
        """Networks of others that return anything."""
        kinds = ["metric", "depth", "disparity"]
        kind = rng.choice(kinds) if rng.random() < 0.9 else rng.choice(["other", None])
        shapes = [(1, 1, 12, 16), (1, 12, 16), (1, 2, 6, 8), (2, 1, 6, 8), (12, 16), (1, 1, 0, 0)]
        shape = shapes[0] if rng.random() < 0.8 else rng.choice(shapes)
        g = torch.Generator().manual_seed(rng.getrandbits(31))
        depth = torch.rand(shape, generator=g) + rng.choice([0.5, 0.0, -0.5, 1e20])
        if rng.random() < 0.3 and depth.numel():
            depth.view(-1)[rng.randrange(depth.numel())] = rng.choice([np.nan, np.inf, 0, -1, 1e30])
        features = torch.randn(1, 3, 6, 8, generator=g)
        if rng.random() < 0.2:
            features.view(-1)[0] = rng.choice([np.nan, np.inf, 1e30])
        found: object = depth if rng.random() < 0.5 else (depth, features)
        if rng.random() < 0.1:
            found = rng.choice([(depth,), (features, depth), None, 3])

        def run() -> None:
            model = load(lambda image: found, prediction=kind)
            check_completion(model.complete(self.image, good_points(random.Random(0), 5)))

        return run

    def page(self, rng: random.Random) -> Callable[[], object]:
        """Messages of a page, and of what is none."""
        session = Session(self.workshop)
        messages = []
        if rng.random() < 0.8:  # else there is no image yet
            messages.append(_message({"do": "open", "name": "photo.png"}, self.files["photo.png"]))
        if rng.random() < 0.3:
            messages.append(_message({"do": "truth", "name": "depth.npy"}, self.files["depth.npy"]))
        if rng.random() < 0.15:
            messages.append(self._open_sequence(rng))
        messages += [self._ask(rng) for _ in range(rng.choice([1, 2]))]

        def run() -> None:
            for message in messages:
                for reply in session.reply(unpack(message)):
                    (length,) = struct.unpack_from("<I", reply)
                    json.loads(reply[4 : 4 + length])

        return run

    def command(self, rng: random.Random) -> Callable[[], object]:
        """`deepbasis complete` with any file in any place, some of them damaged."""
        good = ["photo.png", "photo.jpg", "film.mp4", "film.avi", "drive.bag", "drive.mcap"]
        words = [rng.choice(good) if rng.random() < 0.9 else rng.choice([*self.files, "."])]
        for option, usual in OPTIONS.items():
            if rng.random() < 0.12:
                words += [option, rng.choice(usual if rng.random() < 0.7 else [*self.files])]
        flags = ["--sequence", "--check", "--rescale", "--cloud", "--exr", "--no-robust", "--json"]
        flags += ["--tf"]
        words += [flag for flag in flags if rng.random() < 0.1]
        for option, numbers in NUMBERS_OF_OPTIONS.items():
            if rng.random() < 0.15:
                words += [option, rng.choice(numbers)]
        spoiled = rng.choice([None, *words])

        def run() -> None:
            with tempfile.TemporaryDirectory(dir=self.folder, prefix="command-") as place:
                folder = Path(place)
                for name in {*words, "model.safetensors"} & self.links:
                    (folder / name).symlink_to(self.folder / name)
                if spoiled in self.files:
                    (folder / spoiled).unlink()
                    (folder / spoiled).write_bytes(damage(rng, self.files[spoiled]))
                code, said = _run(["complete", *words, *ALWAYS], folder)
                check("Traceback" not in said, f"{words}: {said[-200:]}")
                check(code in (0, 1, 2), f"{words}: exit code {code}")
                for path in (folder / "out").glob("*.npy"):
                    finite(np.load(path))
                if code:
                    raise ValueError(said.splitlines()[0] if said else "")

        return run

    def _open_sequence(self, rng: random.Random) -> bytes:
        """A video or a folder, with more files or other sizes than it says."""
        names = [rng.choice(["film.avi", "film.mp4"])]
        names = names if rng.random() < 0.6 else ["photo.png", "photo.jpg"]
        contents = [self.files[name] for name in names]
        if rng.random() < 0.3:
            contents[0] = damage(rng, contents[0])
        listed: list[object] = [
            ["frames", name, len(content)] for name, content in zip(names, contents, strict=True)
        ]
        if rng.random() < 0.3:
            odd = [["points", "rows.csv", 3], ["x", "a", 1], ["frames", "../a", 10**30], [], None]
            listed.append(rng.choice(odd))
        return _message({"do": "open", "name": "walk", "files": listed}, b"".join(contents))

    def _ask(self, rng: random.Random) -> bytes:
        def rows(columns: int, usual: int) -> object:
            if rng.random() < 0.7:
                return good_points(rng, usual)[:, :columns].tolist()
            odd = [None, [], [[]], "x", [[1, 2], [3]], [[10**400] * columns], [[1e300] * columns],
                   [["a"] * columns], {"a": 1}, [[-5.0] * columns]]  # fmt: skip
            return rng.choice(odd)

        name = rng.choice([*self.files, *WORDS])
        odd = [1e300, -1, 10**400, None, True, "3", [], 0, 0.5, 2**70]
        header = {
            "do": rng.choice(ACTIONS) if rng.random() < 0.95 else rng.choice([*WORDS, 3, None, []]),
            "id": rng.choice([1, "a", None, [], 10**400]),
            "name": name, "what": rng.choice(WORDS), "pattern": rng.choice(WORDS),
            "points": rows(rng.choice([3, 4, 2]), 5), "ends": rows(2, 2), "corners": rows(2, 4),
        }  # fmt: skip
        for key, usual in (("metres", 2.0), ("count", 3), ("seed", 1), ("frame", 0),
                           ("depth_scale", 1000.0), ("fx", 40), ("fy", 40), ("cx", 15),
                           ("cy", 11)):  # fmt: skip
            header[key] = usual if rng.random() < 0.8 else rng.choice(odd)
        if rng.random() < 0.1:
            header["model"] = rng.choice([*WORDS, "tiny", 3])
        if header["do"] == "open" and rng.random() < 0.1:
            header["sample"] = rng.choice([*WORDS[2:], 3])
        content = (
            self.files.get(name, b"") if header["do"] != "camera" or rng.random() < 0.5 else b""
        )
        if rng.random() < 0.3:
            content = damage(rng, content)
        message = _message(header, content)
        return damage(rng, message) if rng.random() < 0.1 else message


def _run(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and error stream of a command, in a folder."""
    said, before, arguments = io.StringIO(), Path.cwd(), sys.argv
    sys.argv = ["deepbasis", *words]
    os.chdir(folder)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")  # they are sentences for the user
            try:
                cli.main()
            except SystemExit as end:
                return int(end.code or 0), said.getvalue()
            return 0, said.getvalue()
    finally:
        os.chdir(before)
        sys.argv = arguments


def _message(header: dict[str, object], content: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + b"\0" * (-(4 + len(text)) % 8) + content
