# SPDX-License-Identifier: Apache-2.0
"""Sequences: the filter is one regression over all frames; bundled models do not flicker."""

import inspect
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from deepbasis import fit, stream
from deepbasis.model import Completer
from deepbasis.points import Points, to_points
from deepbasis.result import NO_POINTS
from deepbasis.stream import Landmarks, Stream, absorb, widen
from problems import bayesian
from walks import SIZE, bundled, camera, draw_points, room


def regress(steps, prior):
    """Posterior of the last frame's weights from the joint Gaussian of those of all frames.

    `steps` are, for each frame, the mean of its bases, the precision of the first frame's prior,
    and bases, targets and variances of its points. The deviation of the mean log depth is one
    process, that of the weights without it another.
    """
    m, count = len(prior.mean), len(steps)
    cov = torch.zeros(count * m, count * m, dtype=torch.float64)
    for t, (mu, alpha, *_) in enumerate(steps):
        here = slice(t * m, (t + 1) * m)
        if t == 0:
            cov[here, here] = prior.cov / alpha
            continue
        last = slice((t - 1) * m, t * m)
        common = torch.outer(prior.cov @ mu, prior.cov @ mu) / (mu @ prior.cov @ mu)
        to_common = torch.outer(prior.cov @ mu, mu) / (mu @ prior.cov @ mu)
        kept = [(1 - x) ** 0.5 for x in (stream.SCALE_CHANGE, stream.SHAPE_CHANGE)]
        step = kept[0] * to_common + kept[1] * (torch.eye(m) - to_common)
        cov[here, : t * m] = step @ cov[last, : t * m]
        cov[: t * m, here] = cov[here, : t * m].mT
        cov[here, here] = step @ cov[last, last] @ step.mT
        cov[here, here] += stream.SCALE_CHANGE * common
        cov[here, here] += stream.SHAPE_CHANGE * (prior.cov - common)
    phi = torch.block_diag(*(step[2] for step in steps))
    z = torch.cat([z - phi @ prior.mean for _, _, phi, z, _ in steps])
    noise = torch.cat([step[4] for step in steps])
    gain = torch.linalg.solve(phi @ cov @ phi.mT + noise.diag(), phi @ cov).mT
    end = slice((count - 1) * m, None)
    return prior.mean + (gain @ z)[end], (cov - gain @ phi @ cov)[end, end]


def test_the_filter_is_one_regression_on_the_points_of_all_frames():
    draw = torch.Generator().manual_seed(0)
    problems = [bayesian(n, 5, draw) for n in (3, 0, 7, 2)]
    prior, beta = problems[0].prior, 80.0
    known, steps = None, []
    for problem in problems:
        mu = torch.randn(5, generator=draw, dtype=torch.float64)
        start = prior if known is None else widen(known, prior, mu)
        post = fit.posterior(problem.phi, problem.z, start, problem.weight, beta=beta)
        known = fit.Prior(post.mean, (post.cov + post.cov.mT) / 2)
        steps.append((mu, 1.0, problem.phi, problem.z, 1 / (beta * problem.weight)))
    mean, cov = regress(steps, prior)
    torch.testing.assert_close(known.mean, mean)
    torch.testing.assert_close(known.cov, cov)


@pytest.mark.parametrize("errors", ["correlated", "independent"])
def test_a_stream_is_one_regression_on_the_points_of_all_frames(errors, monkeypatch):
    """With the precisions that each frame found; correlated errors by their innovations."""
    model, means = bundled("open"), [None]
    # The prior of an unfamiliar first frame is wider than that of the others.
    monkeypatch.setattr(type(model.network.familiarity), "widening", lambda *_: None)
    monkeypatch.setattr(stream, "widen", lambda *given: means.append(given[2]) or widen(*given))
    state, steps = Stream(model.network.fit, errors, robust=False), []
    prior = state.prior
    for number, frame in enumerate(room()[:4]):
        state.add(model.prepare(frame.image), draw_points(frame, 6, number))
        post, mu = state.last.fitted.posterior.exact, means[-1]
        points = post.points
        noise = 1 / (post.beta * points.weight[0])
        mu = mu if mu is None else mu.double()
        steps.append((mu, post.alpha[0], points.phi[0], points.z[0], noise))
    assert len(means) == 4
    mean, cov = regress(steps, prior)
    known = absorb(state.last.fitted, torch.ones(6, dtype=torch.bool))
    scale = cov.diagonal().sqrt()
    torch.testing.assert_close(known.mean / scale, mean / scale, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        known.cov / scale.outer(scale), cov / scale.outer(scale), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["indoor", "open"])
