# SPDX-License-Identifier: Apache-2.0
"""The ROS 2 node without ROS, and recordings of Rerun by its own reader."""

import os
import runpy
import signal
import socket
import subprocess
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from deepbasis.cli import main
from deepbasis.data import messages
from deepbasis.data.formats import write_depth_png, write_image
from models import make_model
from waiting import wait_for

NODE = Path(__file__).parent.parent / "examples" / "runtimes" / "ros2_node.py"
SIZE = (48, 64)
CAMERA = [60.0, 0, 31.5, 0, 60, 23.5, 0, 0, 1]


def image_message(values):
    header = SimpleNamespace(frame_id="camera", stamp=SimpleNamespace(sec=12, nanosec=34))
    fields = messages.image_fields(values)
    return SimpleNamespace(header=header, **fields | {"data": fields["data"].tobytes()})


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(*SIZE, 3), dtype=np.uint8)
    depth = np.zeros(SIZE, np.float32)
    depth.flat[rng.permutation(depth.size)[:200]] = rng.uniform(2.9, 3.1, 200)
    return image, depth


def test_the_node_completes_messages_as_the_library_does(frame):
    image, depth = frame
    model = make_model(errors="independent")
    node = runpy.run_path(str(NODE))
    info = SimpleNamespace(k=CAMERA, d=[0.0] * 5, p=[0.0] * 12, distortion_model="plumb_bob")
    expected = model.complete(image, depth)
    found = node["complete"](model, image_message(image), image_message(depth), info)
    assert (found.depth == expected.depth).all()
    row, column = np.nonzero(depth)
    z = depth[row, column]
    xyz = np.stack([(column - 31.5) / 60 * z, (row - 23.5) / 60 * z, z], 1)
    whole, fields = messages.cloud_fields(xyz, image[row, column], z)
    fields = [SimpleNamespace(**field) for field in fields]
    cloud = SimpleNamespace(**whole | {"data": whole["data"].tobytes()}, fields=fields)
    found = node["complete"](model, image_message(image), cloud, info)
    assert found.depth == pytest.approx(expected.depth, rel=1e-4)
    pose = torch.eye(4).double()
    moved = node["complete"](model, image_message(image), cloud, info, pose)
    assert len(moved.points) == 200


def test_the_node_does_not_undistort_rectified_images(frame):
    """As with a bag, their camera is P; K and the coefficients are those of the raw image."""
    image, depth = frame
    model = make_model(errors="independent")
    node = runpy.run_path(str(NODE))
    projection = np.pad(np.reshape(CAMERA, (3, 3)), ((0, 0), (0, 1))).ravel()
    raw = [50.0, 0, 30, 0, 50, 22, 0, 0, 1]
    info = SimpleNamespace(k=raw, d=[0.4] + [0.0] * 4, p=projection, distortion_model="plumb_bob")
    words = image_message(image), image_message(depth), info
    assert (node["complete"](model, *words, rectified=True).depth
            == model.complete(image, depth).depth).all()  # fmt: skip
    assert (node["complete"](model, *words).depth != model.complete(image, depth).depth).any()


def start_node(monkeypatch, topic, numbers):
    """Run the node's `main` with stand-ins for ROS; gives what it passes on to `complete`."""
    ros, passed = MagicMock(), []
    values = {"model": "open", "lidar_to_camera": array("d", numbers)}
    node = ros.Node.return_value
    node.get_parameter.side_effect = lambda name: SimpleNamespace(value=values[name])
    node.resolve_topic_name.return_value = topic
    for name in ("message_filters", "rclpy", "rclpy.node", "sensor_msgs", "sensor_msgs.msg"):
        monkeypatch.setitem(sys.modules, name, ros)
    main = runpy.run_path(str(NODE))["main"]
    main.__globals__["complete"] = lambda *given: passed.append(given) or MagicMock()
    main.__globals__["fill"] = MagicMock()
    main()
    (call,) = ros.ApproximateTimeSynchronizer.return_value.registerCallback.call_args_list
    call.args[0](MagicMock(), None, None)
    return passed[0][-2:]


@pytest.mark.parametrize(
    ("topic", "rectified"), [("/cam/image_rect_color", True), ("/direct/image_raw", False)]
)
def test_the_node_takes_the_same_topics_for_rectified_as_a_bag(topic, rectified, monkeypatch):
    assert start_node(monkeypatch, topic, [0.0]) == (None, rectified)


def test_the_node_takes_a_pose_of_12_or_16_numbers(monkeypatch):
    matrix = np.eye(4)
    matrix[:3] = np.arange(12).reshape(3, 4)
    for rows in (3, 4):
        pose, _ = start_node(monkeypatch, "/image", matrix[:rows].ravel())
        assert (pose.numpy() == matrix).all()
    with pytest.raises(SystemExit, match=r"lidar_to_camera has 9 numbers; pass 12 or 16"):
        start_node(monkeypatch, "/image", [0.0] * 9)


