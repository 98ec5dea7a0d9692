# SPDX-License-Identifier: Apache-2.0
"""Point patterns against counts, geometry and eigenvalues."""

import math
import pickle

import pytest
import torch

from deepbasis.patterns import (
    BEAMS,
    FeaturePoints,
    Grid,
    Lidar,
    Percent,
    Uniform,
    _rays,
    corner_strength,
    corrupt,
    parse,
)

SIZE = (240, 320)
CAMERA = torch.tensor([[280.0, 0, 159.5], [0, 280.0, 119.5], [0, 0, 1]])
UNKNOWN = torch.full((3, 3), torch.nan)
GREY = torch.zeros(3, *SIZE, dtype=torch.uint8)
WORDS = ["0", "1", "500", "5%", "0.5%", "lidar16", "lidar32", "lidar64", "tof8x8", "features500"]


def make_depth(generator, holes=0.0):
    """Depths of 1 to 10 m, some of them missing."""
    depth = 1 + 9 * torch.rand(1, *SIZE, generator=generator)
    return torch.where(torch.rand(depth.shape, generator=generator) < holes, 0, depth)


def make_image(generator):
    """Blocks of random brightness: corners everywhere."""
    blocks = torch.randint(0, 256, (3, 30, 40), generator=generator, dtype=torch.uint8)
    return blocks.repeat_interleave(8, 1).repeat_interleave(8, 2)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("word", WORDS)
def test_words_name_patterns_and_patterns_their_words(word):
    pattern = parse(word, cap=80.0)
    assert str(pattern) == word
    assert parse(str(pattern), cap=80.0) == pattern
    assert pickle.loads(pickle.dumps(pattern)) == pattern
    assert pattern.cap == 80
    assert parse(word).cap == math.inf


def test_other_words_for_a_grid():
    assert parse("tof") == parse("grid8x8") == Grid(8, 8)
    assert parse("grid24x32") == Grid(24, 32)


@pytest.mark.parametrize(
    "word", ["", "many", "-5", "5.5", "101%", "%", "lidar", "lidar17", "tof0x8", "tof8", "features"]
)
def test_unknown_words_are_refused_and_the_known_ones_listed(word):
    with pytest.raises(
        ValueError, match=r"unknown point pattern .*'5%'.*'lidar64'.*'tof8x8'.*'features500'"
    ):
        parse(word)


@pytest.mark.parametrize("word", WORDS)
def test_points_keep_their_depth_and_come_from_usable_pixels_only(generator, word):
    depth, image = make_depth(generator, holes=0.3), make_image(generator)
    depth[0, :20], depth[0, 20:40] = torch.nan, torch.inf
    sparse = parse(word, cap=6.0)(depth, image, CAMERA, generator)
    found = sparse > 0
    assert sparse.isfinite().all()
    assert torch.equal(sparse[found], depth[found])
    assert (sparse < 6).all()
    assert found.any() or word in ("0", "1")


