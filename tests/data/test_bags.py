# SPDX-License-Identifier: Apache-2.0
"""Bags of ROS 1, ROS 2 and MCAP: written here by `rosbags`, read by us, and the other way round."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from data.fake_bags import LIDAR_TO_CAMERA, START, FakeBag, to_lidar
from deepbasis.cli import main
from deepbasis.data import messages
from deepbasis.data.bags import Bag, BagWriter, Topics, is_rectified
from deepbasis.data.lens import Lens
from deepbasis.data.limits import MissingOption
from deepbasis.data.recording import Recorded, pair
from deepbasis.data.transforms import Transforms, find_transform
from models import make_model

SIZE = (48, 64)
CAMERA = np.array([[60.0, 0, 31.5], [0, 60.0, 23.5], [0, 0, 1]])
BASE = np.array([[1.0, 0, 0, 0.3], [0, 1, 0, 0], [0, 0, 1, 1.2], [0, 0, 0, 1]])
IMAGE, POINTS, INFO = "/cam/image_raw", "/velodyne_points", "/cam/camera_info"
KINDS = ["drive.bag", "drive", "drive-db3", "drive.mcap"]
SECOND = 10**9


def wall(frame=0):
    """An image and 300 measured pixels of a wall about 3 m away."""
    rng = np.random.default_rng(frame)
    image = rng.integers(256, size=(*SIZE, 3), dtype=np.uint8)
    depth = np.zeros(SIZE, np.float32)
    chosen = rng.permutation(depth.size)[:300]
    depth.flat[chosen] = rng.uniform(2.9, 3.1, 300)
    return image, depth


def write_drive(path, frames=3, *, fill=None):
    """A bag with `frames` images, a LiDAR 3 ms later, camera info, and transforms over a base."""
    bag = FakeBag(path, db3=path.name.endswith("db3"))
    bag.transform(START, BASE, "/base_link", "lidar")
    bag.transform(START, BASE @ np.linalg.inv(LIDAR_TO_CAMERA), "base_link", "camera")
    bag.info(INFO, START, CAMERA, SIZE)
    for i in range(frames):
        image, depth = wall(i)
        time = START + i * SECOND // 10
        bag.image(IMAGE, time, image[..., ::-1], "bgr8")
        bag.cloud(POINTS, time + 3_000_000, to_lidar(depth, CAMERA))
    if fill is not None:
        fill(bag)
    bag.close()
    return path


@pytest.fixture(scope="module", params=KINDS)
def drive(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    if request.param != "drive.mcap":
        return write_drive(folder / request.param)
    return next(write_drive(folder / "drive").glob("*.mcap"))


def test_images_and_points_of_every_kind_of_bag_are_read(drive):
    bag = Bag(drive, Topics(IMAGE, POINTS, INFO))
    assert len(bag.names) == 3
    assert bag.names[1] == "1700000000.223456789"
    assert "at most 0.003 s away" in bag.about
    for i, name in enumerate(bag.names):
        found = bag.read(name)
        image, depth = wall(i)
        assert (found.image == image).all()
        assert found.time == START + i * SECOND // 10
        assert found.frame_id == "camera"
        assert torch.equal(found.camera, torch.tensor(CAMERA).float())
        row, column, metres = (*found.points.pixel, found.points.rows[:, 2])
        assert metres == pytest.approx(depth[row, column], rel=1e-5)
        # Nothing hides anything on a wall.
        assert len(found.points) == 300


def test_topics_need_not_be_named_where_there_is_one_of_a_kind(drive):
    assert Bag(drive).read("1700000000.123456789").points is not None


@pytest.mark.parametrize(
    "drive",
    [
        kind if kind == "drive.mcap" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
    indirect=True,
)
def test_a_bag_is_completed_and_the_results_are_a_bag_again(drive, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_model(errors="independent").save(tmp_path / "model.safetensors")
    words = ["complete", str(drive), "--image", IMAGE, "--points", POINTS, "--info", INFO]
    words += ["--model", "model.safetensors", "--out", "out"]
    end = "results.bag" if drive.suffix == ".bag" else "results"
    monkeypatch.setattr(sys, "argv", ["deepbasis", *words, "--out-bag", end])
    main()
    said = capsys.readouterr().out
    assert "3 images of /cam/image_raw" in said
    assert said.count("300 points used") == 3
    name = "1700000000.223456789"
    summary = json.loads((tmp_path / f"out/{name}.json").read_text())
    assert summary["points"] == 300

    depth = np.load(tmp_path / f"out/{name}-depth.npy")
    std = np.load(tmp_path / f"out/{name}-std.npy")
    for topic, values in (("/deepbasis/depth", depth), ("/deepbasis/points", depth)):
        again = Bag(tmp_path / end, Topics("/deepbasis/image", topic)).read(name)
        assert (again.image == wall(1)[0]).all()
        assert again.points.rows[:, 2] == pytest.approx(values.ravel(), rel=1e-5)
    result = Bag(tmp_path / end, Topics("/deepbasis/image", "/deepbasis/std"))
    assert result.read(name).points.rows[:, 2] == pytest.approx(std.ravel(), rel=1e-6)

    # The second run adds frames that are done to a new bag.
    monkeypatch.setattr(sys, "argv", ["deepbasis", *words, "--out-bag", f"again-{end}"])
    main()
    said = capsys.readouterr().out
    assert "3 of 3 frames are done already" in said
    assert said.endswith(f"the bag is again-{end}\n")
    assert len(Bag(tmp_path / f"again-{end}", Topics("/deepbasis/image")).names) == 3
    assert not list(tmp_path.glob(".*.part"))


def test_images_without_points_near_in_time_are_left_out(tmp_path):
    def lonely(bag):
        bag.image(IMAGE, START + SECOND, wall()[0], "rgb8")

    bag = Bag(write_drive(tmp_path / "a.bag", fill=lonely))
    assert len(bag.names) == 3
    assert "1 without points within 0.02 s left out" in bag.about
    with pytest.raises(
        ValueError, match=r"within 0.001 s of an image; the nearest pair is 0.003 s"
    ):
        Bag(tmp_path / "a.bag", tolerance=0.001)


def test_pairs_are_nearest_in_time():
    times = [0, 100, 200, 330]
    assert pair(times, [90, 140, 205], 1e-6, "x") == {0: 0, 1: 0, 2: 2, 3: 2}
    assert pair(times, [90, 140, 205], 2e-8, "x") == {1: 0, 2: 2}


def test_transforms_lead_over_any_path():
    draw = np.random.default_rng(0)

    def pose():
        turn, _ = np.linalg.qr(draw.normal(size=(3, 3)))
        made = np.eye(4)
        made[:3, :3], made[:3, 3] = turn * np.linalg.det(turn), draw.normal(size=3)
        return torch.from_numpy(made)

    in_base, in_tower, tower_in_base = pose(), pose(), pose()
    known = {("base", "lidar"): in_base, ("tower", "camera"): in_tower,
             ("base", "tower"): tower_in_base}  # fmt: skip
    expected = torch.linalg.inv(tower_in_base @ in_tower) @ in_base
    assert torch.allclose(find_transform(known, "lidar", "camera"), expected)
    assert torch.equal(find_transform({}, "a", "a"), torch.eye(4).double())
    with pytest.raises(ValueError, match="from the points' frame 'lidar' to the image's 'map'"):
        find_transform(known, "lidar", "map")


def test_a_transform_that_never_changes_may_be_on_tf_and_one_that_does_is_not_used(tmp_path):
    def on_tf(path, moving):
        bag = FakeBag(path)
        for i in range(3):
            pose = np.linalg.inv(LIDAR_TO_CAMERA)
            pose[0, 3] += moving * i
            bag.transform(START + i, pose, "lidar", "camera", topic="/tf")
        bag.info(INFO, START, CAMERA, SIZE)
        bag.image(IMAGE, START, wall()[0], "rgb8")
        bag.cloud(POINTS, START, to_lidar(wall()[1], CAMERA))
        bag.close()
        found = Bag(path)
        return found.read(found.names[0])

    assert len(on_tf(tmp_path / "still.bag", 0.0).points) == 300
    with pytest.raises(MissingOption, match=r"pass --tf, since .* change, or --extrinsics"):
        on_tf(tmp_path / "moving.bag", 0.1)


@pytest.mark.parametrize("name", ["turning.bag", "turning"])
def test_a_transform_that_changes_is_taken_at_the_time_of_the_points(name, tmp_path):
    """A LiDAR turns by 0.2 rad in 0.1 s; the cloud is taken after a quarter of that."""

    def turned(angle):
        c, s = np.cos(angle), np.sin(angle)
        return np.array([[c, -s, 0, 0.3], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])

    first, last = START - SECOND // 40, START + 3 * SECOND // 40
    bag = FakeBag(tmp_path / name)
    bag.transform(last, turned(0.2), "base", "head", topic="/tf")  # in any order
    bag.transform(first, turned(0.0), "base", "head", topic="/tf")
    bag.transform(START, np.eye(4), "head", "lidar")
    bag.transform(START, turned(0.05) @ np.linalg.inv(LIDAR_TO_CAMERA), "base", "camera")
    bag.info(INFO, START, CAMERA, SIZE)
    for time in (START, last + SECOND // 100, last + SECOND):
        bag.image(IMAGE, time, wall()[0], "rgb8")
        bag.cloud(POINTS, time, to_lidar(wall()[1], CAMERA))
    bag.close()
    found = Bag(tmp_path / name, tf=True)
    points = found.read(found.names[0]).points
    assert len(points) == 300
    row, column = points.pixel
    assert points.rows[:, 2] == pytest.approx(wall()[1][row, column], rel=1e-4)
    # A hundredth of a second later the last is still used; after a second none is.
    assert len(found.read(found.names[1]).points) < 300
    with pytest.raises(ValueError, match=r"no transform at 1700000001\.198456789 s leads"):
        found.read(found.names[2])


def test_transforms_between_two_times_turn_evenly():
    known = Transforms(moving=True, tolerance=0.0)
    for time, angle in ((10, 0.0), (30, 1.0), (20, 0.2)):
        pose = torch.eye(4).double()
        turn = torch.tensor(angle, dtype=torch.float64)
        pose[:2, :2] = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()]).view(2, 2)
        pose[0, 3] = angle
        known.add(("a", "b"), pose, time)
    for time, angle in ((10, 0.0), (15, 0.1), (20, 0.2), (25, 0.6), (30, 1.0)):
        pose = known.at(time)["a", "b"]
        assert torch.atan2(pose[1, 0], pose[0, 0]).item() == pytest.approx(angle, abs=1e-12)
        assert pose[0, 3].item() == pytest.approx(angle)
    assert not known.at(9)
    assert not known.at(31)


def test_options_of_transforms_are_for_bags(tmp_path, monkeypatch, capsys):
    np.savetxt(tmp_path / "pose.txt", np.eye(4))
    Image.fromarray(wall()[0]).save(tmp_path / "photo.png")
    drive = str(write_drive(tmp_path / "drive.bag", 1))
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["photo.png"], "--tf is for bags only; photo.png is not a bag"),
        ([drive, "--extrinsics", "pose.txt"], "leave out --tf"),
    ):
        monkeypatch.setattr(sys, "argv", ["deepbasis", "complete", *words, "--tf", "--out", "out"])
        with pytest.raises(SystemExit) as exit:
            main()
        assert exit.value.code == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_depth_images_in_all_encodings(tmp_path):
    image, depth = wall()
    millimetres = np.round(depth * 1000).astype(np.uint16)
    millimetres[::2][depth[::2] == 0] = 65535  # no measurement either
    buffer = io.BytesIO()
    Image.fromarray(millimetres).save(buffer, "PNG")
    png = buffer.getvalue()
    # Image transport's quantisation of 32FC1: value = a / depth + b, in 1 / 65535ths.
    a, b = 100.0 * 101, 1 - 100.0 * 101 / 10
    inverse = np.where(depth > 0, a / np.where(depth > 0, depth, 1) + b, 0).round()
    buffer = io.BytesIO()
    Image.fromarray(inverse.astype(np.uint16)).save(buffer, "PNG")
    quantised = np.array([0], "<i4").tobytes() + np.array([a, b], "<f4").tobytes()

    bag = FakeBag(tmp_path / "depth")
    bag.compressed("/cam/color/compressed", START, image)
    bag.image("/cam/depth16", START, millimetres, "16UC1")
    holes = np.where(depth > 0, depth, np.nan)
    bag.image("/cam/depth32", START, holes, "32FC1")
    for topic, form, content in (
        ("/cam/c16", "16UC1; compressedDepth png", bytes(12) + png),
        ("/cam/c32", "32FC1; compressedDepth png", quantised + buffer.getvalue()),
        ("/cam/png", "png", png),
    ):
        kind = "sensor_msgs/msg/CompressedImage"
        data = np.frombuffer(content, np.uint8)
        bag.write(topic, kind, START, frame="camera", format=form, data=data)
    bag.close()
    for topic, accuracy in (
        ("depth16", 2e-4), ("depth32", 1e-6), ("c16", 2e-4), ("c32", 5e-4), ("png", 2e-4),
    ):  # fmt: skip
        found = Bag(tmp_path / "depth", Topics("/cam/color/compressed", f"/cam/{topic}"))
        read = found.read(found.names[0])
        assert (read.image == image).all()
        assert np.asarray(read.points.to_map(SIZE)[0]) == pytest.approx(depth, rel=accuracy)
    wrong = Bag(tmp_path / "depth", Topics("/cam/color/compressed", "/cam/color/compressed"))
    with pytest.raises(ValueError, match="not 16-bit grey"):
        wrong.read(wrong.names[0])
    for topic in ("depth16", "depth32", "c16", "c32"):
        swapped = Bag(tmp_path / "depth", Topics(f"/cam/{topic}"))
        with pytest.raises(MissingOption, match=r"so it is a depth image; .* may be swapped"):
            swapped.read(swapped.names[0])


def image_message(values, encoding, *, pad=0):
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(values.shape[0], -1)
    padded = np.pad(rows, ((0, 0), (0, pad)))
    return SimpleNamespace(
        height=values.shape[0], width=values.shape[1], encoding=encoding,
        is_bigendian=values.dtype.byteorder == ">", step=padded.shape[1], data=padded.tobytes(),
    )  # fmt: skip


def test_images_in_all_encodings():
    rgb = wall()[0]
    alpha = np.concatenate([rgb, rgb[..., :1]], -1)
    for message, expected in (
        (image_message(rgb, "rgb8", pad=5), rgb),
        (image_message(rgb[..., ::-1], "bgr8"), rgb),
        (image_message(alpha, "rgba8"), rgb),
        (image_message(alpha[..., [2, 1, 0, 3]], "bgra8"), rgb),
        (image_message(rgb[..., 0], "mono8"), np.repeat(rgb[..., :1], 3, 2)),
    ):
        assert (messages.to_image(message) == expected).all()
    grey = (rgb[..., 0].astype(">u2") + 1) * 250
    wide = messages.to_image(image_message(grey, "mono16"))
    assert np.corrcoef(wide[..., 0].ravel(), grey.ravel())[0, 1] > 0.999
    with pytest.raises(ValueError, match="'yuv422', which is not supported"):
        messages.to_image(image_message(rgb, "yuv422"))
    short = image_message(rgb, "rgb8")
    short.data = short.data[:-1]
    with pytest.raises(ValueError, match="claims 48 x 64 pixels"):
        messages.to_image(short)


@pytest.mark.parametrize("layout", ["rggb", "grbg", "gbrg", "bggr"])
def test_bayer_patterns(layout):
    """One colour everywhere comes back exactly."""
    colour = {"r": 200, "g": 120, "b": 30}
    cell = np.array(
        [[colour[layout[0]], colour[layout[1]]], [colour[layout[2]], colour[layout[3]]]]
    )
    raw = np.tile(cell, (6, 8)).astype(np.uint8)
    found = messages.to_image(image_message(raw, f"bayer_{layout}8"))
    assert (found == [200, 120, 30]).all()


def test_clouds_of_any_layout():
    xyz = np.random.default_rng(0).uniform(-5, 5, (6, 3))
    fields = [SimpleNamespace(name="t", offset=0, datatype=4, count=1)]
    fields += [
        SimpleNamespace(name=axis, offset=8 + 10 * i, datatype=8, count=1)
        for i, axis in enumerate("zyx")
    ]
    data = np.zeros((2, 200), np.uint8)  # rows of three points of 64 bytes, padded
    for i, point in enumerate(xyz):
        for axis, value in zip("xyz", point, strict=True):
            start = 64 * (i % 3) + 8 + 10 * "zyx".index(axis)
            data[i // 3, start : start + 8] = np.frombuffer(np.array(value, ">f8").tobytes(), "u1")
    cloud = SimpleNamespace(
        height=2, width=3, fields=fields, is_bigendian=True, point_step=64, row_step=200,
        data=data.tobytes(),
    )  # fmt: skip
    assert (messages.to_cloud(cloud) == xyz).all()
    cloud.data = cloud.data[:-60]
    with pytest.raises(ValueError, match="claims 2 x 3 points"):
        messages.to_cloud(cloud)
    cloud.fields = fields[:3]
    with pytest.raises(ValueError, match="not all of x, y and z"):
        messages.to_cloud(cloud)


def test_laser_scans_and_range_finders():
    scan = SimpleNamespace(
        angle_min=-np.pi / 2, angle_increment=np.pi / 2, range_min=0.1, range_max=10.0,
        ranges=[2.0, 3.0, 4.0, np.inf, 0.0],
    )  # fmt: skip
    assert messages.to_cloud(scan) == pytest.approx(np.array([[0, -2, 0], [3, 0, 0], [0, 4, 0]]))
    near = SimpleNamespace(field_of_view=0.1, min_range=0.1, max_range=5.0, range=2.5)
    assert messages.to_cloud(near).tolist() == [[2.5, 0, 0]]
    assert messages.to_cloud(SimpleNamespace(**vars(near) | {"range": 9.0})).shape == (0, 3)


def test_distortion_is_that_of_opencv():
    """Its formulas, written down for one ray."""
    k1, k2, p1, p2, k3 = coefficients = (-0.3, 0.1, 0.01, -0.02, 0.005)
    x, y = 0.4, -0.25
    r2 = x**2 + y**2
    radial = 1 + k1 * r2 + k2 * r2**2 + k3 * r2**3
    expected = (
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x**2),
        y * radial + p1 * (r2 + 2 * y**2) + 2 * p2 * x * y,
    )
    camera = torch.tensor(CAMERA).float()
    ray = torch.tensor(x).double(), torch.tensor(y).double()
    found = Lens(camera, "plumb_bob", coefficients).distort(*ray)
    assert [float(v) for v in found] == pytest.approx(expected)
    more = (0.2, -0.1, 0.05)
    ratio = 1 + more[0] * r2 + more[1] * r2**2 + more[2] * r2**3
    found = Lens(camera, "rational_polynomial", (k1, k2, 0, 0, k3, *more)).distort(*ray)
    assert [float(v) for v in found] == pytest.approx([x * radial / ratio, y * radial / ratio])
    angle = np.arctan(np.sqrt(r2))
    bent = angle * (1 + 0.1 * angle**2 - 0.02 * angle**4 + 0.003 * angle**6 + 0.001 * angle**8)
    found = Lens(camera, "equidistant", (0.1, -0.02, 0.003, 0.001)).distort(*ray)
    assert [float(v) for v in found] == pytest.approx([x * bent / r2**0.5, y * bent / r2**0.5])


def test_a_distorted_camera_becomes_a_pinhole(tmp_path):
    """A camera sees a ramp of columns; the pinhole's pixel has the column that it came from."""
    distortion = (-0.25, 0.08, 0.001, -0.002, 0.0)
    lens = Lens(torch.tensor(CAMERA).float(), "plumb_bob", distortion)
    row, column = np.indices(SIZE)
    ramp = np.repeat((4 * column)[..., None], 3, 2).astype(np.uint8)
    x, y = (column - 31.5) / 60, (row - 23.5) / 60
    source = 60 * lens.distort(torch.from_numpy(x), torch.from_numpy(y))[0].numpy() + 31.5
    assert np.abs(source - column).max() > 1
    depth = (1 + column / 100).astype(np.float32)
    bag = FakeBag(tmp_path / "bent.bag")
    bag.info(INFO, START, CAMERA, SIZE, distortion)
    for topic in (IMAGE, "/cam/image_rect"):
        bag.image(topic, START, ramp, "rgb8")
    bag.image("/cam/depth", START, depth, "32FC1")
    bag.close()
    found = Bag(tmp_path / "bent.bag", Topics(IMAGE, "/cam/depth"))
    read = found.read(found.names[0])
    inside = (source > 1) & (source < SIZE[1] - 2)
    assert np.abs(read.image[..., 0] - 4 * source)[inside].max() < 0.6
    sparse = np.asarray(read.points.to_map(SIZE)[0])
    assert np.abs(sparse - (1 + source.round() / 100))[inside].max() < 1e-5
    rectified = Bag(tmp_path / "bent.bag", Topics("/cam/image_rect", "/cam/depth"))
    assert (rectified.read(rectified.names[0]).image == ramp).all()


