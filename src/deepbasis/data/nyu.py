# SPDX-License-Identifier: Apache-2.0
"""NYU Depth V2, the labelled set: 1449 frames of rooms, from a Kinect.

The two readers give the same frames: `NyuMat` from the official file, `NyuFolder` from images
exported from it at half size. The official images have a white border, which is cut off.
"""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from deepbasis.data.files import check_choice, find_file, find_folder, list_by_stem
from deepbasis.data.formats import MILLIMETRES, read_depth_png, to_sample
from deepbasis.data.images import read_image
from deepbasis.data.limits import read_text, reading
from deepbasis.data.matlab import read_arrays
from deepbasis.data.sample import Sample, crop, halve, make_intrinsics

FRAMES = 1449
WINDOW = (slice(16, 464), slice(16, 624))
HALF_WINDOW = (slice(8, 232), slice(8, 312))
HALF_SIZE = (240, 320)
# The 75 % of the frames for training, as first and last frame of each run; the rest is for testing.
# Consecutive frames often show the same room, so runs keep a room in one split.
TRAIN_RUNS = """
    2-7 9-12 18-26 43-54 57-57 63-74 79-82 91-123 129-135 137-151 155-165 169-169 176-205 212-248
    250-262 264-308 312-313 317-323 335-349 352-353 364-393 397-409 414-428 435-439 448-460 466-467
    477-506 513-529 533-535 539-547 551-553 571-589 594-615 621-642 645-648 651-654 658-661 664-666
    673-684 690-691 694-704 713-729 734-741 744-798 804-831 846-848 852-867 871-915 919-924 928-930
    935-943 947-957 962-989 995-1008 1012-1019 1023-1030 1034-1050 1053-1073 1084-1115 1119-1121
    1131-1160 1167-1168 1171-1190 1196-1199 1212-1224 1230-1231 1235-1245 1250-1273 1280-1300
    1308-1351 1356-1366 1369-1392 1401-1419 1424-1428 1433-1448
"""
Split = Literal["train", "test", "all"]
SPLITS = ("train", "test", "all")


class NyuMat:
    """The official file, read one frame at a time.

    ```
    folder/
      nyu_depth_v2_labeled.mat    MATLAB 7.3: `images` and `depths`
      splits.mat                  for protocol="official" only: `trainNdxs` and `testNdxs`
    ```

    Depth is in metres, dense and in-painted where the sensor saw nothing. Frames are cropped to
    rows 16 to 464 and columns 16 to 624, inside the white border. There is no sparse sensor.

    Args:
        path: the .mat file.
        split: "train", "test" or "all".
        protocol: "paper" is 75 % and 25 % of the frames, 1087 and 362; "official" is the data
            set's own 795 and 654.
        halve: return 224 x 304 pixels instead of 448 x 608.
    """

    def __init__(
        self,
        path: Path,
        split: Split = "train",
        protocol: Literal["paper", "official"] = "paper",
        halve: bool = True,
    ) -> None:
        check_choice("split", split, SPLITS)
        check_choice("protocol", protocol, ("paper", "official"))
        self.path, self.halve = find_file(path), halve
        with _open(path) as file:
            _check_contents(file, path)
        parts = paper_split() if protocol == "paper" else _official_split(path)
        self.indices = sorted(parts["train"] + parts["test"]) if split == "all" else parts[split]

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.indices)

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return f"{self.indices[index]:04d}"

    def __getitem__(self, index: int) -> Sample:
        """Read one frame."""
        number = self.indices[index]
        # Opened each time: an open HDF5 file must not be shared between worker processes.
        with _open(self.path) as file:
            # MATLAB arrays are column-major, so width comes before height.
            image = file["images"][number].transpose(2, 1, 0)
            depth = np.ascontiguousarray(file["depths"][number].T)
        camera = make_intrinsics(518.86, 519.47, 325.58, 253.74)
        sample = crop(to_sample(f"{number:04d}", image, depth, None, camera), *WINDOW)
        return halve(sample) if self.halve else sample