@pytest.mark.parametrize("word", WORDS)
def test_the_same_seed_gives_the_same_points(word):
    depth, image = make_depth(seeded()), make_image(seeded())
    one, same, other = (parse(word)(depth, image, CAMERA, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    drawn = word[0] == "l" or word in ("1", "500", "5%", "0.5%")
    assert torch.equal(one, other) != drawn


@pytest.mark.parametrize(
    ("pattern", "count"),
    [(Uniform(0), 0), (Uniform(1), 1), (Uniform(500), 500), (Percent(5.0), 3840)],
)
def test_counts_are_exact_and_percent_is_of_all_pixels(generator, pattern, count):
    depth = make_depth(generator, holes=0.5)
    assert (pattern(depth, GREY, UNKNOWN, generator) > 0).sum() == count


def test_asking_for_more_than_there_are_gives_all(generator):
    depth = make_depth(generator)
    depth[:, :, 10:] = 0
    for pattern in (Uniform(2401), Percent(50.0)):
        assert torch.equal(pattern(depth, GREY, UNKNOWN, generator), depth)


def test_uniform_points_fall_everywhere_alike(generator):
    """A quadrant's count is hypergeometric, nearly binomial; four standard errors."""
    found = parse("5%")(make_depth(generator), GREY, UNKNOWN, generator) > 0
    error = math.sqrt(3840 * 0.25 * 0.75)
    for rows in found.chunk(2, 1):
        for quadrant in rows.chunk(2, 2):
            assert abs(quadrant.sum() - 960) < 4 * error


@pytest.mark.parametrize("beams", BEAMS)
def test_lidar_points_lie_on_equally_spaced_cones(generator, beams):
    """Undo the tilt by fitting it: elevations of the rays then take `beams` values only."""
    rays = _rays(beams, generator)
    torch.testing.assert_close(rays.norm(dim=1), torch.ones_like(rays[:, 0]))
    lines = rays.view(beams, -1, 3)
    # A cone's rays have one component along its axis: differences within a beam are normal to it.
    normal = (lines[:, 1:] - lines[:, :1]).flatten(0, 1)
    axis = torch.linalg.svd(normal, full_matrices=False).Vh[-1]
    axis = axis * -axis[1].sign()
    assert math.degrees(math.acos(-axis[1].item())) < math.hypot(2, 2)
    elevation = (lines @ axis).asin().rad2deg()
    want = torch.linspace(*BEAMS[beams], beams, dtype=torch.float64)[:, None]
    torch.testing.assert_close(elevation, want.expand_as(elevation))


def test_lidar_lines_move_and_are_as_far_apart_as_the_beams():
    rows = [
        (Lidar(16)(make_depth(seeded()), GREY, CAMERA, seeded(s))[0, :, 160] > 0).nonzero()[:, 0]
        for s in range(20)
    ]
    assert len({tuple(r.tolist()) for r in rows}) > 15
    step = 280 * math.tan(math.radians(2))
    for found in rows:
        lines = found[1:][found.diff() > 1]
        assert lines.diff().double().mean() == pytest.approx(step, rel=0.1)


def test_lidar_of_an_unknown_camera_takes_sixty_degrees():
    focal = 160 / math.tan(math.radians(30))
    known = torch.tensor([[focal, 0, 159.5], [0, focal, 119.5], [0, 0, 1]])
    depth = make_depth(seeded())
    one, other = (Lidar(32)(depth, GREY, camera, seeded()) for camera in (known, UNKNOWN))
    assert torch.equal(one, other)


def test_grid_measures_the_centres_of_its_zones(generator):
    found = Grid(2, 4)(make_depth(generator), GREY, UNKNOWN, generator) > 0
    want = [[0, row, column] for row in (60, 180) for column in (40, 120, 200, 280)]
    assert found.nonzero().tolist() == want


def test_features_are_corners_not_edges(generator):
    """A bright rectangle has four; its edges, however strong, have none."""
    image = GREY.clone()
    image[:, 60:100, 100:220] = 200
    found = FeaturePoints(500)(make_depth(generator), image, UNKNOWN, generator) > 0
    corners = torch.tensor([[y, x] for y in (59.5, 99.5) for x in (99.5, 219.5)])
    distance = torch.cdist(found.nonzero()[:, 1:].float(), corners)
    assert distance.min(1).values.max() < 3
    assert distance.min(0).values.max() < 3
    assert not FeaturePoints(500)(make_depth(generator), GREY, UNKNOWN, generator).any()


def test_the_strongest_features_come_first_and_apart(generator):
    depth, image = make_depth(generator, holes=0.2), make_image(generator)
    few, many = (FeaturePoints(n)(depth, image, UNKNOWN, generator) > 0 for n in (50, 200))
    assert (few.sum(), many.sum()) == (50, 200)
    assert (many | ~few).all()
    strength = corner_strength(image)
    assert strength[few].min() >= strength[many & ~few].max()


def test_corner_strength_is_the_smaller_eigenvalue(generator):
    image = make_image(generator)
    grey = image.double().mean(0)
    row, column = 100, 131
    window = grey[row - 3 : row + 4, column - 3 : column + 4]
    dx = (window[1:-1, 2:] - window[1:-1, :-2]) / 2
    dy = (window[2:, 1:-1] - window[:-2, 1:-1]) / 2
    gradients = torch.stack([dx.flatten(), dy.flatten()], 1)
    want = torch.linalg.eigvalsh(gradients.mT @ gradients / 25)[0].item()
    assert corner_strength(image)[0, row, column].item() == pytest.approx(want, rel=1e-3, abs=1e-2)


def test_noise_is_relative_and_has_the_size_asked_for(generator):
    sparse = make_depth(generator, holes=0.5)
    known = sparse > 0
    noisy = corrupt(sparse, 0.05, 0.0, generator)
    assert torch.equal(noisy > 0, known)
    error = (noisy / sparse)[known].log()
    n = known.sum().item()
    assert abs(error.mean()) < 4 * 0.05 / math.sqrt(n)
    assert error.std().item() == pytest.approx(0.05, rel=4 / math.sqrt(2 * n))
    near, far = error[sparse[known] < 3], error[sparse[known] > 8]
    assert near.std().item() == pytest.approx(far.std().item(), rel=0.1)


def test_outliers_are_as_many_as_asked_for_and_log_uniform(generator):
    sparse = make_depth(generator)
    wrong = corrupt(sparse, 0.0, 0.1, generator)
    changed = (wrong / sparse - 1).abs() > 1e-5
    n = sparse.numel()
    assert abs(changed.sum() - 0.1 * n) < 4 * math.sqrt(0.09 * n) + 1
    low, high = sparse.aminmax()
    share = (wrong[changed] / low).log() / (high / low).log()
    assert (share >= -1e-5).all()
    assert (share <= 1 + 1e-5).all()
    assert abs(share.mean() - 0.5) < 4 / math.sqrt(12 * len(share))


def test_corrupting_nothing_changes_nothing(generator):
    sparse = make_depth(generator, holes=0.9)
    torch.testing.assert_close(corrupt(sparse, 0.0, 0.0, generator), sparse)
    assert not corrupt(0 * sparse, 0.1, 0.5, generator).any()


@pytest.mark.parametrize(("noise", "outliers"), [(-0.1, 0.0), (0.1, 1.5), (math.nan, 0.0)])
def test_impossible_noise_is_refused(generator, noise, outliers):
    with pytest.raises(ValueError, match=r"noise is .* and outliers .*; noise is a relative error"):
        corrupt(make_depth(generator), noise, outliers, generator)
