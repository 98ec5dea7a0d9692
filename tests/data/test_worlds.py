# SPDX-License-Identifier: Apache-2.0
"""Rendered frames: exact depth, the same for the same seed, and read back from their folder."""

import sys

import numpy as np
import pytest
import torch

from deepbasis.data.folder import Folder
from deepbasis.data.worlds import DEFAULT_SIZE, Worlds, rooms, variants
from deepbasis.data.worlds.export import DEPTH_SCALE, export
from deepbasis.data.worlds.render import Tracer, all_around, trace
from deepbasis.data.worlds.roads import VARIANTS
from deepbasis.data.worlds.scene import Light, RenderCamera, RenderScene
from deepbasis.data.worlds.solids import box, cylinder, prism, quad, sphere
from deepbasis.data.worlds.textures import TEXTURES, Material, Palette

SMALL = (48, 64)


def look(scene: RenderScene, camera: RenderCamera, size=(60, 80)):
    return trace(Tracer(scene), camera, size, np.random.default_rng(0))


def test_depth_of_a_wall_is_z_depth_not_range():
    scene = RenderScene(lights=[Light((0, 0, 1), (1, 1, 1))])
    scene.add(quad((-50, 3, -50), (50, 3, -50), (50, 3, 50), (-50, 3, 50)), Material())
    _, depth = look(scene, RenderCamera((0, 0, 0), 0.0, 0.0, 0.0, 0.8))
    np.testing.assert_allclose(depth, 3.0, rtol=1e-5)


def test_depth_of_a_sphere_and_a_tilted_floor_is_their_equation():
    scene = RenderScene()
    scene.add(sphere(1.0, 128).moved(0, 5, -1), Material())
    scene.add(quad((-99, -99, -2), (99, -99, -2), (99, 99, -2), (-99, 99, -2)), Material())
    camera = RenderCamera((0.0, 0.0, 0.0), 0.0, -0.3, 0.1, 0.8)
    _, depth = look(scene, camera)
    row, column = (a.ravel().astype(float) for a in np.indices((60, 80)))
    ray = camera.rays(row, column, (60, 80)).astype(float)
    centre = np.array([0, 5, 0])
    a, b, c = (ray**2).sum(1), ray @ centre, centre @ centre - 1
    disc = b * b - a * c
    ball = np.where(disc > 0, (b - np.sqrt(np.abs(disc))) / a, np.inf)
    floor = np.where(ray[:, 2] < 0, -2 / np.minimum(ray[:, 2], -1e-9), np.inf)
    want = np.minimum(ball, floor)
    near = (np.abs(disc) > 0.05) & (want < 50)  # away from the ball's outline, which has corners
    np.testing.assert_allclose(depth.ravel()[near], want[near], rtol=2e-3)
    assert near.sum() > 2000


def test_camera_angles_turn_the_way_they_say():
    scene = RenderScene()
    for x, y, z in ((-5, 0, 0), (0, 0, 5), (0, 5, 0)):
        scene.add(box(1, 1, 1).moved(x, y, z - 0.5), Material())
    centre = (30, 40)
    for camera, distance in (
        (RenderCamera((0, 0, 0), np.pi / 2, 0.0, 0.0, 0.8), 4.5),  # to the left
        (RenderCamera((0, 0, 0), 0.0, np.pi / 2, 0.0, 0.8), 4.5),  # up
        (RenderCamera((0, 0, 0), np.pi, 0.0, 0.0, 0.8), np.inf),  # back
    ):
        assert look(scene, camera)[1][centre] == pytest.approx(distance, rel=1e-5)


def test_a_shadow_falls_where_the_light_is_blocked():
    scene = RenderScene(lights=[Light((0, 0, 10), (50, 50, 50), 0.0)], ambient=(0.1, 0.1, 0.1))
    scene.add(quad((-9, -9, 0), (9, -9, 0), (9, 9, 0), (-9, 9, 0)), Material())
    scene.add(box(2, 2, 0.1).moved(0, 0, 2), Material())
    image, _ = look(scene, RenderCamera((0, -6, 1.0), 0.0, -0.2, 0.0, 0.8))
    under, beside = image[27, 40], image[27, 64]  # the floor at x = 0 and at x = 2.2 m
    assert (under < 0.5 * beside).all()


def test_shapes_are_closed_and_stand_on_the_ground():
    """Every ray from inside a solid shape meets its surface."""
    outline = [(-0.5, 0.0), (0.5, 0.0), (0.3, 0.9), (-0.3, 0.9)]
    for shape in (box(1, 1, 1), cylinder(0.5, 1.0), sphere(0.5), prism(outline, 0.8)):
        scene = RenderScene()
        scene.add(shape, Material())
        rays = all_around(500, np.random.default_rng(0))
        start = np.broadcast_to(np.float32([0, 0, 0.5]), rays.shape)
        assert Tracer(scene).hits(start, rays).met.all()
        assert shape.corners[..., 2].min() == pytest.approx(0, abs=1e-9)
        a, b, c = np.moveaxis(shape.corners, 1, 0)
        solid = np.linalg.norm(np.cross(b - a, c - a), axis=-1) > 1e-9
        np.testing.assert_allclose(np.linalg.norm(shape.normals[solid], axis=-1), 1, atol=1e-6)


def test_every_texture_gives_colours_that_differ_and_depend_on_nothing_else():
    uv = np.random.default_rng(0).uniform(-3, 3, (500, 2)).astype(np.float32)
    for name in TEXTURES:
        palette = Palette(
            [Material(name, (0.2, 0.4, 0.6), (0.9, 0.1, 0.3), 0.3, seed=s) for s in (1, 2)]
        )
        one, again, other = (palette.albedo(np.full(500, m), uv) for m in (0, 0, 1))
        assert ((one >= 0) & (one <= 1)).all(), name
        assert one.std(0).max() > 0.01, name
        np.testing.assert_array_equal(one, again)
        assert name == "checks" or np.abs(one - other).max() > 0.01