class NyuFolder:
    """Frames exported from the official file at half size.

    ```
    root/
      rgb/0002.jpg      320 x 240; the number is the index in the official file, from 0
      depth/0002.png    16-bit millimetres, 0 means no measurement
      split.json        {"train": [2, ...], "test": [0, ...]}
    ```

    Frames are cropped to rows 8 to 232 and columns 8 to 312: 224 x 304 pixels.
    There is no sparse sensor.

    Args:
        root: the folder that holds these.
        split: "train", "test" or "all".
    """

    def __init__(self, root: Path, split: Split = "train") -> None:
        check_choice("split", split, SPLITS)
        self.root = find_folder(root)
        parts = _read_split(find_file(root / "split.json", "it says which frames are for training"))
        chosen = parts["train"] + parts["test"] if split == "all" else parts[split]
        self.numbers = sorted(chosen)
        images = list_by_stem(root / "rgb", [".jpg"])
        depths = list_by_stem(root / "depth", [".png"])
        for number in self.numbers:
            if not (f"{number:04d}" in images and f"{number:04d}" in depths):
                raise FileNotFoundError(
                    f"{root / 'split.json'} names {len(chosen)} frames for {split!r}, but "
                    f"{root}/rgb/{number:04d}.jpg or depth/{number:04d}.png is missing; "
                    f"rgb/*.jpg are {len(images)} files, depth/*.png are {len(depths)}"
                )

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.numbers)

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return f"{self.numbers[index]:04d}"

    def __getitem__(self, index: int) -> Sample:
        """Read one frame."""
        name = f"{self.numbers[index]:04d}"
        image = read_image(self.root / "rgb" / f"{name}.jpg")
        depth = read_depth_png(self.root / "depth" / f"{name}.png", MILLIMETRES)
        if image.shape[:2] != HALF_SIZE:
            raise ValueError(
                f"{self.root}/rgb/{name}.jpg is {list(image.shape[:2])} pixels (height, width); "
                f"exported frames are {list(HALF_SIZE)}"
            )
        camera = make_intrinsics(259.4, 259.7, 162.8, 126.9)
        return crop(to_sample(name, image, depth, None, camera), *HALF_WINDOW)


def paper_split() -> dict[str, list[int]]:
    """The paper's 75 % and 25 % of the frames: indices in the official file, from 0."""
    bounds = (map(int, run.split("-")) for run in TRAIN_RUNS.split())
    train = [i for first, last in bounds for i in range(first, last + 1)]
    return {"train": train, "test": sorted(set(range(FRAMES)) - set(train))}


def _official_split(path: Path) -> dict[str, list[int]]:
    """The official split of 795 and 654 frames; its file counts from 1."""
    file = find_file(path.with_name("splits.mat"), "the official protocol needs it beside the data")
    try:
        found = read_arrays(file.read_bytes())
        parts = {"train": found["trainNdxs"], "test": found["testNdxs"]}
        return {name: sorted(int(i) - 1 for i in part.ravel()) for name, part in parts.items()}
    except (ValueError, KeyError, OverflowError) as error:
        raise ValueError(
            f"{file} is not the official split file: it should hold `trainNdxs` and `testNdxs` "
            f"({' '.join(str(error).split())[:200]})"
        ) from error


def _read_split(path: Path) -> dict[str, list[int]]:
    try:
        parts = json.loads(read_text(path))
        return {name: [int(number) for number in parts[name]] for name in ("train", "test")}
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(
            f'{path} should hold {{"train": [numbers], "test": [numbers]}} ({str(error)[:200]!r})'
        ) from error


def _open(path: Path) -> Any:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'reading a .mat file needs h5py: pip install "deepbasis[train]"'
        ) from error
    if not h5py.is_hdf5(path):
        raise ValueError(
            f"{path} is not a MATLAB 7.3 (HDF5) file; the official nyu_depth_v2_labeled.mat is, "
            "so this is another file or an incomplete download"
        )
    with reading(path, "a MATLAB 7.3 (HDF5) file"):
        return h5py.File(path, "r")


def _check_contents(file: Any, path: Path) -> None:
    wanted = {"images": (FRAMES, 3, 640, 480), "depths": (FRAMES, 640, 480)}
    found = {name: file[name].shape if name in file else None for name in wanted}
    if found != wanted:
        raise ValueError(
            f"{path} holds {found}; the official file holds {wanted}, so this is another one"
        )
