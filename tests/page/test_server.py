# SPDX-License-Identifier: Apache-2.0
"""What the server answers and what it refuses, without a browser."""

import asyncio
import io
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from deepbasis.cli import main
from deepbasis.data.clouds import read_cloud
from deepbasis.data.formats import encode_depth, open_picture, read_counts
from deepbasis.data.packaged import packaged
from deepbasis.page.access import Access
from deepbasis.page.preview import Preview
from deepbasis.page.server import LARGEST_HEADER, STATIC, Desk, Line, MemoryBudget, make_app
from deepbasis.page.session import MOST_POINTS
from deepbasis.page.uploads import harmless
from page.conftest import ADDRESS, SOCKET
from page.pages import Page, encode
from waiting import LIMIT, wait_for

ROWS = [[60, 190, 1.14], [230, 130, 3.48], [300, 220, 1.63]]
ROOM = packaged("rooms")
IMAGE = ROOM.images["000000"]


def png(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def test_depth_and_interval_are_those_of_complete(page, load_model):
    shown, arrays = page.ask("open", IMAGE.read_bytes(), name="photo.jpg", model="indoor")
    assert shown["size"] == [240, 320]
    assert not shown["camera_known"]
    assert arrays["image"].shape == (240, 320, 3)
    found, maps = page.ask("complete", points=ROWS)
    expected = load_model("indoor").complete(IMAGE, ROWS)
    np.testing.assert_array_equal(maps["depth"], expected.depth)
    np.testing.assert_array_equal(maps["std"], expected.std)
    for name, bound in zip(("low", "high"), expected.interval(0.9), strict=True):
        np.testing.assert_array_equal(maps[name], bound)
    assert found["points"] == 3
    assert found["median_std"] == pytest.approx(float(np.median(expected.std)))
    _, closer = page.ask("closer", metres=2.0)
    np.testing.assert_array_equal(closer["closer"], expected.probability_closer(2.0))
    following, _ = page.ask("next", count=5)
    assert following["pixels"] == expected.next_points(5).tolist()


def test_the_first_answer_is_a_preview_of_the_second(page):
    page.ask("open", sample="room")
    page.socket.send_bytes(encode({"do": "complete", "id": 7, "points": ROWS}))
    first, coarse = page.receive()
    second, fine = page.ask("rest")
    step = first["step"]
    assert (step, second["step"]) == (3, 1)
    assert not first.get("done")
    assert coarse["depth"].size <= 10_000
    # Neighbours are shared by blocks of pixels, and the blocks are not the same.
    near = np.abs(np.log(coarse["depth"] / fine["depth"][::step, ::step]))
    assert np.median(near) < 0.002
    assert near.max() < 0.1


@pytest.mark.parametrize("name", ["indoor", "outdoor", "open"])
@pytest.mark.parametrize("size", [(95, 161), (240, 320)])
def test_a_preview_is_at_the_places_of_its_pixels(name, size, load_model):
    """With few points, all are neighbours of every pixel, so there is no other difference."""
    image = np.array(Image.open(IMAGE).resize(size[::-1]))
    scene = load_model(name).prepare(image)
    preview = Preview(scene)
    preview.step = 3
    preview.pyramid = type(preview.pyramid)(scene.pyramid, 3)
    rows = np.array(
        [[3 * j, 3 * i, 2.0 + 0.3 * (i + j) % 5] for i in (2, 11, 25) for j in (4, 20, 45)]
    )
    coarse, fine = preview.complete(rows), scene.complete(rows)
    np.testing.assert_allclose(coarse.latent_mean, fine.latent_mean[::3, ::3], atol=1e-5)
    np.testing.assert_allclose(coarse.latent_var, fine.latent_var[::3, ::3], rtol=0.01)


def test_distance_and_region_are_those_of_the_posterior(page, load_model):
    described, _ = page.ask("open", sample="room", model="indoor")
    page.ask("complete", points=ROWS)
    camera = ROOM[0].intrinsics.numpy()
    expected = load_model("indoor").prepare(IMAGE, camera).complete(ROWS)
    assert described["camera"] == pytest.approx(
        [camera[0, 0], camera[1, 1], camera[0, 2], camera[1, 2]]
    )
    far, _ = page.ask("distance", ends=[[60, 200], [270, 90]])
    assert far["distance"] == pytest.approx(
        expected.distance((60, 200), (270, 90), camera)._asdict()
    )
    corners = [[100, 100], [219, 100], [219, 199], [100, 199]]
    region, _ = page.ask("region", corners=corners, metres=2.0)
    mask = np.zeros((240, 320), bool)
    mask[100:200, 100:220] = True
    assert region["pixels"] == mask.sum()
    assert region["depth"] == pytest.approx(expected.size(mask, camera).depth._asdict())
    assert region["closer"] == expected.probability_closer(2.0, mask)


def test_outliers_are_told_with_what_the_others_expect(page, load_model):
    _, arrays = page.ask("open", sample="room", model="indoor")
    rows = page.ask("draw", pattern="200", seed=0)[0]["rows"]
    truth = arrays["truth"]
    assert all(abs(truth[int(v), int(u)] - m) < 1e-5 for u, v, m in rows)
    rows[70][2] *= 20
    found, _ = page.ask("complete", points=rows)
    out = load_model("indoor").prepare(IMAGE, ROOM[0].intrinsics).complete(rows)
    expected = out.outliers
    assert [[one["u"], one["v"]] for one in found["outliers"]] == [[o.u, o.v] for o in expected]
    worst = found["outliers"][0]
    assert [worst["u"], worst["v"]] == rows[70][:2]
    assert worst["expected"] == expected[0].expected
    assert abs(worst["expected"] - rows[70][2] / 20) < 0.5
    known, (low, high) = truth > 0, out.interval(0.9)
    error = np.abs(out.depth - truth)[known].mean()
    inside = ((low <= truth) & (truth <= high))[known].mean()
    assert found["score"]["mae"] == pytest.approx(float(error), rel=1e-5)
    assert found["score"]["coverage"] == pytest.approx(float(inside), rel=1e-5)


def test_files_of_points_are_read_as_by_the_command_line(page):
    page.ask("open", sample="room")
    read, _ = page.ask("points", b"u,v,metres\n60,190,1.14\n230,130,3.48\n", name="my.csv")
    np.testing.assert_allclose(read["rows"], [ROWS[1], ROWS[0]])  # in reading order
    sparse = np.zeros((240, 320), np.float32)
    sparse[190, 60] = 1.14
    read, _ = page.ask("points", encode_depth(sparse, 1000, ""), name="d.png", depth_scale=1000)
    np.testing.assert_allclose(read["rows"], [[60, 190, 1.14]], rtol=1e-6)
    fx, fy, cx, cy = page.ask("camera", fx=300, fy=300, cx=160, cy=120)[0]["camera"]
    cloud = f"{(60 - cx) / fx * 1.14} {(190 - cy) / fy * 1.14} 1.14\n".encode()
    read, _ = page.ask("points", cloud, name="cloud.xyz")
    np.testing.assert_allclose(read["rows"], [[60, 190, 1.14]], atol=1e-6)
    known, _ = page.ask("camera", b"310 311 159 119", name="camera.txt")
    assert known["camera"] == [310, 311, 159, 119]


def test_warnings_do_not_speak_of_the_command_line(page):
    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    page.ask("open", png(noise), name="noise.png", model="indoor")
    warnings = page.ask("complete", points=[[6, 19, 1.14]])[0]["warnings"]
    assert any("choose another model" in warning for warning in warnings)
    assert not any("deepbasis" in warning or "--" in warning for warning in warnings)


def test_a_dropped_ground_truth_is_scored(page):
    page.ask("open", IMAGE.read_bytes(), name="photo.jpg")
    truth = ROOM[0].depth[0].numpy()
    known, arrays = page.ask(
        "truth", encode_depth(truth, 1000, ""), name="truth.png", depth_scale=1000
    )
    assert known["truth_known"]
    np.testing.assert_allclose(arrays["truth"], truth, atol=6e-4)
    found, _ = page.ask("complete", points=ROWS)
    assert 0 < found["score"]["mae"] < 2
    scan, _ = page.ask("draw", pattern="lidar16", seed=1)
    assert len(scan["rows"]) > 500


def test_saved_files_are_those_of_the_command_line(page, load_model, tmp_path, folder):
    page.ask("open", IMAGE.read_bytes(), name="photo.jpg")
    camera = [[300, 0, 160], [0, 300, 120], [0, 0, 1]]
    page.ask("camera", fx=300, fy=300, cx=160, cy=120)
    page.ask("complete", points=ROWS)
    expected = load_model("indoor").prepare(IMAGE, camera).complete(ROWS)

    def saved(what: str) -> Path:
        header, arrays = page.ask("save", what=what)
        path = tmp_path / header["name"]
        path.write_bytes(arrays["file"].tobytes())
        return path

    np.testing.assert_array_equal(np.load(saved("depth.npy")), expected.depth)
    np.testing.assert_array_equal(np.load(saved("std.npy")), expected.std)
    millimetres = read_counts(saved("depth.png"))
    assert np.abs(millimetres / 1000 - expected.depth).max() < 6e-4
    assert saved("std.png").name == "photo-std.png"
    assert open_picture(saved("figure")).size[0] > 500
    assert len(read_cloud(saved("cloud"))) == 240 * 320
    assert saved("points").read_text() == "u,v,metres\n60,190,1.14\n230,130,3.48\n300,220,1.63\n"
    assert saved("image").read_bytes() == IMAGE.read_bytes()
    assert list(folder.iterdir()) == []


SMALL = np.array(Image.open(IMAGE).resize((96, 64)))
MANY = [[u, 40, 2.0 + u / 100, 0.1] for u in range(0, 90, 6)]


@pytest.mark.parametrize(("points", "camera"), [(ROWS, True), (MANY, False), ([], False)])
@pytest.mark.usefixtures("loaded_once")
def test_the_recipe_does_the_same(page, points, camera, tmp_path, monkeypatch, capsys):
    """Python and command line, in a folder with the files that the page saves."""
    monkeypatch.chdir(tmp_path)
    rows = [[u * 0.3, v * 0.26, *rest] for u, v, *rest in points]
    page.ask("open", png(SMALL), name="a photo's.png", model="indoor")
    if camera:
        page.ask("camera", fx=95.5, fy=96.5, cx=47.5, cy=31.5)
    _, maps = page.ask("complete", points=rows)
    for what in ("points", "image", "camera"):
        header, arrays = page.ask("save", what=what)
        Path(header["name"]).write_bytes(arrays["file"].tobytes())
    recipe, _ = page.ask("recipe")
    namespace: dict = {}
    exec(recipe["python"], namespace)
    np.testing.assert_allclose(namespace["out"].depth, maps["depth"], rtol=1e-6)
    assert re.match(r"\d+\.\d\d m, 90 %: \d+\.\d\d to \d+\.\d\d\n", capsys.readouterr().out)
    arguments = [*shlex.split(recipe["command"]), "--no-figure", "--quiet"]
    monkeypatch.setattr(sys, "argv", arguments)
    main()
    for kind in ("depth", "std"):
        written = np.load(f"result/a photo_s-{kind}.npy")
        np.testing.assert_allclose(written, maps[kind], rtol=1e-6)


@pytest.mark.usefixtures("loaded_once")
def test_the_recipe_of_a_sample_needs_no_file(page):
    page.ask("open", sample="room", model="indoor")
    _, maps = page.ask("complete", points=ROWS)
    namespace: dict = {}
    exec(page.ask("recipe")[0]["python"], namespace)
    np.testing.assert_array_equal(namespace["out"].depth, maps["depth"])


def test_the_camera_is_used_for_depth_distance_and_cloud(page, load_model, tmp_path):
    """Without points, depth is that of a camera with this field of view."""
    page.ask("open", png(SMALL), name="small.png", model="indoor")
    _, before = page.ask("complete", points=[])
    camera = np.array([[160.0, 0, 47.5], [0, 160, 31.5], [0, 0, 1]])
    described, _ = page.ask("camera", b"160 160 47.5 31.5", name="camera.txt")
    assert described["camera_known"]
    _, after = page.ask("complete", points=[])
    expected = load_model("indoor").prepare(SMALL, camera).complete()
    np.testing.assert_array_equal(after["depth"], expected.depth)
    assert np.abs(after["depth"] / before["depth"] - 1).max() > 0.05
    far, _ = page.ask("distance", ends=[[10, 10], [80, 50]])
    assert far["distance"] == pytest.approx(expected.distance((10, 10), (80, 50), camera)._asdict())
    # A cloud that is saved is a cloud of points that can be dropped.
    _, arrays = page.ask("save", what="cloud")
    read, _ = page.ask("points", arrays["file"].tobytes(), name="cloud.ply")
    u, v, metres = np.array(read["rows"])[:, :3].T
    assert len(u) > 0.95 * SMALL[..., 0].size
    there = expected.depth[v.round().astype(int), u.round().astype(int)]
    np.testing.assert_allclose(metres, there, rtol=1e-3)
    wrong, _ = page.ask("camera", b"60 60 nan 31.5", name="camera.txt")
    assert "\n" not in wrong["error"]
    np.testing.assert_array_equal(page.ask("complete", points=[])[1]["depth"], after["depth"])


SMALL_ROWS = [[6, 19, 1.14], [23, 13, 3.48], [30, 22, 1.63]]
WRONG_FILES = [
    ("open", "notes.txt", b"hello", "notes.txt is not a picture"),
    ("open", "photo.jpg", b"\xff\xd8\xff\xe0 damaged", "photo.jpg cannot be read as a picture"),
    ("open", "photo.jpg", b"", "photo.jpg is empty"),
    ("points", "p.csv", b"1,2\n", "p.csv, line 1: '1,2' is not 3 numbers"),
    ("points", "p.csv", b"9000,9000,1\n", "the only point is outside the image"),
    ("points", "p.csv", b"5,5,2500\n6,6,2600\n", "looks like millimetres"),
    ("points", "c.ply", b"ply\n", "drop its camera file first, or type fx, fy, cx and cy"),
    ("points", "p.exe", b"MZ", ".exe cannot hold measurements"),
    ("truth", "d.png", png(np.zeros((48, 64), np.uint8)), "d.png is an 8-bit image"),
    ("truth", "d.png", png(np.ones((48, 64), np.uint16)), "set the depth scale"),
    ("truth", "d.npy", b"\x93NUMPY\x01\x00v\x00", "d.npy cannot be read as a numpy file"),
    ("camera", "c.txt", b"1 2 3", "c.txt holds 3 numbers; a camera is"),
]


@pytest.mark.parametrize(("do", "name", "content", "said"), WRONG_FILES)
def test_a_wrong_file_is_one_sentence(page, folder, do, name, content, said):
    page.ask("open", png(np.zeros((48, 64, 3), np.uint8)), name="black.png")
    answer, _ = page.ask(do, content, name=name)
    assert said in answer["error"]
    assert "\n" not in answer["error"]
    assert str(folder) not in answer["error"]
    assert "--" not in answer["error"]
    done, _ = page.ask("complete", points=SMALL_ROWS)  # what was there before still works
    assert done["done"]


WRONG_REQUESTS = [
    ({}, "no text 'do'"),
    ({"do": "explode"}, "does not know the action 'explode'"),
    ({"do": "complete", "points": "all"}, "no table 'points'"),
    ({"do": "complete", "points": [[1, 2]]}, "no table 'points'"),
    ({"do": "complete", "points": [[1, 2, 3], [4]]}, "no table 'points'"),
    ({"do": "complete", "points": [[1, 2, float("nan")]]}, "no table 'points'"),
    ({"do": "complete", "points": [[10, 10, -1]]}, "negative"),
    ({"do": "complete", "points": [[1, 1, 1]] * 60_000}, "60000 points are more than"),
    ({"do": "complete", "points": [[1, 2, 10**400]]}, "no table 'points'"),
    ({"do": "closer", "metres": "near"}, "no number 'metres'"),
    ({"do": "closer", "metres": 10**400}, "no number 'metres'"),
    ({"do": "distance", "ends": [[5, 5], [6, 6], [7, 7]]}, "a distance has two ends, not 3"),
    ({"do": "closer", "metres": -1}, "pass a positive number of metres"),
    ({"do": "distance", "ends": [[5, 5], [5, 5]]}, "pass two pixels"),
    ({"do": "distance", "ends": [[5, 5], [5000, 5]]}, "outside the image"),
    ({"do": "region", "corners": [[1, 1]], "metres": 1}, "at least three corners"),
    ({"do": "region", "corners": [[-9, -9], [-8, -9], [-9, -8]], "metres": 1}, "no pixel"),
    ({"do": "next", "count": 0}, "choose from 1 to"),
    ({"do": "draw", "pattern": "500", "seed": 0}, "drop one first"),
    ({"do": "save", "what": "../../etc/passwd"}, "there is no file '../../etc/passwd' to save"),
    ({"do": "open", "sample": "../rooms"}, "there is no sample '../rooms'"),
    ({"do": "model", "model": "/etc/passwd"}, "there is no model '/etc/passwd' here"),
    ({"do": "camera", "fx": -1, "fy": 1, "cx": 0, "cy": 0}, "must be positive"),
]


def test_a_wrong_request_is_one_sentence_and_the_page_goes_on(page):
    page.ask("open", png(np.zeros((48, 64, 3), np.uint8)), name="black.png")
    page.ask("complete", points=SMALL_ROWS)
    for header, said in WRONG_REQUESTS:
        if header.get("do") != "complete":
            page.ask("complete", points=SMALL_ROWS)
        page.socket.send_bytes(encode(header | {"id": 0}))
        answer, _ = page.receive()
        assert said in answer["error"], header
        assert "\n" not in answer["error"]
    for message in (b"", b"\xff\xff\xff\xff", b"\x05\0\0\0{{{{{", b"\x02\0\0\0[]\0\0"):
        page.socket.send_bytes(message)
        assert "not a message of the page" in page.receive()[0]["error"]
    assert page.ask("complete", points=SMALL_ROWS)[0]["done"]


def test_nothing_works_before_there_is_an_image(page):
    for do in ("complete", "closer", "next", "recipe", "save", "model", "points"):
        answer, _ = page.ask(
            do, b"1,2,3", points=[], metres=1.0, count=5, what="points", name="p.csv"
        )
        assert "there is no image yet" in answer["error"], do


def test_large_files_and_images_are_refused(page):
    answer, _ = page.ask("open", b"\0" * 2_000_001, name="huge.png")
    assert answer["error"] == "huge.png has 2.0 MB, more than the limit of 2 MB"
    answer, _ = page.ask("open", png(np.zeros((500, 500), np.uint8)), name="wide.png")
    assert "wide.png has 0.2 million pixels, more than the limit of 0.2 million" in answer["error"]


def test_one_page_never_sees_what_another_works_on(client, load_model):
    origin = {"origin": ADDRESS}
    with (
        client.websocket_connect(SOCKET, headers=origin) as one,
        client.websocket_connect(SOCKET, headers=origin) as other,
    ):
        first, second = Page(one), Page(other)
        first.ask("open", sample="room")
        assert "there is no image yet" in second.ask("complete", points=[])[0]["error"]
        second.ask("open", sample="road", model="outdoor")
        _, room = first.ask("complete", points=ROWS)
        _, road = second.ask("complete", points=[])
        assert room["depth"].shape != road["depth"].shape
        expected = load_model("indoor").prepare(IMAGE, ROOM[0].intrinsics).complete(ROWS)
        np.testing.assert_array_equal(room["depth"], expected.depth)


def test_too_many_pages_are_told(client):
    def connect():
        return client.websocket_connect(SOCKET, headers={"origin": ADDRESS})

    with ExitStack() as opened:
        pages = [Page(opened.enter_context(connect())) for _ in range(3)]
        assert [page.hello["event"] for page in pages] == ["hello"] * 3
        with connect() as socket:
            assert "3 pages are open" in Page(socket).hello["error"]
            with pytest.raises(WebSocketDisconnect):
                socket.receive_bytes()
    with connect() as socket:  # there is room again
        assert Page(socket).hello["event"] == "hello"


def test_a_page_that_vanishes_while_requests_wait_is_no_longer_counted(workshop):
    class Vanished:
        """Its requests still arrive, but nothing can be sent to it."""

        async def accept(self):
            pass

        async def send_bytes(self, _):
            raise WebSocketDisconnect(1006)

        async def receive(self):
            await asyncio.sleep(0)
            return {"type": "websocket.receive", "bytes": encode({"do": "complete", "id": 1})}

    desk = Desk(workshop, 3)
    asyncio.run(asyncio.wait_for(desk.serve(Vanished()), LIMIT))
    assert desk.pages == 0


def test_requests_that_wait_take_a_bounded_memory():
    """A page that sends more waits, and what a page leaves behind is freed."""

    async def fill():
        budget = MemoryBudget(100)
        first, second = Line(budget), Line(budget)
        await first.put(b"x" * 60)
        waiting = asyncio.create_task(second.put(b"y" * 60))
        for _ in range(5):
            await asyncio.sleep(0)
        async with first.next() as found:
            assert (found, waiting.done(), budget.used) == (b"x" * 60, False, 60)
        await waiting
        assert budget.used == 60
        vanished = asyncio.create_task(first.put(b"z" * 60))
        await asyncio.sleep(0)
        vanished.cancel()
        await asyncio.gather(vanished, return_exceptions=True)
        first.close()
        second.close()
        assert budget.used == 0
        await first.put(b"w" * 300)  # it is alone, so it is not too large
        assert budget.used == 300

    asyncio.run(fill())


def test_the_memory_of_uploads_follows_from_the_limit_of_files(workshop):
    assert Desk(workshop, 3).budget.most == 4 * (2_000_000 + LARGEST_HEADER)


def test_a_message_may_hold_as_many_points_as_the_page_allows():
    rows = [[319.123456789, 239.123456789, 3.14159265359, 0.0123456789]] * MOST_POINTS
    assert len(encode({"do": "complete", "points": rows})) < LARGEST_HEADER


@pytest.mark.slow
def test_dropped_files_are_removed_when_the_server_is_terminated(tmp_path):
    words = [sys.executable, "-m", "deepbasis.cli", "serve", "--port", "0", "--no-browser"]
    server = subprocess.Popen(
        [*words, "--folder", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert "the page is at" in server.stdout.readline()
    wait_for(lambda: list(tmp_path.iterdir()), server)
    server.terminate()
    server.communicate(timeout=LIMIT)
    assert not list(tmp_path.iterdir())


def test_a_name_in_capitals_is_that_of_the_server():
    access = Access.to("MyBox.lan", "secret")
    assert access.refuses_host("mybox.lan:8321") == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "0.0.0.0"])
def test_other_host_names_are_refused(client, host):
    """A page that made its name point to this machine gets nothing (DNS rebinding)."""
    for path in ("/", "/static/main.js"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 403
        assert "does not answer to the name" in answer.text
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect(SOCKET, headers={"host": host, "origin": f"http://{host}"}),
    ):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost:8321", "[::1]:8321", "LOCALHOST"])
def test_names_of_this_machine_are_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8321", None],
)
def test_pages_of_other_sites_cannot_connect(client, origin):
    headers = {} if origin is None else {"origin": origin}
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        client.websocket_connect(SOCKET, headers=headers),
    ):
        pass
    assert refused.value.code == 1008
    if origin is not None:
        assert client.get("/", headers=headers).status_code == 403


