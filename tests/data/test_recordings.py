# SPDX-License-Identifier: Apache-2.0
"""COLMAP, TUM RGB-D, trajectories with a map, transforms.json, phones and LAS: one wall in each.

The scene is built from its answer: points of known depth at known pixels of a camera whose pose is
known, written as each program writes them.
"""

import json
import math
import struct
import sys

import laspy
import numpy as np
import pye57
import pytest
import torch
from PIL import Image
from scipy.spatial.transform import Rotation

from deepbasis.cli import main
from deepbasis.data.clouds import read_cloud, write_ply
from deepbasis.data.colmap import ColmapFrames, is_colmap, read_model
from deepbasis.data.confidence import RELATIVE_SIGMA, read_confidence, to_points
from deepbasis.data.formats import write_depth_png, write_image, write_npy
from deepbasis.data.limits import MissingOption
from deepbasis.data.nerfstudio import NerfFrames
from deepbasis.data.sample import make_intrinsics
from deepbasis.data.slam import MapFrames, TumFolder
from models import make_model

SIZE = (48, 64)
FX, FY, CX, CY = 60.0, 62.0, 31.0, 24.0
CAMERA = torch.tensor([[FX, 0, CX], [0, FY, CY], [0, 0, 1]])
TIMES = ["1305031452.791720", "1305031452.823674"]