@pytest.mark.parametrize("count", [0, 10])
def test_the_first_frame_is_a_completion(name, count):
    model, frame = bundled(name), room()[0]
    points = draw_points(frame, count, 0)
    (out,) = model.stream([(frame.image, points)])
    alone = model.complete(frame.image, points)
    # A widened prior is rounded to float32 before or after widening.
    np.testing.assert_allclose(out.latent_mean, alone.latent_mean, atol=1e-3)
    np.testing.assert_allclose(out.latent_var, alone.latent_var, rtol=1e-2)


def test_without_points_the_widened_prior_is_the_prior():
    draw = torch.Generator().manual_seed(1)
    prior = bayesian(3, 6, draw).prior
    again = widen(prior, prior, torch.randn(6, generator=draw))
    torch.testing.assert_close(again.mean, prior.mean)
    torch.testing.assert_close(again.cov, prior.cov)


def test_without_points_the_error_bars_are_those_of_single_frames():
    model = bundled("indoor")
    for out, frame in zip(model.stream([f.image for f in room()[:3]]), room(), strict=False):
        (alone,) = model.stream([frame.image])
        np.testing.assert_array_equal(out.latent_var, alone.latent_var)
        assert NO_POINTS in out.warnings


@pytest.mark.parametrize("name", ["indoor", "open"])
def test_after_a_point_the_error_bars_of_a_still_image_grow(name):
    """Towards those of a single frame, also if the image is unfamiliar."""
    model, frame = bundled(name), room()[0]
    points = draw_points(frame, 1, 0)
    outs = model.stream([(frame.image, points), *[frame.image] * 12])
    median = [float(np.median(out.latent_var)) for out in outs]
    assert all(later > 0.999 * earlier for earlier, later in pairwise(median[1:]))
    (alone,) = model.stream([frame.image])
    assert median[-1] < np.median(alone.latent_var)


def flicker(outs, frames):
    """Mean absolute change of the error along the true motion."""
    changes = []
    for (one, other), (a, b) in zip(pairwise(outs), pairwise(frames), strict=True):
        row, column = np.nonzero(a.depth > 0)
        rays = np.linalg.solve(camera(a), np.stack([column, row, np.ones(len(row))]))
        world = a.pose[:3, :3] @ (rays * a.depth[row, column]) + a.pose[:3, 3:]
        there = b.pose[:3, :3].T @ (world - b.pose[:3, 3:])
        u, v = (camera(b) @ there)[:2] / there[2]
        u, v = np.round(u).astype(int), np.round(v).astype(int)
        good = (u >= 0) & (u < SIZE[1]) & (v >= 0) & (v < SIZE[0]) & (there[2] > 0)
        row, column, u, v, depth = row[good], column[good], u[good], v[good], there[2][good]
        same = np.abs(b.depth[v, u] / depth - 1) < 0.03
        before = one.latent_mean[row, column] - np.log(a.depth[row, column])
        after = other.latent_mean[v, u][same] - np.log(b.depth[v, u][same])
        changes.append(np.abs(after - before[same]).mean())
    return np.mean(changes)