@pytest.mark.parametrize(
    ("topic", "rectified"),
    [
        ("/cam/image_rect", True),
        ("/cam/image_rect_color/compressed", True),
        ("/camera/rectified/image", True),
        ("/left/image_raw", False),
        ("/direct/image_raw", False),
        ("/cam/image_correct", False),
    ],
)
def test_rectified_images_are_recognised_by_their_topic(topic, rectified):
    assert is_rectified(topic) == rectified


def test_refusals_are_one_sentence(tmp_path):
    def two(bag):
        bag.image("/other/image", START, wall()[0], "rgb8")
        bag.cloud("/other/points", START, np.ones((5, 3)))
        bag.cloud("/lost/points", START, np.full((5, 3), np.nan))

    path = write_drive(tmp_path / "a.bag", fill=two)
    for topics, said in (
        (Topics(), "pass --image with one of the topics /cam/image_raw, /other/image"),
        (Topics(IMAGE), "pass --points with one of the topics /velodyne_points, /other/points, /l"),
        (Topics("/cam/image", POINTS), "--image /cam/image is not one of the topics"),
        (Topics(IMAGE, POINTS, IMAGE), "is of type sensor_msgs/msg/Image; pass /cam/camera_info"),
        (Topics(IMAGE, "/tf_static"), "--points /tf_static is of type tf2_msgs/msg/TFMessage"),
    ):
        with pytest.raises(ValueError, match=said.replace("(", r"\(")):
            Bag(path, topics)
    alone = Bag(path, Topics("/other/image", POINTS))
    with pytest.raises(MissingOption, match="pass --info, the topic of its camera info"):
        alone.read(alone.names[0])
    lost = Bag(path, Topics("/other/image", "/lost/points"), camera=torch.eye(3))
    with pytest.raises(ValueError, match="/lost/points has no valid point at"):
        lost.read(lost.names[0])
    coloured = Bag(path, Topics(IMAGE, "/other/image"))
    with pytest.raises(MissingOption, match="encoding 'rgb8'; expected 16UC1 or 32FC1"):
        coloured.read(coloured.names[0])