class Wall:
    """Points of two images, in each image and in the world."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.images = [rng.integers(256, size=(*SIZE, 3), dtype=np.uint8) for _ in TIMES]
        self.rows, self.world, self.poses = [], [], []
        for i in range(2):
            place = rng.permutation(SIZE[0] * SIZE[1])[:150]
            v, u = np.divmod(place, SIZE[1])
            depth = rng.uniform(2.9, 3.1, 150)
            seen = np.stack([(u - CX) / FX * depth, (v - CY) / FY * depth, depth], 1)
            pose = np.eye(4)  # camera in the world
            pose[:3, :3] = Rotation.from_rotvec([0.1 * i, -0.2, 0.3]).as_matrix()
            pose[:3, 3] = [1, -2 + i, 0.5]
            self.rows.append(np.stack([u, v, depth], 1))
            self.world.append(seen @ pose[:3, :3].T + pose[:3, 3])
            self.poses.append(pose)

    def save_images(self, folder, names):
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in zip(names, self.images, strict=True):
            write_image(folder / f"{name}.png", image)
        return {name: folder / f"{name}.png" for name in names}


@pytest.fixture(scope="module")
def wall():
    return Wall()


def same_points(points, rows, accuracy=1e-6):
    """Whatever their order."""
    found = points.rows[:, :3]
    found = found[np.lexsort(found[:, :2].round(3).T)]
    expected = rows[np.lexsort(rows[:, :2].round(3).T)]
    assert found == pytest.approx(expected, rel=accuracy, abs=1e-3)


def write_colmap(folder, wall, *, binary, scale=1.0):
    """A model of two images; one observation belongs to no point, and one point is not there."""
    folder.mkdir(parents=True)
    views, points = [], []
    for i in range(2):
        to_camera = np.linalg.inv(wall.poses[i])
        x, y, z, w = Rotation.from_matrix(to_camera[:3, :3]).as_quat()
        places = wall.rows[i][:, :2] + 0.5
        numbers = 1000 * i + np.arange(150) + 7
        views.append((i + 1, (w, x, y, z, *(scale * to_camera[:3, 3])), f"cam/{i:03d}.png",
                      np.append(places, [[1, 1], [2, 2]], 0), [*numbers, -1, 99999]))  # fmt: skip
        points += list(zip(numbers, scale * wall.world[i], strict=True))
    points.reverse()  # in no order
    parameters = (FX, FY, CX + 0.5, CY + 0.5)
    if binary:
        content = struct.pack("<QiiQQ4d", 1, 5, 1, SIZE[1], SIZE[0], *parameters)
        (folder / "cameras.bin").write_bytes(content)
        content = struct.pack("<Q", len(views))
        for number, pose, name, places, ids in views:
            content += struct.pack("<i7di", number, *pose, 5) + name.encode() + b"\0"
            content += struct.pack("<Q", len(ids))
            for place, one in zip(places, ids, strict=True):
                content += struct.pack("<ddq", *place, one)
        (folder / "images.bin").write_bytes(content)
        content = struct.pack("<Q", len(points))
        for number, xyz in points:
            content += struct.pack("<Q3d3BdQ", number, *xyz, 1, 2, 3, 0.5, 2)
            content += struct.pack("<4i", 1, 2, 3, 4)
        (folder / "points3D.bin").write_bytes(content)
        return folder
    numbers = " ".join(map(repr, parameters))
    (folder / "cameras.txt").write_text(f"# a comment\n5 PINHOLE {SIZE[1]} {SIZE[0]} {numbers}\n")
    lines = ["# a comment"]
    for number, pose, name, places, ids in views:
        lines.append(f"{number} {' '.join(repr(float(x)) for x in pose)} 5 {name}")
        seen = zip(places.tolist(), ids, strict=True)
        lines.append(" ".join(f"{x} {y} {one}" for (x, y), one in seen))
    (folder / "images.txt").write_text("\n".join([*lines, "9 1 0 0 0 0 0 0 5 none.png", "", ""]))
    text = [f"{n} {' '.join(repr(float(x)) for x in xyz)} 1 2 3 0.5 1 2" for n, xyz in points]
    (folder / "points3D.txt").write_text("\n".join(text))
    return folder


@pytest.mark.parametrize("binary", [True, False])
def test_colmap(wall, tmp_path, binary):
    folder = write_colmap(tmp_path / "sparse", wall, binary=binary, scale=2.5)
    assert is_colmap(folder)
    images = wall.save_images(tmp_path / "images", ["000", "001"])
    frames = ColmapFrames(images | {"other": tmp_path / "other.png"}, folder, scale=2.5)
    assert "2 of 3 images" in frames.about
    for i, name in enumerate(["000", "001"]):
        found = frames.read(name)
        same_points(found.points, wall.rows[i])
        assert torch.allclose(found.camera, CAMERA)
        assert (found.image == wall.images[i]).all()


def test_images_may_be_smaller_than_those_of_colmap(wall, tmp_path):
    folder = write_colmap(tmp_path / "sparse", wall, binary=True)
    model = read_model(folder)
    half = model.rows("000", (SIZE[0] // 2, SIZE[1] // 2), 1.0)
    whole = model.rows("000", SIZE, 1.0)
    assert (half[:, :2] + 0.5) * 2 - 0.5 == pytest.approx(whole[:, :2])
    assert model.intrinsics("000", (24, 32))[0].tolist() == pytest.approx([30, 0, 15.25])


@pytest.mark.parametrize("binary", [True, False])
def test_a_damaged_model_of_colmap(wall, tmp_path, binary):
    folder = write_colmap(tmp_path / "sparse", wall, binary=binary)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for content in (whole[:-5], b"9" * 100, b"") if binary else (b"9" * 100, b"1 x"):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=str(path)):
                read_model(folder)
        path.write_bytes(whole)


@pytest.mark.parametrize("binary", [True, False])
def test_images_of_colmap_with_one_name_are_refused(wall, tmp_path, binary):
    """Files are matched by name, so the pose of one would be given to the other."""
    folder = write_colmap(tmp_path / "sparse", wall, binary=binary)
    path = folder / ("images.bin" if binary else "images.txt")
    path.write_bytes(path.read_bytes().replace(b"cam/001.png", b"car/000.png"))
    with pytest.raises(ValueError, match=r"two images are called '000', in different folders"):
        read_model(folder)


def test_a_name_of_colmap_that_does_not_end_is_refused(wall, tmp_path):
    folder = write_colmap(tmp_path / "sparse", wall, binary=True)
    path = folder / "images.bin"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"001.png", 4088 * b"x" + b".png"))  # after `cam/`
    assert len(read_model(folder).views) == 2
    path.write_bytes(whole.replace(b"001.png", 4089 * b"x" + b".png"))
    with pytest.raises(ValueError, match=r"images.bin .*a name in it is longer than 4096 bytes"):
        read_model(folder)


def write_tum(root, wall):
    names = wall.save_images(root / "rgb", TIMES)
    for name, rows in zip(TIMES, wall.rows, strict=True):
        depth = np.zeros(SIZE)
        depth[rows[:, 1].astype(int), rows[:, 0].astype(int)] = rows[:, 2]
        (root / "depth").mkdir(exist_ok=True)
        write_depth_png(root / "depth" / f"{float(name) + 0.005:.6f}.png", depth, 5000)
    for kind, shift in (("rgb", 0.0), ("depth", 0.005)):
        lines = [f"{float(n) + shift:.6f} {kind}/{float(n) + shift:.6f}.png" for n in TIMES]
        extra = ["1305031460.0 rgb/late.png"] if kind == "rgb" else []
        (root / f"{kind}.txt").write_text("\n".join(["# color images", *lines, *extra]))
    return names


def test_tum_folders_are_paired_by_time(wall, tmp_path):
    write_tum(tmp_path, wall)
    frames = TumFolder(tmp_path, CAMERA)
    assert frames.names == TIMES
    assert "2 of 3 images, each with a depth image at most 0.005 s away" in frames.about
    for i, name in enumerate(TIMES):
        found = frames.read(name)
        same_points(found.points, wall.rows[i], 1e-4)
        assert found.time == int(name.replace(".", "")) * 1000
    with pytest.raises(ValueError, match=r"nearest pair is 0\.005 s apart"):
        TumFolder(tmp_path, tolerance=0.001)
    (tmp_path / "rgb.txt").write_text("1305031452.79 rgb/a.png left\n")
    with pytest.raises(ValueError, match=r"rgb.txt, line 1: .* is not `time path`"):
        TumFolder(tmp_path)


def test_images_of_tum_with_one_name_are_refused(wall, tmp_path):
    write_tum(tmp_path, wall)
    (tmp_path / "rgb.txt").write_text(f"{TIMES[0]} a/1.png\n{TIMES[1]} b/1.png\n")
    with pytest.raises(ValueError, match=r"rgb.txt: two images are called '1', in different fol"):
        TumFolder(tmp_path)


FAR = np.array([3000.0, 4000, 0])


@pytest.mark.parametrize(("scale", "moved"), [(2.0, 0), (1000.0, 0), (1.0, FAR)])
def test_a_trajectory_with_a_map(wall, tmp_path, scale, moved):
    """In another unit, or far from the origin of the map."""
    images = wall.save_images(tmp_path / "rgb", TIMES)
    lines = []
    for name, pose in zip(TIMES, wall.poses, strict=True):
        quaternion = Rotation.from_matrix(pose[:3, :3]).as_quat()
        numbers = [*(scale * (pose[:3, 3] + moved)), *quaternion]
        lines.append(f"{float(name) + 0.001:.6f} " + " ".join(f"{x:.9f}" for x in numbers))
    (tmp_path / "poses.txt").write_text("\n".join(["# time tx ...", *reversed(lines)]))
    write_ply(tmp_path / "map.ply", scale * (wall.world[1] + moved))
    frames = MapFrames(images, tmp_path / "poses.txt", tmp_path / "map.ply", CAMERA, scale)
    found = frames.read(TIMES[1])
    same_points(found.points, wall.rows[1], 1e-5)
    with pytest.raises(ValueError, match="is not named by its time in seconds"):
        MapFrames({"a": tmp_path / "a.png"}, tmp_path / "poses.txt", tmp_path / "map.ply", CAMERA)


def write_transforms(root, wall, *, depth):
    names = ["frame_00001", "frame_00002"]
    wall.save_images(root / "images", names)
    frames = []
    for i, name in enumerate(names):
        opengl = wall.poses[i] @ np.diag([1, -1, -1, 1])
        one = {"file_path": f"images/{name}.png", "transform_matrix": opengl.tolist()}
        if depth:
            values = np.zeros(SIZE, np.float32)
            rows = wall.rows[i]
            values[rows[:, 1].astype(int), rows[:, 0].astype(int)] = rows[:, 2]
            (root / "depth").mkdir(exist_ok=True)
            write_npy(root / f"depth/{name}.npy", values)
            one["depth_file_path"] = f"depth/{name}.npy"
        frames.append(one)
    content = {"w": SIZE[1], "h": SIZE[0], "fl_x": FX, "fl_y": FY, "cx": CX + 0.5, "cy": CY + 0.5,
               "k1": 0, "k2": 0, "p1": 0, "p2": 0, "camera_model": "OPENCV",
               "frames": frames}  # fmt: skip
    if not depth:
        write_ply(root / "sparse_pc.ply", wall.world[1])
        content["ply_file_path"] = "sparse_pc.ply"
    (root / "transforms.json").write_text(json.dumps(content))
    return content


@pytest.mark.parametrize("depth", [True, False])
def test_transforms_of_nerfstudio(wall, tmp_path, depth):
    write_transforms(tmp_path, wall, depth=depth)
    frames = NerfFrames(tmp_path)
    found = frames.read("frame_00002")
    same_points(found.points, wall.rows[1], 1e-5)
    assert torch.allclose(found.camera, CAMERA)
    assert (found.image == wall.images[1]).all()


def test_the_camera_of_nerfstudio_may_be_an_angle_or_be_passed(wall, tmp_path):
    content = write_transforms(tmp_path, wall, depth=True)
    del content["fl_x"], content["fl_y"]
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    with pytest.raises(MissingOption, match=r"has no camera .* pass --intrinsics"):
        NerfFrames(tmp_path)
    camera = make_intrinsics(FX, FX, CX, CY)
    passed = NerfFrames(tmp_path, camera=camera)
    content["camera_angle_x"] = 2 * math.atan(SIZE[1] / 2 / FX)
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    angle = NerfFrames(tmp_path)
    for frames in (passed, angle):
        found = frames.read("frame_00001").camera
        torch.testing.assert_close(found, camera, check_dtype=False)


def test_a_model_of_colmap_without_most_of_its_points(wall, tmp_path):
    write_colmap(tmp_path / "sparse", wall, binary=False)
    path = tmp_path / "sparse" / "points3D.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:3]))
    model = read_model(tmp_path / "sparse")
    with pytest.raises(ValueError, match="are not in the model; it is not complete"):
        model.rows(next(iter(model.views)), SIZE, 1.0)


def test_a_cloud_of_nerfstudio_may_be_far_from_its_origin(wall, tmp_path):
    content = write_transforms(tmp_path, wall, depth=False)
    write_ply(tmp_path / "sparse_pc.ply", wall.world[1] + FAR)
    for frame in content["frames"]:
        pose = np.array(frame["transform_matrix"])
        pose[:3, 3] += FAR
        frame["transform_matrix"] = pose.tolist()
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    same_points(NerfFrames(tmp_path).read("frame_00002").points, wall.rows[1], 1e-5)


def test_damaged_transforms(wall, tmp_path):
    content = write_transforms(tmp_path, wall, depth=False)
    path = tmp_path / "transforms.json"
    for text, said in (
        ("{", "cannot be read as transforms.json"),
        ("{}", "'frames' is not in it"),
        (json.dumps(content | {"frames": []}), "it has 0 frames"),
        (json.dumps(content | {"frames": 3}), "it is damaged"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            NerfFrames(path)
    for change, said in (
        ({"fl_x": None}, "it is damaged"),
        ({"fl_x": -1}, "the camera's intrinsics are"),
        ({"camera_model": "FOV"}, "'FOV' is not supported"),
    ):
        path.write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=said):
            NerfFrames(path).read("frame_00001")
    content["frames"][1]["transform_matrix"] = np.zeros((4, 4)).tolist()
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is not a pose"):
        NerfFrames(path).read("frame_00002")


def test_confidence_becomes_sigma(tmp_path):
    """Each depth of a small depth image is a point at the centre of what it covers."""
    depth = np.array([[1.0, 2.0], [0.0, 4.0]], np.float32)
    for levels in ([[0, 1], [2, 2]], [[0, 54], [255, 255]]):
        Image.fromarray(np.array(levels, np.uint8)).save(tmp_path / "confidence.png")
        sigma = read_confidence(tmp_path / "confidence.png")
        points = to_points(depth, sigma, (40, 40), "depth.png")
        low, medium, high = RELATIVE_SIGMA
        expected = [[9.5, 9.5, 1, low], [29.5, 9.5, 2, 2 * medium], [29.5, 29.5, 4, 4 * high]]
        assert points.rows == pytest.approx(np.array(expected))
    with pytest.raises(ValueError, match="with the same aspect ratio"):
        to_points(depth, sigma, (40, 60), "depth.png")
    with pytest.raises(ValueError, match="but 1 x 2 confidences"):
        to_points(depth, sigma[:1], (40, 40), "depth.png")
    Image.fromarray(np.array([[0, 7]], np.uint8)).save(tmp_path / "confidence.png")
    with pytest.raises(ValueError, match="holds the confidence 7"):
        read_confidence(tmp_path / "confidence.png")


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_las_clouds(tmp_path, suffix, monkeypatch):
    xyz = np.random.default_rng(0).uniform(-5, 5, (20, 3)) + np.array([5e5, 4e6, 100])
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.offsets, header.scales = xyz.min(0), np.full(3, 0.001)
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = xyz.T
    path = tmp_path / f"cloud{suffix}"
    cloud.write(str(path))
    assert read_cloud(path) == pytest.approx(xyz, abs=0.001)
    whole = path.read_bytes()
    for content, said in ((whole[:200], ""), (whole[:-40], ""), (b"\xff\xd8" * 200, "LASF")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"cannot be read as a LAS point cloud: .*{said}"):
            read_cloud(path)
    monkeypatch.setitem(sys.modules, "laspy", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "deepbasis\[las\]"'):
        read_cloud(path)


@pytest.mark.parametrize("version", ["1.2", "1.4"])
def test_a_damaged_record_of_laszip_does_not_end_the_program(version, tmp_path, capfd):
    header = laspy.LasHeader(point_format=3, version=version)
    cloud = laspy.LasData(header)
    cloud.x, cloud.y, cloud.z = np.random.default_rng(0).uniform(1, 2, (3, 30))
    cloud.write(str(tmp_path / "cloud.laz"))
    content = bytearray((tmp_path / "cloud.laz").read_bytes())
    record = content.index(b"laszip encoded") + 52
    content[record + 12 : record + 16] = b"\xff\xff\xff\x7f"  # points of a chunk: 2^31
    (tmp_path / "cloud.laz").write_bytes(content)
    assert len(read_cloud(tmp_path / "cloud.laz")) == 30
    content[record + 32 : record + 34] = b"\0\0"  # parts of a point
    (tmp_path / "cloud.laz").write_bytes(content)
    with pytest.raises(ValueError, match="points consist of nothing"):
        read_cloud(tmp_path / "cloud.laz")
    assert not capfd.readouterr().err


def write_e57(path, scans, poses):
    with pye57.E57(str(path), mode="w") as file:
        for xyz, (turn, moved) in zip(scans, poses, strict=True):
            columns = {f"cartesian{axis}": xyz[:, i].copy() for i, axis in enumerate("XYZ")}
            file.write_scan_raw(columns, rotation=np.array(turn), translation=np.array(moved))


def test_scans_of_an_e57_file_are_joined_in_its_frame(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    first, second = draw.uniform(-5, 5, (20, 3)), draw.uniform(-5, 5, (30, 3))
    quarter = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]  # w x y z: x becomes y
    path = tmp_path / "cloud.e57"
    write_e57(path, [first, second], [([1.0, 0, 0, 0], [0.0, 0, 0]), (quarter, [10.0, 0, 1])])
    turned = np.stack([10 - second[:, 1], second[:, 0], 1 + second[:, 2]], 1)
    assert read_cloud(path) == pytest.approx(np.concatenate([first, turned]), abs=1e-5)
    content = path.read_bytes()
    changed = content[:500] + b"x" + content[501:]
    for damaged in (content[:700], b"ASTM-E57" + bytes(2000), b"", changed):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot be read as an E57 point cloud"):
            read_cloud(path)
    monkeypatch.setitem(sys.modules, "pye57", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "deepbasis\[e57\]"'):
        read_cloud(path)


@pytest.fixture
def complete(wall, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_model(errors="independent").save(tmp_path / "model.safetensors")

    def run(words):
        words = [*words.split(), "--model", "model.safetensors", "--out", "out"]
        monkeypatch.setattr(sys, "argv", ["deepbasis", "complete", *words])
        main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tum --sparse a.csv", "--sparse is for images; tum has its own points"),
        ("tum --poses a.txt", "--poses is for images and videos, not for recordings such as tum"),
        ("tum --poses a.txt --sequence", "--poses is for images and videos, not for recordings"),
        ("tum --image /camera", "--image is for bags only; tum is not a bag"),
        ("nerf --extrinsics pose.txt", "--extrinsics is not used with nerf: leave it out"),
        ("nerf --intrinsics camera.txt", "transforms.json has its own camera: leave out"),
        ("tum --cloud", "--cloud needs the camera: pass --intrinsics"),
        ("nerf --tolerance 0.1", "--tolerance is not used with nerf: leave it out"),
        ("images --tolerance 0.1", "--tolerance is for recordings and poses: leave it out"),
        ("images --confidence images", "--confidence is of the depth of --sparse"),
        ("images --sparse a.bag", "a.bag is a bag: pass it in place of the images"),
        (
            "other.json",
            "only files of Nerfstudio are read, and they must be called transforms.json",
        ),
        ("ros/metadata.yaml", "is a part of a ROS 2 bag: pass its folder, ros"),
        ("half", "half has rgb.txt of a TUM RGB-D folder, but not depth.txt, which lists"),
        ("images --sparse project", "not a model of COLMAP but holds one: pass project/sparse/0"),
        ("images --sparse radial --cloud", "that of the COLMAP model has distortion and is not"),
        ("tum --out-bag a.mcap", "--out-bag a.mcap would be a folder of ROS 2: leave out .mcap"),
        ("images --sparse models", "is not a model of COLMAP but holds one: pass models/0"),
        ("images --sparse lacking", "but neither cameras.bin nor cameras.txt"),
        (
            "images/000.png --sparse images/000.png --intrinsics camera.txt --extrinsics pose.txt",
            "images/000.png is not a point cloud: leave out --extrinsics\n",
        ),
        ("images --points /velodyne", "--points is for bags only; images is not a bag"),
        ("images --sparse sparse --confidence a.png", "cannot be combined with --sparse sparse"),
    ],
)
def test_options_that_would_be_ignored_are_refused(wall, tmp_path, complete, capsys, words, said):
    write_tum(tmp_path / "tum", wall)
    write_transforms(tmp_path / "nerf", wall, depth=True)
    write_colmap(tmp_path / "sparse", wall, binary=False)
    wall.save_images(tmp_path / "images", ["000", "001"])
    (tmp_path / "camera.txt").write_text(f"{FX} {FY} {CX} {CY}")
    np.savetxt(tmp_path / "pose.txt", np.eye(4))
    for name in ("a.bag", "other.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "ros").mkdir()
    (tmp_path / "ros" / "metadata.yaml").write_text("{}")
    write_tum(tmp_path / "half", wall)
    (tmp_path / "half" / "depth.txt").unlink()
    write_colmap(tmp_path / "project" / "sparse" / "0", wall, binary=False)
    write_colmap(tmp_path / "radial", wall, binary=False)
    cameras = tmp_path / "radial" / "cameras.txt"
    cameras.write_text(cameras.read_text().replace("PINHOLE", "SIMPLE_RADIAL"))
    write_colmap(tmp_path / "models" / "0", wall, binary=False)
    write_colmap(tmp_path / "lacking", wall, binary=False)
    (tmp_path / "lacking" / "cameras.txt").unlink()
    with pytest.raises(SystemExit, match="2"):
        complete(words)
    assert said in capsys.readouterr().err


def test_files_of_one_name_and_the_camera_make_frames_out_of_date(wall, tmp_path, complete):
    write_tum(tmp_path / "tum", wall)
    lines = []
    for name in TIMES:
        (tmp_path / f"tum/depth/{float(name) + 0.005:.6f}.png").rename(
            tmp_path / f"tum/depth/{float(name):.6f}.png"
        )
        lines.append(f"{name} depth/{float(name):.6f}.png")
    (tmp_path / "tum/depth.txt").write_text("\n".join(lines))
    camera = tmp_path / "camera.txt"
    camera.write_text(f"{FX} {FY} {CX} {CY}")
    words = "tum --intrinsics camera.txt --cloud --no-figure"
    assert complete(words).count("150 points used") == 2
    assert "2 of 2 frames are done already" in complete(words)
    Image.new("RGB", SIZE[::-1]).save(tmp_path / f"tum/rgb/{float(TIMES[0]):.6f}.png")
    assert "1 of 2 frames is done already" in complete(words)
    camera.write_text(f"{2 * FX} {2 * FY} {CX} {CY}")
    assert complete(words).count("150 points used") == 2


@pytest.mark.slow
def test_the_command_reads_them_all(wall, tmp_path, complete):
    write_tum(tmp_path / "tum", wall)
    assert complete("tum").count("150 points used") == 2
    write_transforms(tmp_path / "nerf", wall, depth=True)
    assert complete("nerf --cloud").count("150 points used") == 2
    assert "2 of 2 frames are done already" in complete("nerf/transforms.json --cloud")
    write_colmap(tmp_path / "sparse", wall, binary=False)
    wall.save_images(tmp_path / "images", ["000", "001"])
    assert complete("images --sparse sparse --cloud").count("150 points used") == 2
    # Changed points make frames out of date.
    write_colmap(tmp_path / "other", wall, binary=True)
    (tmp_path / "other/points3D.bin").rename(tmp_path / "sparse/points3D.bin")
    assert "done already" not in complete("images --sparse sparse --cloud")

    wall.save_images(tmp_path / "phone/rgb", ["000000", "000001"])
    for folder in ("depth", "confidence"):
        (tmp_path / "phone" / folder).mkdir()
    for name in ("000000", "000001"):
        write_depth_png(tmp_path / f"phone/depth/{name}.png", np.full((24, 32), 3.0), 1000)
        levels = np.random.default_rng(0).integers(3, size=(24, 32)).astype(np.uint8)
        Image.fromarray(levels).save(tmp_path / f"phone/confidence/{name}.png")
    (tmp_path / "camera_matrix.csv").write_text(f"{FX},0,{CX}\n0,{FY},{CY}\n0,0,1\n")
    said = complete(
        "phone/rgb --sparse phone/depth --confidence phone/confidence --depth-scale 1000 "
        "--intrinsics camera_matrix.csv"
    )
    assert said.count("768 points used") == 2