def test_other_networks_need_the_token(workshop):
    app = make_app(workshop, Access.to("0.0.0.0", "secret"), 3)
    address = "http://192.168.1.5:8321"
    with TestClient(app, address) as client:
        for query in ("", "?token=", "?token=wrong", "?token=secre", "?tokens=secret"):
            assert client.get(f"/{query}").status_code == 403
            with (
                pytest.raises(WebSocketDisconnect),
                client.websocket_connect(
                    f"ws://192.168.1.5:8321/ws{query}", headers={"origin": address}
                ),
            ):
                pass
        assert client.get("/?token=secret").status_code == 200
        with client.websocket_connect(
            "ws://192.168.1.5:8321/ws?token=secret", headers={"origin": address}
        ) as socket:
            assert Page(socket).hello["event"] == "hello"
        # With the token, a name of another site is still refused.
        assert client.get("/?token=secret", headers={"host": "evil.example"}).status_code == 403
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect(
                "ws://192.168.1.5:8321/ws?token=secret", headers={"origin": "http://evil.example"}
            ),
        ):
            pass


def test_only_files_of_the_page_are_served(client):
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd",
                 "/server.py", "/ws", "/static/"):  # fmt: skip
        assert client.get(path).status_code in (404, 403), path
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/").status_code == 405
    answer = client.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_page_loads_nothing_from_elsewhere():
    for file in STATIC.iterdir():
        text = file.read_text()
        assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/)[\w.-]+\.\w+/", text), file.name


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/cron.d/x.csv", "x.csv"), ("..\\..\\x.csv", "x.csv"), ("..", "file"),
        (".bashrc", "bashrc"), ("a" * 300 + ".png", "a" * 70 + ".png"), ("", "file"),
        ("Ж" * 300 + ".png", "Ж" * 35 + ".png"),
        ("a\0b\n;rm -rf.csv", "a_b__rm -rf.csv"), ("Foto (1).JPG", "Foto (1).JPG"),
    ],
)  # fmt: skip
def test_names_of_files_are_harmless(name, kept):
    assert harmless(name) == kept


def test_nothing_is_written_elsewhere(page, folder, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for name in ("../escaped.csv", "/tmp/deepbasis-escaped.csv", "a/../../escaped.csv"):
        page.ask("open", IMAGE.read_bytes(), name=name.replace("csv", "jpg"))
        page.ask("points", b"1,2,3\n", name=name)
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/deepbasis-escaped.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "99999"], "--port 99999 is not a port"),
        (["--max-pages", "0"], "--max-pages 0 must be positive"),
        (["--max-upload", "2e6"], "--max-upload 2e+06 must be positive, and at most a million"),
        (["--folder", "nowhere"], "there is no such folder"),
        (["--folder", "/proc"], "--folder /proc: cannot write to it"),
        (["--host="], "--host is empty"),
        (["--model", "damaged.safetensors"], "damaged.safetensors cannot be read"),
        (["--model", "indoors"], "did you mean 'indoor'?"),
        (["--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
        (["--host", "256.1.1.1"], "choose another --host"),
    ],
)
def test_wrong_options_are_one_sentence(command, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("damaged.safetensors").write_bytes(b"no model")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    code, _, error = command("serve", "--no-browser", "--port", "0", *arguments)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