def test_a_bag_without_images_tells_its_topics(tmp_path):
    bag = FakeBag(tmp_path / "a.bag")
    for number in range(15):
        bag.cloud(f"/points{number}", START, np.ones((5, 3)))
    bag.close()
    needs = "--image needs a topic of Image or CompressedImage"
    with pytest.raises(ValueError, match=needs) as said:
        Bag(tmp_path / "a.bag")
    assert "/points0 (PointCloud2), " in str(said.value)
    assert str(said.value).endswith("and 3 more")


def test_a_bag_with_depth_images_tells_that_they_are_not_used(tmp_path):
    bag = FakeBag(tmp_path / "a.bag")
    bag.compressed("/cam/compressed", START, wall()[0])
    bag.image("/cam/depth", START, np.full(SIZE, 2000, np.uint16), "16UC1")
    bag.close()
    about = Bag(tmp_path / "a.bag", Topics("/cam/compressed")).about
    assert about.endswith("without points; pass --points with one of /cam/depth to use them")


def test_a_camera_info_of_another_size_is_refused(tmp_path):
    bag = FakeBag(tmp_path / "a.bag")
    for topic, size in (("/half", (SIZE[0] // 2, SIZE[1] // 2)), ("/none", (0, 0))):
        bag.info(topic, START, CAMERA, size)
    bag.image("/cam", START, wall()[0], "rgb8")
    bag.close()
    bag = Bag(tmp_path / "a.bag", Topics("/cam", info="/half"))
    with pytest.raises(MissingOption, match="its camera info is for images of"):
        bag.read(bag.names[0])
    bag = Bag(tmp_path / "a.bag", Topics("/cam", info="/none"))
    assert bag.read(bag.names[0]).camera is not None


def test_a_folder_without_metadata_names_its_bag(tmp_path, monkeypatch, capsys):
    path = write_drive(tmp_path / "drive")
    (path / "metadata.yaml").unlink()
    words = f"complete {path} --image {IMAGE} --out {tmp_path}/out"
    monkeypatch.setattr(sys, "argv", ["deepbasis", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"without metadata.yaml; pass {path}/drive.mcap" in capsys.readouterr().err


def test_what_an_option_would_mend_is_told_once(tmp_path, monkeypatch, capsys):
    """Not once for each image of a long bag."""

    def other(bag):
        for number in range(3):
            bag.image("/cam/other", START + number, wall()[0], "rgb8", frame="unknown")

    path = write_drive(tmp_path / "a.bag", fill=other)
    make_model(errors="independent").save(tmp_path / "model.safetensors")
    words = f"{path} --image /cam/other --points {POINTS} --out {tmp_path}/out"
    words += f" --model {tmp_path}/model.safetensors"
    monkeypatch.setattr(sys, "argv", ["deepbasis", "complete", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert said.count("no static transform leads from the points' frame") == 1
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["a.bag", "a.mcap", "a.db3", "folder"])
def test_a_file_that_is_no_bag(name, tmp_path, monkeypatch, capsys):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "metadata.yaml").write_text("rosbag2_bagfile_information: [1, 2")
    else:
        path.write_bytes(b"not a bag")
    out = str(tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["deepbasis", "complete", str(path), "--out", out])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    if name == "folder":
        assert "cannot be read as a bag" in said
    else:
        assert f"{path}: it does not begin like a {path.suffix} file; check what it is" in said
    assert "Traceback" not in said


def test_a_bag_with_the_suffix_of_another(tmp_path):
    path = write_drive(tmp_path / "a.bag")
    path.rename(tmp_path / "a.mcap")
    with pytest.raises(ValueError, match=r"a.mcap: .* it is a .bag file: rename it"):
        Bag(tmp_path / "a.mcap")


def test_a_scale_is_for_depth_images_only(tmp_path):
    path = write_drive(tmp_path / "a.bag")
    with pytest.raises(ValueError, match="--depth-scale is for depth images only"):
        Bag(path, Topics(IMAGE, POINTS), depth_scale=1000)


@pytest.mark.parametrize(
    ("name", "mend"), [("drive.bag", "rosbag reindex"), ("drive", "mcap recover")]
)
def test_a_bag_that_ends_too_early(name, mend, tmp_path):
    path = write_drive(tmp_path / name)
    path = path if path.is_file() else next(path.glob("*.mcap"))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match=f"cannot be read as a bag: it is damaged .*`{mend}`"):
        Bag(path)


def test_without_rosbags_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.bag").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "rosbags.highlevel", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "deepbasis\[ros\]"'):
        Bag(tmp_path / "a.bag")


def test_a_bag_is_not_replaced_and_an_unfinished_one_leaves_nothing(tmp_path):
    image, depth = wall()
    recorded = Recorded(image, None, None)
    (tmp_path / "there.bag").write_bytes(b"")
    with pytest.raises(ValueError, match="exists already"):
        BagWriter(tmp_path / "there.bag")
    writer = BagWriter(tmp_path / "new")
    writer.add(recorded, depth, depth)
    writer.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["there.bag"]
