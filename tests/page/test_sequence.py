# SPDX-License-Identifier: Apache-2.0
"""Sequences on the page, without a browser."""

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepbasis.cli import main
from deepbasis.data.formats import encode_depth
from deepbasis.data.packaged import packaged
from deepbasis.page import sequence as sequences
from page.pages import encode

SIZE = (64, 96)
METRES = 2.0
POINTS = [[40, 30, 2.0], [90, 50, 1.4]]


def frames(count: int = 6) -> list[np.ndarray]:
    """A window that moves over a packaged room."""
    image = np.array(Image.open(packaged("rooms").images["000000"]))
    height, width = SIZE
    return [image[60 : 60 + height, 40 + 3 * i : 40 + 3 * i + width].copy() for i in range(count)]


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def message(files: list[tuple[str, str, bytes]]) -> tuple[list[list], bytes]:
    listed = [[role, name, len(content)] for role, name, content in files]
    return listed, b"".join(content for _, _, content in files)


def open_folder(page, files=(), count=6, **more):
    shown = [("frames", f"{i}.png", png(image)) for i, image in enumerate(frames(count))]
    listed, content = message([*shown, *files])
    return page.ask("open", content, name="walk", files=listed, model="indoor", **more)


def go_to(page, number):
    """All parts of the answer."""
    page.asked += 1
    asked = {"do": "frame", "id": page.asked, "number": number, "metres": METRES}
    page.socket.send_bytes(encode(asked))
    parts = [page.receive()]
    while "error" not in parts[-1][0] and not parts[-1][0].get("done"):
        parts.append(page.receive())
    return parts


@pytest.fixture(scope="module")
def expected(load_model):
    """As in Python, with points in frame 1."""
    given = [(image, POINTS if i == 1 else None) for i, image in enumerate(frames(5))]
    return list(load_model("indoor").stream(given))


def test_frames_are_those_of_the_stream_in_any_order(page, expected, monkeypatch):
    monkeypatch.setattr(sequences, "KEPT_EVERY", 2)
    table = b"u,v,metres\n40,30,2\n90,50,1.4\n"
    shown, arrays = open_folder(page, [("points", "1.csv", table)], count=5)
    assert shown["frames"] == [str(i) for i in range(5)]
    assert (shown["frame"], shown["size"], shown["reduced"]) == (0, list(SIZE), 1)
    np.testing.assert_array_equal(arrays["image"], frames()[0])
    parts = go_to(page, 3)
    assert [header["frame"] for header, _ in parts] == [1, 2, 3]
    assert parts[0][1]["depth"].size <= 20_000
    for number in (3, 1, 4):
        header, maps = go_to(page, number)[-1]
        assert header["frame"] == number
        out = expected[number]
        np.testing.assert_allclose(maps["depth"], out.depth, rtol=1e-5)
        np.testing.assert_allclose(maps["std"], out.std, rtol=1e-4)
        np.testing.assert_array_equal(maps["image"], frames()[number])
        np.testing.assert_allclose(maps["closer"], out.probability_closer(METRES), atol=1e-4)
        assert header["rows"] == (POINTS if number == 1 else [])


def test_a_point_of_the_user_stays_in_force(page, load_model):
    open_folder(page, count=2)
    before = go_to(page, 1)[-1][1]["depth"]
    go_to(page, 0)
    page.ask("complete", points=POINTS, frame=0)
    after = go_to(page, 1)[-1][1]["depth"]
    given = [(image, POINTS if i == 0 else None) for i, image in enumerate(frames(2))]
    *_, out = load_model("indoor").stream(given)
    np.testing.assert_allclose(after, out.depth, rtol=1e-5)
    assert np.abs(after - before).max() > 0.05
    # After the connection broke, the page tells what the user had changed.
    open_folder(page, count=2, edited={"0": POINTS})
    np.testing.assert_array_equal(go_to(page, 1)[-1][1]["depth"], after)


@pytest.mark.usefixtures("loaded_once")
def test_the_recipe_of_a_sequence_does_the_same(page, tmp_path, monkeypatch):
    """Python and command line, in a folder with the files that the page saves."""
    monkeypatch.chdir(tmp_path)
    open_folder(page, [("camera", "cam.txt", b"80 80 48 32")], count=2)
    page.ask("complete", points=POINTS, frame=0)
    maps = go_to(page, 1)[-1][1]
    recipe, _ = page.ask("recipe")
    Path("walk").mkdir()
    for i, image in enumerate(frames(2)):
        Path(f"walk/{i}.png").write_bytes(png(image))
    saved, arrays = page.ask("save", what="points")
    assert saved["name"] == "walk-points.zip"
    zipfile.ZipFile(io.BytesIO(arrays["file"].tobytes())).extractall()
    saved, arrays = page.ask("save", what="camera")
    Path(saved["name"]).write_bytes(arrays["file"].tobytes())
    namespace: dict = {}
    exec(recipe["python"], namespace)
    np.testing.assert_allclose(namespace["out"].depth, maps["depth"], rtol=1e-5)
    monkeypatch.setattr(sys, "argv", [*recipe["command"].split(), "--no-figure", "--quiet"])
    main()
    np.testing.assert_allclose(np.load("result/1-depth.npy"), maps["depth"], rtol=1e-5)