@pytest.mark.parametrize(
    ("world", "variant"), [("rooms", "clone"), *(("roads", v) for v in VARIANTS)]
)
def test_a_frame_is_a_picture_with_depth(world, variant):
    sample = Worlds(world, 2, seed=3, variant=variant, size=SMALL)[1]
    assert sample.image.shape == (3, *SMALL)
    assert sample.image.float().std() > 10
    assert sample.depth.isfinite().all()
    known = sample.depth[sample.mask]
    assert sample.mask.float().mean() > 0.5
    assert known.min() >= 0.4
    assert known.max() <= (10 if world == "rooms" else 80)
    assert sample.intrinsics[0, 0] == sample.intrinsics[1, 1] > 0


def test_same_seed_same_frame_other_seed_other_frame():
    frames = [Worlds("rooms", 5, seed=s, size=SMALL)[2] for s in (1, 1, 2)]
    assert torch.equal(frames[0].image, frames[1].image)
    assert torch.equal(frames[0].depth, frames[1].depth)
    assert not torch.equal(frames[0].depth, frames[2].depth)


@pytest.mark.slow
def test_a_variant_changes_light_and_weather_but_not_the_scene():
    clone, sunset, fog, turned = (
        Worlds("roads", 1, seed=1, variant=v, size=SMALL)[0]
        for v in ("clone", "sunset", "fog", "15-deg-left")
    )
    assert torch.equal(clone.depth, sunset.depth)
    assert torch.equal(clone.depth, fog.depth)
    assert (clone.image.float() - sunset.image.float()).abs().mean() > 5
    assert not torch.equal(clone.depth, turned.depth)
    clear, veiled = (frame.image.float().std((1, 2)).mean() for frame in (clone, fog))
    assert veiled < clear  # fog takes contrast away


@pytest.mark.slow
def test_a_room_is_never_seen_from_inside_its_furniture():
    for index in range(8):
        depth = Worlds("rooms", 8, seed=9, size=SMALL)[index].depth
        assert depth[depth > 0].median() > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_is_written_read_back_and_resumed(tmp_path, workers):
    frames = Worlds("rooms", 3, seed=4, size=SMALL)
    assert sorted(export(frames, tmp_path, workers)) == [0, 1, 2]
    first = (tmp_path / "rgb" / "000000.jpg").stat().st_mtime_ns
    (tmp_path / "rgb" / "000002.jpg").unlink()
    assert sorted(export(frames, tmp_path, workers)) == [0, 1, 2]
    assert (tmp_path / "rgb" / "000000.jpg").stat().st_mtime_ns == first
    back = Folder(tmp_path)
    assert len(back) == 3
    for i in range(3):
        assert torch.equal(back[i].image, frames[i].image)
        quantum = 0.5 / DEPTH_SCALE["rooms"]
        torch.testing.assert_close(back[i].depth, frames[i].depth, rtol=0, atol=1.01 * quantum)
        torch.testing.assert_close(back[i].intrinsics, frames[i].intrinsics, rtol=1e-5, atol=0)
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".")]


def test_without_embree_one_is_told_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "embreex.rtcore_scene", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "deepbasis\[worlds\]"'):
        list(export(Worlds("rooms", 1), tmp_path / "rooms"))
    assert not list(tmp_path.iterdir())


def test_a_folder_with_another_world_is_refused(tmp_path):
    list(export(Worlds("rooms", 1, seed=4, size=SMALL), tmp_path))
    with pytest.raises(ValueError, match=r"already holds 'rooms clone seed 4 .* another folder"):
        list(export(Worlds("rooms", 1, seed=5, size=SMALL), tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world": "caves"}, "no world 'caves'; choose rooms or roads"),
        (
            {"world": "roads", "variant": "snow"},
            "roads has no variant 'snow'; it has clone, morning",
        ),
        ({"world": "rooms", "variant": "fog"}, "rooms has no variant 'fog'"),
        ({"world": "rooms", "size": (8, 8)}, "too small; render at least 16 x 16"),
    ],
)
def test_what_there_is_not_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        Worlds(**({"count": 1} | options))


def test_frames_end_where_they_end():
    with pytest.raises(IndexError, match="frame 2 of 2"):
        Worlds("rooms", 2, size=SMALL)[2]
    assert variants("rooms") == ("clone",)
    assert set(DEFAULT_SIZE) == {"rooms", "roads"}


def test_furniture_does_not_overlap():
    for seed in range(5):
        room = rooms.make_room(np.random.default_rng(seed))
        assert len(room.taken) >= 1
        for i, (a, b, c, d) in enumerate(room.taken):
            for p, q, r, s in room.taken[:i]:
                assert c <= p or a >= r or d <= q or b >= s


@pytest.mark.slow
def test_no_camera_stays_inside_a_car():
    """Of this street the second camera starts inside one, and has to drive on out of it."""
    sample = Worlds("roads", 166, 0, "clone", (32, 96))[165]
    assert sample.mask.float().mean() > 0.5


def test_parts_that_a_killed_run_left_are_removed(tmp_path):
    frames = Worlds("rooms", 1, size=(24, 32))
    for name in ("rgb/.000000.jpg", "depth/.000000.png", ".world.txt", "rgb/.other.jpg"):
        part = tmp_path / f"{name}.0123abcd.part"
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"half")
    assert list(export(frames, tmp_path)) == [0]
    assert [path.name for path in tmp_path.rglob("*.part")] == [".other.jpg.0123abcd.part"]