def mae(outs, frames):
    return np.mean(
        [
            np.abs(out.depth - frame.depth)[frame.depth > 0].mean()
            for out, frame in zip(outs, frames, strict=True)
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 20])
@pytest.mark.parametrize(
    ("name", "errors"), [("indoor", None), ("indoor", "independent"), ("open", None)]
)
def test_a_stream_flickers_less_and_is_no_worse(name, errors, count):
    model = bundled(name)
    flickers, errors_m = [], []
    for index in range(6):
        frames = room(index)
        points = [draw_points(f, count, i) if count else None for i, f in enumerate(frames)]
        pairs = list(zip((f.image for f in frames), points, strict=True))
        outs = list(model.stream(pairs, errors=errors))
        alone = [model.complete(*pair, errors=errors) for pair in pairs]
        flickers.append((flicker(outs, frames), flicker(alone, frames)))
        errors_m.append((mae(outs, frames), mae(alone, frames)))
    ours, theirs = np.mean(flickers, 0)
    assert ours < 0.6 * theirs
    ours, theirs = np.mean(errors_m, 0)
    assert ours < 1.02 * theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["indoor", "open"])
def test_a_few_points_in_the_first_frame_help_all_others(name):
    """On average of six rooms: in one whose scale the network guesses well, they cannot."""
    model, errors, variances = bundled(name), [], []
    for index in range(6):
        frames = room(index)
        points = [draw_points(frames[0], 5, 0), *[None] * (len(frames) - 1)]
        outs = list(model.stream(zip((f.image for f in frames), points, strict=True)))
        alone = [model.complete(f.image) for f in frames[1:]]
        errors.append((mae(outs[1:], frames[1:]), mae(alone, frames[1:])))
        assert all(NO_POINTS not in out.warnings for out in outs)
        variances.append([np.median(out.latent_var) for out in (outs[1], outs[-1])])
    helped, not_helped = np.mean(errors, 0)
    assert helped < 0.85 * not_helped
    # What was measured long ago is less certain than what was measured just now.
    soon, late = np.mean(variances, 0)
    assert late > soon


def test_a_cut_resets_the_filter():
    model = bundled("open")
    frames = [*room(0)[:2], *room(1)[:2]]
    state = Stream(model.network.fit)
    outs = []
    for number, frame in enumerate(frames):
        scene = model.prepare(frame.image)
        with pytest.raises(ValueError, match="the only point is outside"):  # changes nothing
            state.add(scene, [[-9, 1, 2.0]])
        outs.append(state.add(scene, draw_points(frame, 9, number)))
    assert state.resets == [2]
    pairs = [(frame.image, draw_points(frame, 9, i)) for i, frame in enumerate(frames)]
    for have, want in zip(outs, model.stream(pairs), strict=True):
        np.testing.assert_array_equal(have.latent_mean, want.latent_mean)
    (alone,) = model.stream([(frames[2].image, draw_points(frames[2], 9, 2))])
    np.testing.assert_array_equal(outs[2].latent_mean, alone.latent_mean)
    np.testing.assert_array_equal(outs[2].latent_var, alone.latent_var)


@pytest.mark.parametrize("errors", ["correlated", "independent"])
def test_points_that_contradict_all_before_reset_the_filter(errors):
    model, frame = bundled("indoor"), room()[0]
    state = Stream(model.network.fit, errors)
    for number in range(4):
        points = draw_points(frame, 20, number)
        points[:, 2] *= 1 if number < 3 else 2.5
        out = state.add(model.prepare(frame.image), points)
    assert state.resets[-1] == 3
    (alone,) = model.stream([(frame.image, points)], errors=errors)
    np.testing.assert_array_equal(out.latent_mean, alone.latent_mean)


@pytest.mark.parametrize("name", ["indoor", "open"])
def test_a_resting_camera_with_a_pose_counts_each_measurement_once(name):
    model, frame = bundled(name), room()[0]
    points = draw_points(frame, 15, 0)
    frames = [(frame.image, points if i == 0 else None, frame.pose) for i in range(3)]
    *_, out = model.stream(frames, intrinsics=camera(frame))
    (alone,) = model.stream([(frame.image, points)], intrinsics=camera(frame))
    # Along the tracks, blocks of pixels that share neighbours are not blended.
    np.testing.assert_allclose(out.latent_mean, alone.latent_mean, atol=5e-4)
    np.testing.assert_allclose(out.latent_var, alone.latent_var, rtol=1e-3)