@pytest.mark.usefixtures("loaded_once")
def test_a_video_is_a_sequence(page, tmp_path, monkeypatch):
    av = pytest.importorskip("av", reason="videos need PyAV")
    path = tmp_path / "walk.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = SIZE[1], SIZE[0]
        for image in frames(2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    listed, content = message([("frames", "walk.mp4", path.read_bytes())])
    shown, _ = page.ask("open", content, name="walk.mp4", files=listed, model="indoor")
    assert shown["frames"] == ["walk-000000", "walk-000001"]
    maps = go_to(page, 1)[-1][1]
    recipe, _ = page.ask("recipe")
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    exec(recipe["python"], namespace)
    np.testing.assert_allclose(namespace["out"].depth, maps["depth"], rtol=1e-5)
    assert recipe["command"].startswith("deepbasis complete walk.mp4 --sequence --model")
    # Larger frames are reduced by a whole number, and the Python does it too.
    monkeypatch.setattr("deepbasis.commands.serve.file_access.VIDEO_PIXELS", 2000)
    shown, _ = page.ask("open", content, name="walk.mp4", files=listed, model="indoor")
    assert (shown["reduced"], shown["size"]) == (2, [32, 48])
    assert ".reduce(2)" in page.ask("recipe")[0]["python"]


def test_ground_truth_of_frames_is_scored(page):
    truth = np.full(SIZE, 2.0, np.float32)
    content = encode_depth(truth, 1000, "")
    shown, arrays = open_folder(page, [("truth", "0.png", content)], count=3, truth_scale=1000)
    assert shown["truth_known"]
    np.testing.assert_allclose(arrays["truth"], truth, atol=6e-4)
    assert go_to(page, 0)[-1][0]["score"]["mae"] > 0
    assert not go_to(page, 1)[-1][0]["truth_known"]
    answer, _ = page.ask("truth", content, name="1.png", depth_scale=1000)
    assert "in one folder with its frames" in answer["error"]


def test_an_outlier_of_a_frame_is_named(page):
    truth = packaged("rooms")[0].depth[0, 60:124, 40:136].numpy()
    rows = [[u, v, float(truth[v, u])] for v in range(4, 64, 6) for u in range(4, 96, 6)]
    rows = [row for row in rows if row[2] > 0]
    rows[50][2] *= 20
    open_folder(page, count=1)
    found, _ = page.ask("complete", points=rows, frame=0)
    assert [found["outliers"][0]["u"], found["outliers"][0]["v"]] == rows[50][:2]


def test_a_frame_that_cannot_be_read_is_passed_over(page):
    image = frames(1)[0]
    contents = [png(image), b"broken", png(image[:40]), png(image)]
    listed, content = message([("frames", f"{i}.png", one) for i, one in enumerate(contents)])
    page.ask("open", content, name="walk", files=listed, model="indoor")
    (only,) = go_to(page, 1)
    assert "1.png cannot be read as a picture" in only[0]["error"]
    (only,) = go_to(page, 2)
    assert "2 is 40 x 96 pixels (height x width), but the other frames are 64" in only[0]["error"]
    assert [header["frame"] for header, _ in go_to(page, 3)] == [3]


PNG = png(np.zeros((8, 8, 3), np.uint8))
LARGE = png(np.zeros((500, 500), np.uint8))
WRONG = [
    ([], b"", "lists no files"),
    ("all", b"", "lists no files"),
    ([["frames", "a.png"]], b"", "without role, name and size"),
    ([["frames", "a.png", True]], b"1", "without role, name and size"),
    ([["../..", "a.png", 3]], b"abc", "without role, name and size"),
    ([["frames", "a.png", 0]], b"", "a.png is empty"),
    ([["frames", "a.png", 9]], b"abc", "other sizes than the request says"),
    ([["frames", "a.png", 1], ["frames", "b/a.png", 2]], b"abc", "two files called a.png"),
    ([["frames", "a.png", 3]], b"abc", "a.png cannot be read as a picture"),
    ([["frames", "a.mp4", 3]], b"abc", "a.mp4 cannot be read as a video"),
    ([["points", "a.csv", 3]], b"abc", "no frames"),
    ([["frames", "a.png", 2_000_001]], b"a" * 2_000_001, "2.0 MB together, more than the limit"),
    ([["frames", "a.png", len(LARGE)]], LARGE, "million pixels, more than the limit"),
    ([["frames", f"{i}.png", 1] for i in range(1001)], b"a" * 1001, "more than the page allows"),
    (
        [["frames", "a.png", len(PNG)], ["points", "a.ply", 4]],
        PNG + b"ply\n",
        "drop its camera file first",
    ),
]


@pytest.mark.parametrize(("files", "content", "said"), WRONG, ids=[case[2] for case in WRONG])
def test_wrong_sequences_are_one_sentence_and_leave_nothing(page, folder, files, content, said):
    answer, _ = page.ask("open", content, name="walk", files=files)
    assert said in answer["error"]
    assert "\n" not in answer["error"]
    assert str(folder) not in answer["error"]
    assert list(folder.iterdir()) == []


def test_files_of_a_sequence_are_gone_with_its_page(client, folder):
    from page.conftest import ADDRESS, SOCKET
    from page.pages import Page

    with client.websocket_connect(SOCKET, headers={"origin": ADDRESS}) as socket:
        page = Page(socket)
        open_folder(page, count=1)
        (kept,) = folder.iterdir()
        open_folder(page, count=1)
        (other,) = folder.iterdir()
        assert other != kept
    with client.websocket_connect(SOCKET, headers={"origin": ADDRESS}) as socket:
        Page(socket)  # is greeted after the files were removed
        assert list(folder.iterdir()) == []


def test_frames_need_a_sequence(page):
    assert "there is no sequence" in page.ask("frame", number=0, metres=2.0)[0]["error"]
    open_folder(page, count=2)
    assert "there is no frame 2" in page.ask("frame", number=2, metres=2.0)[0]["error"]
