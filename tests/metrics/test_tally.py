# SPDX-License-Identifier: Apache-2.0
"""The tally against the plain functions, in any order and over processes."""

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepbasis import latent, metrics
from deepbasis.metrics.image import FINE, split
from metrics.distributions import DISTRIBUTIONS
from refusals import refusals

PLAIN = ("mae", "rmse", "rel", "imae", "irmse")
LEVELS = (50, 68, 90, 95)


def image(generator, height=12, width=15, wrong=1.0):
    """Latent mean and variance and true depth; a fifth of the pixels have no truth."""
    size = (height, width)
    z = 1 + 0.5 * torch.randn(size, generator=generator)
    var = 0.05 * torch.rand(size, generator=generator) + 1e-3
    mean = z + wrong * var.sqrt() * torch.randn(size, generator=generator)
    known = torch.rand(size, generator=generator) > 0.2
    return mean, var, torch.where(known, latent.to_depth(z), 0)


def data(generator, count=6):
    """Images of different sizes and quality by name."""
    return {
        f"world/{i:02d}.png": image(generator, 10 + i, 20 - i, wrong=0.5 + i / 4)
        for i in range(count)
    }


def tally_of(images, names=None):
    tally = metrics.Tally()
    for name in images if names is None else names:
        tally.add(name, *images[name])
    return tally


def plain(mean, var, true, distribution=DISTRIBUTIONS["laplace"][0]):
    """Every metric by its own function, all pixels given together."""
    mean, var, true = (t.double() for t in (mean, var, true))
    depth, half = latent.to_depth(mean), distribution.half_width(var, latent.ONE_SIGMA)
    std = (latent.to_depth(mean + half) - latent.to_depth(mean - half)) / 2
    known = true > 0
    values = {name: getattr(metrics, name)(depth, true) for name in PLAIN}
    values |= {f"delta{k}": metrics.delta(depth, true, k) for k in (1, 2, 3)}
    for error, name in (("mae", "ause"), ("rmse", "ause_rmse")):
        for whole, end in ((False, ""), (True, "_normalised")):
            values[name + end] = metrics.ause(depth, std, true, error=error, normalised=whole)
    for p in LEVELS:
        half = distribution.half_width(var, p / 100)
        ends = latent.to_depth(mean - half), latent.to_depth(mean + half), true
        values[f"coverage{p}"] = metrics.coverage(*ends)
        values[f"sharpness{p}"] = metrics.sharpness(*ends)
    error = (latent.to_latent(true) - mean)[known]
    return values | {
        "nll": metrics.nll(mean, var, true, distribution=distribution),
        "nees": float(metrics.nees(error, var[known])),
        "auce": metrics.auce(mean, var, true, distribution=distribution),
        "pixels": int(known.sum()),
    }


def together(images):
    return [torch.cat([t.flatten() for t in each]) for each in zip(*images.values(), strict=True)]


def test_over_images_it_is_the_mean_of_the_plain_functions(generator):
    images = data(generator)
    each = [plain(*one) for one in images.values()]
    want = {name: sum(one[name] for one in each) / len(each) for name in each[0]}
    want |= {"images": len(images), "pixels": sum(one["pixels"] for one in each)}
    assert tally_of(images).finish() == pytest.approx(want, rel=1e-11, abs=1e-13)


def test_per_image_rows_are_the_plain_functions_in_the_order_of_names(generator):
    images = data(generator)
    tally = tally_of(images, sorted(images, reverse=True))
    rows = tally.per_image()
    assert tally.names() == sorted(images)
    for i, name in enumerate(tally.names()):
        want = plain(*images[name])
        del want["pixels"]
        assert {k: float(v[i]) for k, v in rows.items()} == pytest.approx(
            want, rel=1e-11, abs=1e-13
        )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_another_distribution_scores_with_its_own_quantiles(generator, name):
    distribution, one = DISTRIBUTIONS[name][0], image(generator)
    tally = metrics.Tally(distribution)
    tally.add("one", *one)
    assert tally.finish() == pytest.approx(
        plain(*one, distribution) | {"images": 1}, rel=1e-9, abs=1e-12
    )