def test_poses_carry_points_to_where_the_next_frame_sees_them():
    first, *_, last = room()
    points = to_points(draw_points(first, 400, 0), SIZE)
    marks = Landmarks.of(points, torch.from_numpy(camera(first)), torch.from_numpy(first.pose))
    rows = marks.seen_from(torch.from_numpy(last.pose), torch.from_numpy(camera(last))).numpy()
    column, row = np.round(rows[:, :2]).astype(int).T
    inside = (column >= 0) & (column < SIZE[1]) & (row >= 0) & (row < SIZE[0])
    assert inside.sum() > 100
    there = last.depth[row[inside], column[inside]]
    # Some are hidden in the last frame, or at an edge.
    assert np.mean(np.abs(there / rows[inside, 2] - 1) < 0.02) > 0.85


def test_the_map_grows_and_its_points_become_less_certain(monkeypatch):
    monkeypatch.setattr(stream, "SURPRISE", np.inf)  # whether a frame surprises is not the question
    model, frames = bundled("open"), room()[:4]
    state = Stream(model.network.fit, robust=False, intrinsics=camera(frames[0]))
    outs = []
    for number, frame in enumerate(frames):
        outs.append(
            state.add(model.prepare(frame.image), draw_points(frame, 30, number), frame.pose)
        )
    counts = [len(out.points) for out in outs]
    assert counts[0] == 30
    assert counts[0] < counts[1] < counts[2] < counts[3] <= 120
    sigma = outs[-1].points[:, 3]
    assert (sigma == 0).sum() == 30
    assert sigma.max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 8])
def test_points_drift_by_the_way_of_the_camera_at_any_frame_rate(steps):
    model, frame = bundled("open"), room()[0]
    scene = model.prepare(frame.image)
    state = Stream(model.network.fit, robust=False, intrinsics=camera(frame))
    state.add(scene, draw_points(frame, 30, 0), np.eye(4))
    pose = np.eye(4)
    for _ in range(steps):
        pose[0, 3] += 0.4 / steps
        out = state.add(scene, None, pose)
    np.testing.assert_allclose(np.median(out.points[:, 3]), stream.DRIFT * 0.4, rtol=1e-6)


def test_what_a_user_does_to_a_result_does_not_change_the_next_frame():
    model, frame = bundled("open"), room()[0]
    frames = [(frame.image, draw_points(frame, 20, 0)), frame.image]
    expected = [out.latent_mean.copy() for out in model.stream(frames)]
    for number, out in enumerate(model.stream(frames)):
        np.testing.assert_array_equal(out.latent_mean, expected[number])
        out.latent_mean[:] = 9.0


def test_frames_in_which_nothing_can_be_tracked_are_completed():
    model, frame = bundled("open"), room()[0]
    dark = np.zeros_like(frame.image)
    given = draw_points(frame, 20, 0)
    sequence = [(dark, given), (dark + 255, given), dark, frame.image, (dark, given)]
    outs = list(model.stream(sequence))
    assert len(outs) == 5
    assert all(np.isfinite(out.depth).all() for out in outs)


def test_points_of_weight_0_are_not_carried_over():
    model, frame = bundled("open"), room()[0]
    points = to_points(draw_points(frame, 40, 0), SIZE)
    points.weight[::2] = 0
    state = Stream(model.network.fit, robust=False, intrinsics=camera(frame))
    for given in (points, None):
        out = state.add(model.prepare(frame.image), given, np.eye(4))
        assert len(out.points) == 20


def test_with_poses_depth_becomes_better_than_without():
    model, frames = bundled("indoor"), room(0)
    triples = [(f.image, draw_points(f, 20, i), f.pose) for i, f in enumerate(frames)]
    posed = list(model.stream(triples, intrinsics=camera(frames[0])))
    plain = list(model.stream([triple[:2] for triple in triples]))
    assert mae(posed[3:], frames[3:]) < mae(plain[3:], frames[3:])


def test_the_map_is_bounded(monkeypatch):
    monkeypatch.setattr(stream, "MAP_POINTS", 50)
    model, frames = bundled("open"), room()[:3]
    state = Stream(model.network.fit, intrinsics=camera(frames[0]))
    for number, frame in enumerate(frames):
        out = state.add(model.prepare(frame.image), draw_points(frame, 30, number), frame.pose)
    assert len(out.points) <= 50


