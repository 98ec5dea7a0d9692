# SPDX-License-Identifier: Apache-2.0
"""Points from rows, maps and clouds: round trips, loops and trigonometry."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from deepbasis.patterns import _rays
from deepbasis.points import (
    COVERED,
    Points,
    _reach,
    local_maximum,
    project,
    range_to_depth,
    remove_occluded,
    to_camera,
    to_points,
)
from refusals import refusals

SIZE = (240, 320)
CAMERA = torch.tensor([[280.0, 0, 159.5], [0, 280.0, 119.5], [0, 0, 1]])
UNKNOWN = torch.full((3, 3), torch.nan)


def make_depth(generator, holes=0.0, size=SIZE):
    """Depths of 1 to 10 m, some of them missing."""
    depth = 1 + 9 * torch.rand(1, *size, generator=generator)
    return torch.where(torch.rand(depth.shape, generator=generator) < holes, 0, depth)


def make_rows(generator, count=200, size=SIZE, columns=4):
    """Points between the pixels, one on each of `count` pixels, in any order."""
    pixel = torch.randperm(size[0] * size[1], generator=generator)[:count]
    off = 0.98 * torch.rand(2, count, generator=generator).double() - 0.49
    u, v = pixel % size[1] + off[0], pixel // size[1] + off[1]
    depth, sigma = 1 + 9 * torch.rand(2, count, generator=generator).double()
    return torch.stack([u, v, depth, 0.01 * sigma], 1)[:, :columns].numpy()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sorted_rows(rows):
    """In reading order of their pixels."""
    column, row = np.floor(rows[:, :2] + 0.5).T
    return rows[np.lexsort([column, row])]


@pytest.mark.parametrize("columns", [3, 4])
def test_rows_come_back_as_they_were_given(generator, columns):
    rows = make_rows(generator, columns=columns)
    points = Points.from_rows(rows)
    np.testing.assert_array_equal(points.rows[:, :2], rows[:, :2])
    np.testing.assert_allclose(points.rows, rows, rtol=1e-14)
    inside = points.inside(SIZE)
    np.testing.assert_array_equal(inside.rows, sorted_rows(points.rows))
    assert points.dropped == inside.dropped == {}
    assert float(points.count) == len(points) == 200
    assert (points.sigma is None) == (columns == 3)


def test_maps_come_back_as_they_were_given(generator):
    depth = make_depth(generator, holes=0.8)
    for hole in (0.0, torch.nan, torch.inf, -torch.inf):
        given = torch.where(depth > 0, depth, hole)
        for points in (Points.from_map(given[0].numpy()), to_points(given[0].numpy(), SIZE)):
            torch.testing.assert_close(points.to_map(SIZE), depth, rtol=1e-6, atol=0)
            assert len(points) == (depth > 0).sum()


def test_maps_and_rows_of_one_image_are_the_same_points_to_the_bit(generator):
    depth = make_depth(generator, holes=0.8)
    batch = Points.from_maps(depth[None])
    one = Points.from_map(depth[0].numpy()).inside(SIZE)
    again = Points.from_rows(one.rows).inside(SIZE)
    for points in (one, again):
        padded = Points.pad([points]).to(depth.device, torch.float32)
        for name in ("u", "v", "z", "weight"):
            assert torch.equal(getattr(padded, name), getattr(batch, name)), name


def test_a_batch_is_padded_with_weight_zero(generator):
    depths = torch.stack([make_depth(generator, holes, (6, 8)) for holes in (0.9, 1.1, 0.3)])
    weight = torch.rand(depths.shape, generator=generator) + 0.5
    batch = Points.from_maps(depths, weight)
    assert batch.count.tolist() == (depths > 0).flatten(1).sum(1).tolist()
    assert batch.count[1] == 0
    singles = []
    for i, depth in enumerate(depths):
        found = Points(*(getattr(batch, name)[i] for name in ("u", "v", "z", "weight")))
        used = found.where(found.weight > 0)
        torch.testing.assert_close(used.to_map((6, 8)), depth, rtol=1e-6, atol=0)
        row, column = used.pixel
        assert torch.equal(used.weight, weight[i, 0, row, column])
        unused = found.where(found.weight == 0)
        assert not torch.stack([unused.u, unused.v, unused.z]).any()
        singles.append(used)
    for name in ("u", "v", "z", "weight"):
        assert torch.equal(getattr(Points.pad(singles), name), getattr(batch, name))


def test_the_order_of_rows_does_not_matter(generator):
    rows = np.concatenate([make_rows(generator), [[-3, 5, 2, 0.1], [7, 240, 2, 0.1]]])
    shuffled = rows[torch.randperm(len(rows), generator=generator).numpy()]
    one, other = (Points.from_rows(each).inside(SIZE) for each in (rows, shuffled))
    assert one.dropped == other.dropped == {"outside the image": 2}
    for name in ("u", "v", "z", "weight", "sigma"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_a_pixel_reaches_half_way_to_the_next_one():
    rows = np.array([[-0.5, 0, 1], [2.4999, 1.4999, 2], [1.5, 0.5, 3], [0.49, -0.49, 0.5]])
    points = Points.from_rows(rows)
    assert torch.stack(points.pixel, 1).tolist() == [[0, 0], [1, 2], [1, 2], [0, 0]]
    inside = points.inside((2, 3))
    assert inside.dropped == {"on the pixel of a nearer or equal point": 2}
    np.testing.assert_allclose(inside.rows, rows[[3, 1]])
    for outside in ([-0.51, 0, 1], [2.5, 0, 1], [0, -0.51, 1], [0, 1.5, 1]):
        left = Points.from_rows(np.array([[1.0, 1, 1], outside])).inside((2, 3))
        assert left.dropped == {"outside the image": 1}
        assert len(left) == 1


def test_what_is_left_out_is_counted_by_reason():
    rows = np.array([
        [0, 0, 2.0], [0, 0, 1.0], [1, 0, 9.0], [2, 0, 0.0], [2, 1, np.nan], [np.inf, 0, 3.0],
        [5, 0, 2.0], [1, 1, 4.0],
    ])  # fmt: skip
    points = Points.from_rows(rows).inside((2, 3), max_depth=5)
    np.testing.assert_allclose(points.rows, [[0, 0, 1], [1, 1, 4]])
    assert points.dropped == {
        "without a measurement": 3, "outside the image": 1,
        "beyond the largest depth, 5 m": 1, "on the pixel of a nearer or equal point": 1,
    }  # fmt: skip


def test_no_points_are_no_error():
    for nothing in (None, np.zeros((4, 5)), np.zeros((0, 3)), np.full((4, 5), np.nan)):
        points = to_points(nothing, (4, 5)).inside((4, 5))
        assert len(points) == 0
        assert not points.to_map((4, 5)).any()
        assert points.rows.shape == (0, 3)
        assert points.with_noise(0.01) is points or len(points.with_noise(0.01)) == 0
    assert Points.from_maps(torch.zeros(0, 1, 4, 5)).z.shape == (0, 0)


def test_sigma_is_relative_to_what_no_sensor_can_explain():
    rows = np.array([[0, 0, 2.0, 0.0], [1, 0, 2.0, 0.2], [2, 0, 4.0, 0.4], [3, 0, 4.0, 4.0]])
    points = Points.from_rows(rows)
    trained = 0.01 / (0.01 + torch.tensor([0, 0.01, 0.01, 1.0]).double())
    torch.testing.assert_close(points.with_noise(0.01).weight, trained)
    torch.testing.assert_close(points.with_noise(0).weight, trained)  # the median is 10 % off
    plain = Points.from_rows(rows[:, :3])
    assert torch.equal(plain.with_noise(0.01).weight, torch.ones(4).double())
    perfect = Points.from_rows(rows[:1])
    assert (perfect.with_noise(0).weight == 1).all()
    halved = replace(points, weight=points.weight / 2)
    torch.testing.assert_close(halved.with_noise(0.01).weight, trained / 2)


def test_noise_leaves_the_points_themselves(generator):
    points = Points.from_rows(make_rows(generator))
    before = points.weight.clone()
    noisy = points.with_noise(1e-4)
    assert torch.equal(points.weight, before)
    assert not torch.equal(noisy.weight, before)
    np.testing.assert_array_equal(noisy.rows, points.rows)


def make_pose(generator):
    """A rotation, and a shift of half a metre or so."""
    pose = torch.eye(4, dtype=torch.float64)
    skew = 0.3 * torch.randn(3, 3, generator=generator, dtype=torch.float64)
    pose[:3, :3] = torch.linalg.matrix_exp(skew - skew.mT)
    pose[:3, 3] = 0.5 * torch.randn(3, generator=generator, dtype=torch.float64)
    return pose


def test_projection_agrees_with_a_loop(generator):
    points = 5 * torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    pose = make_pose(generator)
    want = torch.zeros(30, 40)
    camera = torch.tensor([[35.0, 0, 19], [0, 36.0, 15], [0, 0, 1]])
    for point in points.tolist():
        x, y, z = (sum(pose[i, j].item() * (*point, 1)[j] for j in range(4)) for i in range(3))
        if z <= 0:
            continue
        column, row = math.floor(35 * x / z + 19 + 0.5), math.floor(36 * y / z + 15 + 0.5)
        if 0 <= row < 30 and 0 <= column < 40 and not 0 < want[row, column] < z:
            want[row, column] = z
    got = Points.from_cloud(points, camera, pose, (30, 40))
    assert (want > 0).sum() > 100
    torch.testing.assert_close(got.to_map((30, 40))[0], want)
    assert sum(got.dropped.values()) == 3000 - len(got)
    assert got.dropped["behind the camera"] > 1000


def test_a_cloud_keeps_its_places_between_the_pixels(generator):
    """Rows of u, v and depth, made into a cloud of another frame, and back."""
    rows, pose = make_rows(generator), make_pose(generator)
    u, v, depth, sigma = torch.from_numpy(rows).unbind(1)
    rays = torch.stack([(u - 159.5) / 280, (v - 119.5) / 280, torch.ones_like(u)], 1)
    cloud = (rays * depth[:, None] - pose[:3, 3]) @ pose[:3, :3]
    points = Points.from_cloud(cloud, CAMERA, pose, SIZE, sigma)
    np.testing.assert_allclose(points.rows, sorted_rows(rows), rtol=1e-9, atol=1e-9)
    assert points.dropped == {}
    plain = Points.from_cloud(cloud, CAMERA, pose, SIZE)
    assert plain.sigma is None
    assert torch.equal(plain.u, points.u)


def test_projecting_pixels_gives_their_depth_back(generator):
    depth = make_depth(generator, holes=0.5)
    _, row, column = (depth > 0).nonzero(as_tuple=True)
    pixels = torch.stack([column, row, torch.ones_like(row)]).double()
    points = (CAMERA.double().inverse() @ pixels).mT * depth[depth > 0][:, None]
    unreadable = torch.full((1, 3), torch.nan, dtype=torch.float64)
    got = Points.from_cloud(torch.cat([points, unreadable]), CAMERA, None, SIZE)
    torch.testing.assert_close(got.to_map(SIZE), depth)
    torch.testing.assert_close(got.u, column.double(), rtol=0, atol=1e-4)


def test_projection_tells_what_is_in_front_of_the_camera():
    cloud = torch.tensor([[0.0, 0, 2], [1, -1, 4], [0, 0, -2], [0, torch.nan, 2], [0, 0, 0]])
    u, v, ahead = project(cloud.double(), CAMERA)
    assert ahead.tolist() == [True, True, False, False, False]
    torch.testing.assert_close(u[:2], torch.tensor([159.5, 159.5 + 70]).double())
    torch.testing.assert_close(v[:2], torch.tensor([119.5, 119.5 - 70]).double())


BEHIND = torch.tensor([[0.0, 0.0, -2.0], [1.0, 0.0, -3.0]], dtype=torch.float64)
ASIDE = torch.tensor([[50.0, 0.0, 2.0], [0.0, 0.0, -1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("points", "camera", "message"),
    [
        (
            BEHIND,
            CAMERA,
            r"no point falls into the image of 240 rows and 320 columns \(behind the camera: 2 of",
        ),
        (ASIDE, CAMERA, r"no point .* \(behind the camera: 1 of 2\); check that the extrinsics"),
        (ASIDE[:0], CAMERA, "behind the camera: 0 of 0"),
        (ASIDE, UNKNOWN, r"intrinsics are \[\[nan.*pass \[\[fx, 0, cx\]"),
    ],
)
def test_a_cloud_the_camera_does_not_see_is_refused(points, camera, message):
    with pytest.raises(ValueError, match=message) as refusal:
        Points.from_cloud(points, camera, None, SIZE)
    assert "\n" not in str(refusal.value)


def test_depth_is_range_times_the_cosine(generator):
    ranges = make_depth(generator, holes=0.2)
    depth = range_to_depth(ranges, CAMERA)
    for row, column in ((0, 0), (119, 160), (239, 3), (50, 319)):
        angle = math.atan(math.hypot(column - 159.5, row - 119.5) / 280)
        want = ranges[0, row, column].item() * math.cos(angle)
        assert depth[0, row, column].item() == pytest.approx(want, rel=1e-6)
    assert torch.equal(depth > 0, ranges > 0)
    with pytest.raises(ValueError, match="intrinsics are"):
        range_to_depth(ranges, UNKNOWN)


# A wall, the ground, a pole and a box: axis and position of a plane, and its x and y if bounded.
SCENE = [
    (2, 12.0, None),
    (1, 1.5, None),
    (2, 4.0, (-0.3, 0.3, -1.2, 1.5)),
    (2, 6.0, (1.0, 2.0, 0.3, 1.5)),
]


def first_hit(origin, rays):
    """How far along each ray the scene begins."""
    best = torch.full(rays.shape[:1], torch.inf, dtype=torch.float64)
    for axis, position, bounds in SCENE:
        t = (position - origin[axis]) / rays[:, axis]
        x, y = (origin + t[:, None] * rays)[:, :2].unbind(1)
        hit = t > 0
        if bounds is not None:
            hit &= (x >= bounds[0]) & (x <= bounds[1]) & (y >= bounds[2]) & (y <= bounds[3])
        best = torch.where(hit & (t < best), t, best)
    return best


def scan(beams, offset, generator):
    """Points of a LiDAR beside the camera, as a map too, and which of them the camera sees."""
    origin = torch.tensor(offset, dtype=torch.float64)
    rays = _rays(beams, generator)
    t = first_hit(origin, rays)
    points = (origin + t[:, None] * rays)[t.isfinite()]
    distance = points.norm(dim=1)
    free = first_hit(torch.zeros(3), points / distance[:, None]) >= distance * (1 - 1e-6)
    found = Points.from_cloud(points, CAMERA, None, SIZE)
    sparse = found.to_map(SIZE)
    seen = Points.from_cloud(points[free], CAMERA, None, SIZE).to_map(SIZE)
    return found, sparse, (sparse > 0) & (sparse == seen)


@pytest.mark.parametrize(
    ("beams", "offset"),
    [
        (16, (0.3, 0.0, 0.0)),
        (16, (0.0, -0.3, 0.0)),
        (32, (0.3, -0.3, 0.0)),
        (32, (0.6, -0.6, 0.0)),
        (64, (0.3, 0.0, 0.0)),
        (64, (0.1, -0.1, 0.0)),
        (64, (0.6, -0.6, 0.0)),
    ],
)
def test_occluded_points_go_and_visible_ones_stay(beams, offset):
    """At least 95 % of the hidden points go, at most 5 % of the visible; three mounts each.

    Lines of 16 beams are 10 pixels apart, so an outline costs a wider band of visible points.
    """
    hidden_gone = hidden_all = seen_gone = seen_all = 0
    for seed in range(3):
        points, sparse, seen = scan(beams, offset, seeded(seed))
        left = remove_occluded(points, SIZE)
        kept = left.to_map(SIZE)
        assert left.dropped["hidden by a nearer surface"] == len(points) - len(left)
        assert torch.equal(kept[kept > 0], sparse[kept > 0])
        hidden, gone = (sparse > 0) & ~seen, (sparse > 0) & (kept == 0)
        hidden_gone, hidden_all = hidden_gone + (gone & hidden).sum(), hidden_all + hidden.sum()
        seen_gone, seen_all = seen_gone + (gone & seen).sum(), seen_all + seen.sum()
    recall, loss = hidden_gone / hidden_all, seen_gone / seen_all
    precision = hidden_gone / (hidden_gone + seen_gone)
    print(f"recall {recall:.1%}, precision {precision:.1%}, lost {loss:.1%} of {seen_all} visible")
    assert hidden_all > 50
    assert recall >= 0.95
    assert loss <= (0.06 if beams == 16 else 0.05)


def test_a_sensor_at_the_camera_loses_outlines_only():
    points, sparse, seen = scan(64, (0.0, 0.0, 0.0), seeded())
    assert torch.equal(seen, sparse > 0)
    assert len(remove_occluded(points, SIZE)) > 0.98 * seen.sum()


def test_occlusion_follows_radius_and_margin():
    """A far point, a nearer one three pixels to its right, and one in a corner."""
    points = Points.from_rows(np.array([[4, 4, 10.0], [7.3, 3.8, 8.0], [0, 0, 2.0]]))

    def left(**options):
        return remove_occluded(points, (9, 9), **options).u.tolist()

    assert left(radius=2) == left(radius=0) == [4, 7.3, 0]
    assert left(radius=3) == [7.3, 0]
    assert left(radius=3, margin=0.25) == [4, 7.3, 0]
    none = Points.from_rows(np.zeros((0, 3)))
    assert remove_occluded(none, (9, 9)) is none


def test_misuse_is_one_sentence():
    setup = "import numpy as np; from deepbasis.points import Points, to_points"
    cases = {
        "to_points(np.ones((48, 32)), (32, 48))": "the points are [48, 32], the image [32, 48]",
        "to_points(np.ones((4, 5)), (32, 48))": "or rows of `u v metres` or `u v metres sigma`",
        "Points.from_rows(np.array([[1, 2, -3.0]]))": "first at the point [1.0, 2.0, -3.0]",
        "Points.from_rows(np.array([[1, 2, 3, -0.1]]))": "a depth or sigma is negative",
        "Points.from_rows(np.array([[1, 2, nan]]))":
            "the only point is without a measurement: depth is 0, NaN or infinite",
        "Points.from_rows(np.array([[nan, 2, 1], [1, 2, 0]]))":
            "all 2 points are without a measurement: u (column) is NaN or infinite or depth is 0, ",
        "Points.from_rows(np.array([[1, nan, 1]]))": "measurement: v (row) is NaN or infinite",
        "Points.from_rows(np.array([[1, 2, 0, 1], [1, 2, 3, nan]]))":
            "measurement: sigma is NaN or infinite or depth is 0, NaN or infinite",
        "Points.from_rows(np.array([[1, 40, 3.0]])).inside((32, 48))":
            "the only point is outside the image: u (column) from 1 to 1, v (row) from 40 to 40",
        "Points.from_maps(ones(4, 6))": "sparse depth is torch.float32 [4, 6]; expected floating",
        "Points.from_maps(-ones(2, 1, 4, 6))": "first in image 0 at row 0, column 0: -1 m",
    }  # fmt: skip
    said = refusals(setup, cases)
    for case, message in cases.items():
        assert message in said[case], case
        assert "\n" not in said[case]


def test_masked_elements_are_no_measurements():
    depth = np.full((24, 32), 3.0)
    mask = np.ones_like(depth, bool)
    mask[:2, :3] = False
    masked = np.ma.masked_array(depth, mask)
    assert len(to_points(masked, depth.shape)) == len(Points.from_map(masked)) == 6
    rows = np.ma.masked_array([[1, 2, 3.0], [4, 5, 6.0]], [[False] * 3, [False, False, True]])
    found = to_points(rows, (24, 32))
    assert (len(found), found.dropped) == (1, {"without a measurement": 1})


@pytest.mark.parametrize("depth", [1e39, 1e300, 1e-46, 1e-30, 1e30])
def test_depths_that_no_sensor_gives_are_dropped_and_counted(depth):
    rows = np.array([[1, 2, 3.0], [4, 5, depth]])
    found = Points.from_rows(rows)
    assert (len(found), found.dropped) == (1, {"without a measurement": 1})
    assert found.z.float().isfinite().all()
    sparse = torch.tensor([[[[3.0, depth]]]], dtype=torch.float64)
    assert Points.from_maps(sparse).count.tolist() == [1]
    assert len(Points.from_map(sparse[0, 0].numpy())) == 1


def test_empty_lists_are_no_points():
    for nothing in ([], np.zeros((0, 3)), np.zeros((0, 4)), np.zeros(0), torch.zeros(0)):
        assert len(to_points(nothing, (24, 32))) == 0


def test_half_precision_keeps_its_columns():
    """Bfloat16 has no 257."""
    sparse = torch.zeros(1, 1, 2, 300, dtype=torch.bfloat16)
    sparse[0, 0, 1, 257] = 3
    points = Points.from_maps(sparse)
    assert (points.u.tolist(), points.v.tolist()) == ([[257]], [[1]])
    assert points.z.dtype == torch.float32


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (0, 2), (1, 2)])
def test_a_camera_has_no_numbers_that_overflow(place):
    camera = CAMERA.clone().double()
    for absurd in (1e300, *([1e-46] if place == (0, 0) else [])):
        camera[place] = absurd
        with pytest.raises(ValueError, match="the camera's intrinsics are"):
            to_camera(camera)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -280.0])
def test_a_camera_needs_finite_positive_focal_lengths(bad):
    camera = CAMERA.clone()
    camera[2, 2] = 0  # singular
    with pytest.raises(ValueError, match="the camera's intrinsics are"):
        range_to_depth(torch.ones(1, 4, 5), camera)
    camera = CAMERA.clone()
    camera[0, 0] = bad
    with pytest.raises(ValueError, match="the camera's intrinsics are"):
        Points.from_cloud(torch.ones(3, 3), camera, None, SIZE)
    with pytest.raises(ValueError, match="the camera's intrinsics are"):
        range_to_depth(torch.ones(1, 4, 5), camera)


def test_occlusion_on_a_large_image_takes_no_time_for_far_points():
    """A window of a thousand pixels once took a thousand times that of one pixel."""
    far = Points.from_rows(np.array([[0, 0, 2.0], [2999, 1999, 3.0]]))
    assert len(remove_occluded(far, (2000, 3000))) == 2


@pytest.mark.parametrize("count", [1, 2, 7, 60])
@pytest.mark.parametrize("seed", range(4))
def test_the_reach_is_that_of_growing_windows(count, seed):
    rng = np.random.default_rng(seed)
    known = torch.zeros(1, 17, 23, dtype=torch.bool)
    known.view(-1)[rng.choice(17 * 23, count, replace=False)] = True
    _, row, column = known.nonzero(as_tuple=True)
    box = known[:, row.min() : row.max() + 1, column.min() : column.max() + 1].float()
    radius = 0
    while F.max_pool2d(box, 2 * radius + 1, 1, radius).mean() < COVERED:
        radius += 1
    assert _reach(known) == radius + 1
    values = torch.from_numpy(rng.normal(size=(1, 17, 23)))
    for radius in (0, 1, 3, 30):
        plain = F.max_pool2d(F.pad(values, [radius] * 4, value=-torch.inf), 2 * radius + 1, 1)
        assert torch.equal(local_maximum(values, radius), plain)