def assert_same(mine: metrics.Tally, theirs: metrics.Tally) -> None:
    """Every sum is the same, to the bit."""
    for a, b in ((mine.rows, theirs.rows), (mine.totals, theirs.totals)):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def test_order_and_processes_make_no_difference_to_the_last_bit(generator):
    images = data(generator, 5)
    once = tally_of(images)
    for order in itertools.islice(itertools.permutations(images), 3, 120, 29):
        first, second = tally_of(images, order[:2]), tally_of(images, order[2:])
        merged = metrics.Tally()
        for tally in (second, first):
            merged.merge(pickle.loads(pickle.dumps(tally)))
        for mine, theirs in ((merged, once), (tally_of(images, order), once)):
            assert mine.finish() == theirs.finish()
            assert mine.calibration().area == theirs.calibration().area
            assert mine.sparsification("rmse").area == theirs.sparsification("rmse").area
            assert_same(mine, theirs)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=40), st.randoms())
def test_split_sums_are_exact_in_any_order(values, random):
    parts = split(torch.tensor(values, dtype=torch.float64))
    order = list(range(len(values)))
    random.shuffle(order)

    def total(indices):
        return sum((parts[:, i] for i in indices), torch.zeros(2, dtype=torch.float64))

    assert torch.equal(total(order), total(range(len(values))))
    exact = torch.tensor(values, dtype=torch.float64)
    assert (parts.sum(0) - exact).abs().max() <= FINE / 2 + 1e-16 * max(values)


def test_curves_of_many_images(generator):
    images = data(generator)
    tally = tally_of(images)
    for kind, name in (("mae", "ause"), ("rmse", "ause_rmse")):
        each = []
        for mean, var, true in images.values():
            mean, var, true = mean.double(), var.double(), true.double()
            depth, std = latent.to_depth(mean), latent.std(mean, var)
            each.append(metrics.sparsification_curve(depth, std, true, error=kind))
        mean_of = [torch.stack(curves).mean(0) for curves in zip(*each, strict=True)]
        for ours, want in zip(tally.sparsification(kind), mean_of, strict=True):
            torch.testing.assert_close(ours, want, rtol=0, atol=1e-12)
        assert tally.sparsification(kind).area == pytest.approx(tally.finish()[name], abs=1e-12)
    want = metrics.calibration_curve(*together(images))
    assert torch.equal(tally.calibration().observed, want.observed)
    assert tally.calibration().area == metrics.auce(*together(images), per_image=False)
    assert tally.calibration().area != pytest.approx(tally.finish()["auce"], rel=1e-3)


def test_a_mask_takes_pixels_out(generator):
    mean, var, true = image(generator)
    mask = torch.rand(true.shape, generator=generator) > 0.5
    masked, holes = metrics.Tally(), metrics.Tally()
    masked.add("one", mean, var, true, mask)
    holes.add("one", mean, var, torch.where(mask, true, torch.nan))
    assert masked.finish() == holes.finish()
    with pytest.raises(ValueError, match="'two' cannot be scored: no pixel has a true depth"):
        masked.add("two", mean, var, true, mask & False)


def test_what_is_refused_leaves_no_trace(generator):
    images = data(generator)
    tally, other = tally_of(images, list(images)[:3]), tally_of(images, list(images)[2:])
    before = copy.deepcopy(tally)
    mean, var, true = image(generator)
    huge = torch.full_like(mean, 800.0)
    for call, why in (
        (lambda: tally.add("world/02.png", mean, var, true), "1 images would count twice"),
        (lambda: tally.merge(other), "would count twice, 'world/02.png' among them"),
        (lambda: tally.merge(metrics.Tally(DISTRIBUTIONS["gauss"][0])), "one tally is for"),
        (lambda: tally.add("zero", mean, 0 * var, true), "without any error"),
        (lambda: tally.add("huge", huge, var, true), "float64"),
        (lambda: tally.add("tiny", -huge, var, true), "float64"),
    ):
        with pytest.raises(ValueError, match=why):
            call()
    assert_same(tally, before)


def test_nothing_scored_is_no_score():
    tally = metrics.Tally()
    for call in (tally.finish, tally.per_image, tally.sparsification, tally.calibration):
        with pytest.raises(ValueError, match="no image was scored"):
            call()


def test_bad_choices_are_named():
    said = refusals(
        "from deepbasis.metrics import Tally; t = Tally(); o = ones(2, 3); t.add('one', o, o, o)",
        [
            "t.sparsification('mse')",
            "t.add('two', o, o, o, ones(3, dtype=torch.bool))",
        ],
    )
    assert list(said.values()) == [
        "`error` is 'mse'; choose one of mae, rmse",
        "image 'two' cannot be scored: `mask` is [3] but the true depth [2, 3]; "
        "give both the same shape",
    ]


def test_a_table_can_say_what_it_shows():
    text = metrics.CONVENTIONS["images"]
    assert all(word in text for word in ("means over images", "AUSE", "AUCE", "pooled", "NLL"))