def test_what_leaves_the_map_stays_in_the_weights():
    """A frame without a pose ends the map; its points are then in the prior of the next."""
    model, frame = bundled("open"), room()[0]
    state = Stream(model.network.fit, intrinsics=camera(frame))
    state.add(model.prepare(frame.image), draw_points(frame, 15, 0), frame.pose)
    assert state.last.weights is None
    out = state.add(model.prepare(frame.image))
    assert len(out.points) == 0
    alone = model.complete(frame.image)
    assert np.median(out.latent_var) < 0.5 * np.median(alone.latent_var)


def test_bad_frames_are_refused_in_one_sentence():
    model, frame = bundled("open"), room()[0]

    def say(frames, **options):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is returned
            list(model.stream(frames, **options))
        return str(caught.value)

    pose, k = np.eye(4), camera(frame)
    half = frame.image[:64, :64]
    assert say([frame.image, half]) == (
        "frame 1 is 64 x 64 pixels (height x width), but those before it are 96 x 128; frames of a "
        "sequence must have the same size"
    )
    assert "pass `intrinsics`" in say([(frame.image, None, pose)])
    assert "frame 0 is not a valid pose" in say([(frame.image, None, 2 * pose)], intrinsics=k)
    assert "the pose of frame 0 is [3, 4]" in say([(frame.image, None, pose[:3])], intrinsics=k)
    turned = np.eye(4)
    turned[3, :3] = 1.0
    assert "is it transposed?" in say([(frame.image, None, turned)], intrinsics=k)
    far = np.eye(4)
    far[0, 3] = np.inf
    said = say([(frame.image, None, far)], intrinsics=k)
    assert "its fourth column, the translation in metres, is [inf, 0.0, 0.0]" in said
    assert "the camera's intrinsics" in say([frame.image], intrinsics=2 * k)
    assert "NaN" not in say([(frame.image, None, pose * np.nan)], intrinsics=k)
    assert "the camera's intrinsics" in say([frame.image], intrinsics=-k)
    assert "a tuple of 4" in say([(frame.image, None, pose, 1)])
    assert "`max_depth` is -1" in say([frame.image], max_depth=-1)


@pytest.mark.parametrize("kind", [str, Image.fromarray, np.asarray, torch.from_numpy])
def test_one_image_is_not_a_sequence(kind):
    frames = "photo.jpg" if kind is str else kind(room()[0].image)
    with pytest.raises(ValueError, match="pass a list of images"):
        next(inspect.unwrap(Completer.stream)(bundled("open"), frames))


def test_a_stream_is_lazy_and_drops_far_points():
    model, frame = bundled("open"), room()[0]
    points = [[10, 10, 2.0], [20, 20, 30.0]]
    outs = model.stream(((frame.image, points) for _ in iter(int, 1)), max_depth=10.0)
    assert len(next(outs).points) == 1
    assert next(outs).dropped == {"beyond the largest depth, 10 m": 1}
    assert isinstance(next(outs).points, np.ndarray)
    assert Points.from_rows(next(outs).points).u.tolist() == [10.0]


def test_wrong_points_of_a_frame_are_left_out():
    model, frames = bundled("indoor"), room()[:3]
    rows = [np.array(draw_points(frame, 100, i)) for i, frame in enumerate(frames)]
    wrong = [one.copy() for one in rows]
    for one in wrong:
        one[::12, 2] *= 3
    errors = []
    for points, robust in ((rows, False), (wrong, False), (wrong, True)):
        pairs = zip((frame.image for frame in frames), points, strict=True)
        outs = list(model.stream(pairs, robust=robust))
        assert all((out.dropped.get("left out as wrong", 0) >= 5) == robust for out in outs)
        apart = [np.abs(out.depth - f.depth).mean() for out, f in zip(outs, frames, strict=True)]
        errors.append(np.mean(apart))
    assert errors[2] - errors[0] < 0.5 * (errors[1] - errors[0])