def test_the_node_fills_a_message_that_can_be_read_again(frame):
    node = runpy.run_path(str(NODE))
    filled = node["fill"](SimpleNamespace(), "header", frame[1])
    assert filled.header == "header"
    assert (messages.to_depth(filled) == frame[1]).all()


def complete(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["deepbasis", "complete", *words.split()])
    main()


def test_a_recording_of_rerun(frame, tmp_path, monkeypatch):
    reader = pytest.importorskip("rerun.chunk").RrdReader
    monkeypatch.chdir(tmp_path)
    for folder in ("rgb", "depth"):
        (tmp_path / folder).mkdir()
    for name in ("000000", "000001"):
        write_image(tmp_path / f"rgb/{name}.png", frame[0])
        write_depth_png(tmp_path / f"depth/{name}.png", frame[1], 1000)
    (tmp_path / "camera.txt").write_text("60 60 31.5 23.5")
    make_model(errors="independent").save(tmp_path / "model.safetensors")
    words = "rgb --sparse depth --depth-scale 1000 --intrinsics camera.txt --out out "
    words += "--model model.safetensors --rerun run.rrd"
    for _ in range(2):  # frames that are done are shown too
        complete(words, monkeypatch)
        rows, content = {}, {}
        for chunk in reader(tmp_path / "run.rrd").stream():
            rows[chunk.entity_path] = rows.get(chunk.entity_path, 0) + chunk.num_rows
            content.setdefault(chunk.entity_path, []).append(chunk.to_record_batch())
        for entity in ("camera", "camera/image", "camera/depth", "camera/std", "cloud",
                       "camera/image/points"):  # fmt: skip
            assert rows[f"/{entity}"] == 2, entity
        (tmp_path / "run.rrd").unlink()
    blob = content["/camera/depth"][0]
    column = next(name for name in blob.schema.names if "buffer" in name.lower())
    values = np.asarray(blob[column][0].values.flatten(), np.uint8).view(np.float32)
    assert (values.reshape(SIZE) == np.load(tmp_path / "out/000000-depth.npy")).all()
    assert not list(tmp_path.glob(".*.part"))


@pytest.fixture
def photo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "photo.png", np.zeros((*SIZE, 3), np.uint8))
    make_model(errors="independent").save(tmp_path / "model.safetensors")
    return "photo.png --out out --no-figure --model model.safetensors --rerun "


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:RRD file has no footer")  # a viewer that was interrupted
def test_frames_are_sent_to_a_viewer_that_is_running(photo, port, tmp_path, monkeypatch):
    """Rerun's own program listens without a window, and saves what it receives."""
    reader = pytest.importorskip("rerun.chunk").RrdReader
    program = [sys.executable, "-m", "rerun", "--port", str(port), "--save", "live.rrd"]
    viewer = subprocess.Popen(
        program, cwd=tmp_path, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    live = tmp_path / "live.rrd"
    address = f"rerun+http://127.0.0.1:{port}/proxy"
    try:
        wait_for(lambda: is_listening(port), viewer)
        complete(photo + address, monkeypatch)
        wait_for(lambda: live.stat().st_size > SIZE[0] * SIZE[1], viewer)
        first = live.stat().st_size
        # Whoever asks for a viewer gets the same: it is started by Rerun, and then connected to.
        started = []
        monkeypatch.setattr(
            "rerun.RecordingStream.spawn",
            lambda stream: (started.append(True), stream.connect_grpc(address)),
        )
        complete(photo + "spawn", monkeypatch)
        assert started
        wait_for(lambda: live.stat().st_size > 1.5 * first, viewer)
    finally:
        os.killpg(viewer.pid, signal.SIGTERM)  # background processes ignore SIGINT
        viewer.wait()
    found = reader(live)
    assert len(found.recordings()) == 2
    for one in found.recordings():
        entities = [chunk.entity_path for chunk in found.stream(store=one)]
        assert {"/camera/image", "/camera/depth", "/camera/std"} <= set(entities)


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_viewer_that_does_not_answer_is_one_sentence(photo, port, monkeypatch, capsys):
    for target, said in (
        (f"rerun+http://127.0.0.1:{port}/proxy", "no viewer answers there"),
        ("rerun+http://127.0.0.1:notaport/proxy", "no viewer answers there"),
        ("127.0.0.1:9876", "is not a .rrd file"),
        ("nowhere/run.rrd", "nowhere"),
    ):
        with pytest.raises(SystemExit, match="2"):
            complete(photo + target, monkeypatch)
        found = capsys.readouterr().err
        assert said in found
        assert "Traceback" not in found
        assert found.count("\n") == 1


def test_without_rerun_one_sentence_says_what_to_install(photo, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(SystemExit, match="2"):
        complete(photo + "a.rrd", monkeypatch)
    assert 'pip install "deepbasis[rerun]"' in capsys.readouterr().err
