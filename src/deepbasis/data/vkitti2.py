# SPDX-License-Identifier: Apache-2.0
"""Virtual KITTI 2: rendered roads in different weather and with turned cameras."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from deepbasis.data.files import check_choice, check_paired, find_folder, list_by_stem
from deepbasis.data.formats import CENTIMETRES, LARGEST, read_counts, to_sample
from deepbasis.data.images import read_image
from deepbasis.data.sample import Sample, halve, make_intrinsics
from deepbasis.shapes import Float

# Scenes and variants of each split, the paper's own; those after `test` are its shifted tests.
SPLITS = {
    "train": (
        ("Scene02", "Scene06", "Scene18", "Scene20"),
        ("clone", "morning", "overcast", "sunset"),
    ),
    "test": (("Scene01",), ("clone",)),
    "15-deg-left": (("Scene01",), ("15-deg-left",)),
    "15-deg-right": (("Scene01",), ("15-deg-right",)),
    "30-deg-left": (("Scene01",), ("30-deg-left",)),
    "30-deg-right": (("Scene01",), ("30-deg-right",)),
    "fog": (("Scene01",), ("fog",)),
    "rain": (("Scene01",), ("rain",)),
}


class _Frame(NamedTuple):
    name: str
    image: Path
    depth: Path


class Vkitti2:
    """Virtual KITTI 2 in its published layout.

    ```
    root/
      Scene01/clone/frames/rgb/Camera_0/rgb_00000.jpg        1242 x 375
      Scene01/clone/frames/depth/Camera_0/depth_00000.png    16-bit centimetres, 65535 is sky
    ```

    Depth is in metres. It is 0, and therefore not evaluated, in the sky and beyond `cap`; the paper
    uses depths up to 80 m. There is no sparse sensor.

    Args:
        root: the folder that holds Scene01 and the others.
        split: "train", "test", or a shifted test such as "fog" or "30-deg-left"; see `SPLITS`.
        camera: "Camera_0" (left, the paper's) or "Camera_1".
        cap: largest depth that counts, in metres.
        halve: return 187 x 621 pixels instead of 375 x 1242.
    """

    def __init__(
        self,
        root: Path,
        split: str = "train",
        camera: Literal["Camera_0", "Camera_1"] = "Camera_0",
        cap: float = 80.0,
        halve: bool = True,
    ) -> None:
        check_choice("split", split, list(SPLITS))
        check_choice("camera", camera, ("Camera_0", "Camera_1"))
        find_folder(root)
        self.cap, self.halve = cap, halve
        scenes, variants = SPLITS[split]
        places = [f"{scene}/{variant}" for scene in scenes for variant in variants]
        self.frames = [frame for place in places for frame in _list(root, place, camera)]

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.frames)

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.frames[index].name

    def __getitem__(self, index: int) -> Sample:
        """Read one frame."""
        frame = self.frames[index]
        depth = self._read_depth(frame.depth)
        camera = make_intrinsics(725.0087, 725.0087, 620.5, 187.0)
        sample = to_sample(frame.name, read_image(frame.image), depth, None, camera)
        return halve(sample) if self.halve else sample

    def _read_depth(self, path: Path) -> Float[np.ndarray, "h w"]:
        counts = read_counts(path)
        depth = counts.astype(np.float32) / np.float32(CENTIMETRES)
        return np.where((counts == LARGEST) | (depth > self.cap), np.float32(0), depth)


def _list(root: Path, place: str, camera: str) -> list[_Frame]:
    """Frames of one scene and variant."""
    found = {}
    for kind, suffix in (("rgb", ".jpg"), ("depth", ".png")):
        folder = root / place / "frames" / kind / camera
        hint = "`root` should hold Scene01, Scene02, ... with rgb and depth in each"
        paths = list_by_stem(folder, [suffix], hint)
        found[kind] = {stem.removeprefix(f"{kind}_"): path for stem, path in paths.items()}
    where = root / place / "frames"
    check_paired(
        found["rgb"],
        found["depth"],
        (f"{where}/rgb/{camera}/rgb_*.jpg", f"{where}/depth/{camera}/depth_*.png"),
    )
    return [
        _Frame(f"{place}/{camera}/{number}", image, found["depth"][number])
        for number, image in found["rgb"].items()
    ]
