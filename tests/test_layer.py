# SPDX-License-Identifier: Apache-2.0
"""BasisFit against its plain twin, and what a drop-in layer has to promise."""

import pytest
import torch
from torch import nn

import reference
from deepbasis import BasisFit, fit, latent, pyramid
from deepbasis.counts import Tail
from problems import bayesian
from refusals import refusals

CHANNELS = (2, 3, 4)


def make_scales(generator, size=(24, 32), strides=(8, 2, 1), batch=1, dtype=torch.float64):
    return [
        torch.randn(batch, c, -(-size[0] // s), -(-size[1] // s), generator=generator, dtype=dtype)
        for c, s in zip(CHANNELS, strides, strict=True)
    ]


def make_sparse(generator, counts, size=(24, 32), dtype=torch.float64):
    """Depths of 1 to 5 m at random pixels, as many as asked for in each image."""
    sparse = torch.zeros(len(counts), size[0] * size[1], dtype=dtype)
    for depth, count in zip(sparse, counts, strict=True):
        at = torch.randperm(len(depth), generator=generator)[:count]
        depth[at] = 1 + 4 * torch.rand(count, generator=generator, dtype=dtype)
    return sparse.view(len(counts), 1, *size)


def make_layer(generator, **options):
    """A layer with some prior of its own."""
    layer = BasisFit(sum(CHANNELS), **options).double().eval()
    layer.set_prior(bayesian(1, sum(CHANNELS) + 1, generator).prior)
    return layer


@pytest.mark.parametrize(
    ("size", "strides"),
    [((24, 32), (8, 2, 1)), ((23, 37), (16, 4, 1)), ((7, 5), (4, 2, 2)), ((30, 20), (1, 1, 1))],
)
@pytest.mark.parametrize("block", [1, 100, 10**9])
def test_evaluation_agrees_with_the_plain_twin(generator, monkeypatch, size, strides, block):
    monkeypatch.setattr(pyramid, "BLOCK_PIXELS", block)
    scales = make_scales(generator, size, strides, batch=2)
    sparse = make_sparse(generator, [30, 9], size)
    layer = make_layer(generator)
    got = layer(scales, sparse)
    prior = fit.Prior(layer.prior_mean, layer.prior_cov)
    for have, want in zip(got, reference.layer(scales, sparse, prior), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-7, atol=1e-9)


def test_training_agrees_with_the_fit_on_the_full_basis(generator):
    scales, sparse = make_scales(generator), make_sparse(generator, [60])
    mean, model_var, noise_var = make_layer(generator).train()(scales, sparse)
    phi = reference.full_basis(scales, (24, 32)).flatten(2).mT
    at = sparse.flatten() > 0
    post = fit.ml(phi[:, at], sparse.flatten()[at].log()[None])
    for have, want in zip((mean, model_var, noise_var), post.predict(phi), strict=True):
        torch.testing.assert_close(have.flatten(1), want)


def test_a_point_reads_the_bases_of_its_pixel_to_the_bit(generator):
    scales = make_scales(generator, (23, 37), (16, 4, 1), dtype=torch.float32)
    read = pyramid.Pyramid(scales, (23, 37))
    row, column = (torch.randint(n, (1, 50), generator=generator) for n in (23, 37))
    full = read.rows(0, 23).unflatten(-1, (23, 37))
    assert torch.equal(read.at(row, column)[0].mT, full[0][:, row[0], column[0]])


def test_one_tensor_is_a_list_of_one(generator):
    bases = torch.randn(1, sum(CHANNELS), 6, 8, generator=generator, dtype=torch.float64)
    layer, sparse = make_layer(generator), make_sparse(generator, [20])
    for one, listed in zip(layer(bases, sparse), layer([bases], sparse), strict=True):
        assert torch.equal(one, listed)


def test_a_batch_may_mix_0_3_and_5000_points(generator):
    size = (80, 100)
    scales = make_scales(generator, size, batch=3)
    sparse = make_sparse(generator, [0, 3, 5000], size)
    layer = make_layer(generator)
    together = layer(scales, sparse)
    for i in range(3):
        alone = layer([s[i : i + 1] for s in scales], sparse[i : i + 1])
        for have, want in zip(together, alone, strict=True):
            torch.testing.assert_close(have[i : i + 1], want)
    phi = reference.full_basis(scales, size).flatten(2).mT[0]
    torch.testing.assert_close(together.mean[0].flatten(), phi @ layer.prior_mean)
    spread = (phi @ layer.prior_cov * phi).sum(-1)
    torch.testing.assert_close(together.model_var[0].flatten(), spread)


def test_zero_nan_and_infinity_mean_no_measurement(generator):
    scales, sparse = make_scales(generator), make_sparse(generator, [20])
    layer = make_layer(generator)
    want = layer(scales, sparse)
    empty = (sparse == 0).nonzero()
    for value, at in zip((torch.nan, torch.inf, -torch.inf), empty, strict=False):
        sparse[tuple(at)] = value
    for have, expected in zip(layer(scales, sparse), want, strict=True):
        assert torch.equal(have, expected)


def test_weights_reach_the_fit(generator):
    """A point of weight 0 is no point; a heavier point is met more closely."""
    scales, sparse = make_scales(generator), make_sparse(generator, [20])
    layer = make_layer(generator)
    first, second = (tuple(at) for at in (sparse > 0).nonzero()[:2])
    weight = torch.ones_like(sparse)
    weight[first] = 0
    without = sparse.clone()
    without[first] = 0
    torch.testing.assert_close(layer(scales, sparse, weight).mean, layer(scales, without).mean)
    heavy = torch.ones_like(sparse)
    heavy[second] = 1e4
    z = sparse[second].log()
    plain, pulled = layer(scales, sparse).mean[second], layer(scales, sparse, heavy).mean[second]
    assert (pulled - z).abs() < 0.1 * (plain - z).abs()


def test_flipping_the_input_flips_the_output(generator):
    scales, sparse = make_scales(generator), make_sparse(generator, [40])
    layer = make_layer(generator)
    flipped = layer([s.flip(-1) for s in scales], sparse.flip(-1))
    for have, want in zip(flipped, layer(scales, sparse), strict=True):
        torch.testing.assert_close(have.flip(-1), want)


def test_depth_in_other_units_scales_the_prediction(generator):
    """The constant basis takes up the change of unit; a wide prior does not mind."""
    scales, sparse = make_scales(generator), make_sparse(generator, [60])
    layer = make_layer(generator).train()
    metres, feet = layer(scales, sparse), layer(scales, sparse / 0.3048)
    shift = torch.tensor(1 / 0.3048, dtype=torch.float64).log()
    torch.testing.assert_close(feet.mean, metres.mean + shift)
    torch.testing.assert_close(feet.model_var, metres.model_var)


def test_gradcheck_in_training(generator):
    sparse = make_sparse(generator, [30, 40], size=(8, 10))
    layer = make_layer(generator).train()
    scales = [s.requires_grad_() for s in make_scales(generator, (8, 10), (4, 2, 1), batch=2)]
    assert torch.autograd.gradcheck(lambda *s: tuple(layer(s, sparse)), scales)
    loss = layer(scales, sparse).mean.square().sum()
    for gradient in torch.autograd.grad(loss, scales):
        assert gradient.abs().max() > 1e-3


def test_autocast_is_left_behind(generator):
    scales = make_scales(generator, dtype=torch.float32)
    sparse = make_sparse(generator, [60], dtype=torch.float32)
    layer = make_layer(generator).float()
    for mode in (True, False):
        layer.train(mode)
        want = layer(scales, sparse)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for have, expected in zip(layer(scales, sparse), want, strict=True):
                assert have.dtype == torch.float32
                assert torch.equal(have, expected)
    coarse = layer([s.bfloat16() for s in scales], sparse)
    assert coarse.mean.dtype == torch.float32


def test_gathers_nothing_unless_asked_and_then_learns_the_prior(generator):
    layer = make_layer(generator).train()
    layer(make_scales(generator), make_sparse(generator, [60]))
    assert layer.gathered is None
    layer.gathered = []
    for _ in range(4):
        layer(make_scales(generator, batch=3), make_sparse(generator, [60, 70, 80]))
    layer.learn_prior(correct=False)
    weights = torch.cat([sample.weights for sample in layer.gathered])
    assert weights.shape == (12, 10)
    torch.testing.assert_close(layer.prior_mean, weights.mean(0))
    torch.testing.assert_close(layer.prior_cov, weights.mT.cov())
    assert (layer.hyperprior > 0).all()
    layer.eval()(make_scales(generator), make_sparse(generator, [60]))
    assert len(layer.gathered) == 4


def test_state_dict_carries_prior_hyperprior_and_calibration(generator):
    layer = make_layer(generator)
    prior = fit.Prior(layer.prior_mean, layer.prior_cov)
    layer.set_prior(prior, fit.Hyperprior(fit.Gamma(3.0, 3.0), fit.Gamma(2.0, 0.02)))
    layer.set_calibration(noise=1.5, model=0.5, nees=8.0)
    twin = BasisFit(sum(CHANNELS)).double().eval()
    twin.load_state_dict(layer.state_dict())
    scales, sparse = make_scales(generator, batch=2), make_sparse(generator, [5, 0])
    for have, want in zip(twin(scales, sparse), layer(scales, sparse), strict=True):
        assert torch.equal(have, want)
    assert layer(scales, sparse).noise_var[1].mean() == pytest.approx(1.5 * 0.02 / 2)


def test_calibration_and_the_papers_variance(generator):
    scales, sparse = make_scales(generator), make_sparse(generator, [30])
    plain, paper = make_layer(generator), BasisFit(sum(CHANNELS), variance="paper").double().eval()
    paper.load_state_dict(plain.state_dict())
    want = plain(scales, sparse)
    for layer in (plain, paper):
        layer.set_calibration(noise=1.5, model=0.5, nees=8.0)
    torch.testing.assert_close(plain(scales, sparse).noise_var, 1.5 * want.noise_var)
    torch.testing.assert_close(plain(scales, sparse).model_var, 0.5 * want.model_var)
    torch.testing.assert_close(paper(scales, sparse).model_var, 8 * want.model_var)
    assert (paper(scales, sparse).noise_var == 0).all()


def test_huber_keeps_an_outlier_out(generator):
    scales = make_scales(generator)
    sparse = torch.zeros(1, 1, 24, 32, dtype=torch.float64)
    sparse[0, 0, ::3, ::3] = 5.0
    wrong = sparse.clone()
    wrong[0, 0, 12, 12] = 50.0
    plain, robust = make_layer(generator), make_layer(generator, huber=1.345)
    robust.load_state_dict(plain.state_dict())
    pull = [(layer(scales, wrong).mean - layer(scales, sparse).mean).abs().mean()
            for layer in (plain, robust)]  # fmt: skip
    assert pull[1] < 0.05 * pull[0]


def test_a_toy_network_with_the_layer_learns(generator):
    """Two lines at the end of a network; it overfits one image in seconds."""
    torch.manual_seed(0)

    class Toy(nn.Module):
        def __init__(self):
            super().__init__()
            self.bases = nn.Sequential(
                nn.Conv2d(3, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 8, 3, padding=1)
            )
            self.fit = BasisFit(8)

        def forward(self, image, sparse):
            return self.fit(self.bases(image), sparse)

    y, x = torch.meshgrid(torch.linspace(0, 1, 24), torch.linspace(0, 1, 32), indexing="ij")
    depth = (2 + y + torch.sin(6 * x) * (x > 0.5))[None, None]
    image = torch.cat([depth / 4, depth.roll(1, 2) / 4, torch.rand(1, 1, 24, 32)], 1)
    sparse = depth * (torch.rand(1, 1, 24, 32, generator=generator) < 0.3)
    net = Toy()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(150):
        loss = (net(image, sparse).mean - depth.log()).abs().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    net.eval()
    mean = net(image, torch.zeros_like(sparse)).mean
    assert mean.isfinite().all()


CASES = {
    "layer(ones(1, 2, 4, 6), sparse)": "[2] channels, 2 in all; the layer was made for 3",
    "layer([ones(1, 1, 2, 3), ones(1, 1, 4, 6)], sparse)": "[1, 1] channels, 2 in all",
    "layer(ones(2, 3, 4, 6), sparse)": "bases are [[2, 3, 4, 6]]; expected tensors [1, channels",
    "layer(ones(3, 4, 6), sparse)": "bases are [[3, 4, 6]]; expected tensors [1, channels",
    "layer([], sparse)": "bases are []; expected tensors",
    "layer(bases, ones(4, 6))": "sparse depth is torch.float32 [4, 6]; expected floating point",
    "layer(bases, sparse.long())": "sparse depth is torch.int64 [1, 1, 4, 6]",
    "layer(bases, sparse, ones(1, 1, 2, 3))": "weights are [1, 1, 2, 3] but the sparse depth is",
    "layer(bases, sparse - 2)": "first in image 0 at row 0, column 0: -1 m; depth is in metres",
    "layer(bases * nan, sparse)": "`phi` holds NaN or infinity at a point of batch items [0] of 1",
    "layer(bases * nan, sparse * 0)": "the bases hold NaN or infinity; check the network",
    "layer.train()(bases, sparse * 0)": "as bases, 4, but batch items [0] of 1 has 0",
    "layer.set_prior(fit.Prior(ones(3), torch.eye(3)))": "is for 3 bases, but the layer has 4",
    "layer.set_calibration(model=0.0)": "calibration factors are 1.0, 0.0, 1.0; all must be > 0",
    "layer.learn_prior()": "no weights were gathered",
    "BasisFit(3, variance='best')": "`variance` is 'best'; choose 'predictive' or 'paper'",
    "BasisFit(3, errors='some')": "`errors` is 'some'; choose 'independent' or 'local'",
}

SETUP = "bases, sparse = torch.rand(1, 3, 4, 6), ones(1, 1, 4, 6); layer = BasisFit(3).eval()"


@pytest.fixture(scope="module")
def said():
    return refusals(SETUP, CASES)


@pytest.mark.parametrize("case", CASES)
def test_bad_input_says_what_was_wrong(said, case):
    assert CASES[case] in said[case]
    assert "\n" not in said[case]


def test_the_mean_alone_is_the_mean_of_forward_in_value_and_gradient():
    torch.manual_seed(0)
    bases = [torch.randn(2, 3, 4, 6).double(), torch.randn(2, 2, 9, 13).double()]
    sparse = torch.where(torch.rand(2, 1, 9, 13) < 0.5, 1 + torch.rand(2, 1, 9, 13), 0).double()
    layer = BasisFit(5)
    found = []
    for predict in (lambda b: layer(b, sparse).mean, lambda b: layer.mean(b, sparse)):
        leaves = [basis.clone().requires_grad_() for basis in bases]
        mean = predict(leaves)
        found.append([mean, *torch.autograd.grad(mean.sin().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert one.abs().max() > 0.1
        torch.testing.assert_close(one, other)


def test_local_errors_of_no_length_are_independent_errors():
    """Where nothing was measured. The nugget adds to what errors share; beta is of the sum."""
    torch.manual_seed(0)
    bases, image = torch.randn(2, 4, 10, 14).double(), torch.rand(2, 3, 10, 14).double()
    sparse = torch.where(torch.rand(2, 1, 10, 14) < 0.3, 1 + torch.rand(2, 1, 10, 14), 0).double()
    plain = BasisFit(4, steps=500, tol=1e-9).double().eval()
    near = BasisFit(4, steps=500, tol=1e-9, errors="local").double().eval()
    near.set_local(fit.Kernel(length=1e-6, colour=1.0, nugget=0.5))
    free = sparse == 0
    for one, other in zip(plain(bases, sparse), near(bases, sparse, guide=image), strict=True):
        torch.testing.assert_close(one[free], other[free], rtol=1e-4, atol=1e-7)


def test_huber_keeps_an_outlier_from_its_surroundings():
    torch.manual_seed(0)
    sparse = torch.zeros(1, 1, 20, 30)
    sparse[0, 0, ::4, ::4] = 2.0
    clean = BasisFit(1, errors="local", huber=1.5).eval()
    bases = torch.randn(1, 1, 20, 30)
    before = clean(bases, sparse).mean
    sparse[0, 0, 8, 12] = 20.0
    robust = (clean(bases, sparse).mean - before).abs()
    clean.huber = None
    plain = (clean(bases, sparse).mean - before).abs()
    assert robust[0, 0, 6:11, 10:15].mean() < 0.2 * plain[0, 0, 6:11, 10:15].mean()


def test_local_factors_scale_noise_and_model_variance():
    torch.manual_seed(0)
    bases, sparse = torch.randn(1, 3, 8, 9), torch.zeros(1, 1, 8, 9)
    sparse[0, 0, ::3, ::3] = 2.0 + torch.rand(3, 3)
    layer = BasisFit(3, errors="local").eval()
    plain = layer(bases, sparse)
    layer.set_local(layer.kernel, factors=(2.0, 3.0))
    mean, model_var, noise_var = layer(bases, sparse)
    torch.testing.assert_close(mean, plain.mean)
    torch.testing.assert_close(model_var, 3 * plain.model_var)
    torch.testing.assert_close(noise_var, 2 * plain.noise_var)


def test_the_shape_is_that_of_the_errors_assumed():
    torch.manual_seed(0)
    bases, sparse = torch.randn(1, 3, 8, 9), torch.zeros(1, 1, 8, 9)
    sparse[0, 0, ::3, ::3] = 2.0 + torch.rand(3, 3)
    layer = BasisFit(3).eval()
    prediction = layer(bases, sparse)
    nine = torch.tensor(9.0)
    assert layer.shape(prediction, nine) == latent.LAPLACE
    layer.set_tails("independent", [Tail(0, 1, 1.5, 0.5)])
    layer.set_tails("local", [Tail(0, 1, 4.0, 0.7)])
    found = layer.shape(prediction, nine)
    assert (found.dof, found.width) == pytest.approx((1.5, 0.5))
    share = prediction.noise_var / (prediction.noise_var + prediction.model_var)
    torch.testing.assert_close(found.noise_share, share)
    other = BasisFit(3, errors="local").eval()
    other.load_state_dict(layer.state_dict())
    found = other.shape(other(bases, sparse), nine)
    assert (found.dof, found.width) == pytest.approx((4.0, 0.7))
    layer.variance = "paper"
    assert layer.shape(prediction, nine) == latent.LAPLACE


@pytest.mark.parametrize("errors", ["independent", "local"])
def test_each_image_is_calibrated_for_its_number_of_points(errors):
    torch.manual_seed(0)
    bases, sparse = torch.randn(3, 3, 8, 9), torch.zeros(3, 1, 8, 9)
    sparse[1, 0, 4, 4] = 2.0
    sparse[2, 0, ::2, ::3] = 2.0 + torch.rand(4, 3)
    layer = BasisFit(3, errors=errors).eval()
    before = layer(bases, sparse)
    layer.set_tails(errors, [Tail(12, 4, 2, 0.5), Tail(0, 1, 8, 0.9), Tail(1, 3, 5, 0.7)])
    after = layer(bases, sparse)
    factor = torch.tensor([1.0, 3, 4]).view(3, 1, 1, 1)
    torch.testing.assert_close(after.mean, before.mean)
    torch.testing.assert_close(after.noise_var, factor * before.noise_var)
    torch.testing.assert_close(after.model_var, factor * before.model_var)
    points = torch.tensor([0.0, 1, 12]).view(3, 1, 1, 1)
    shape = layer.shape(after, points)
    torch.testing.assert_close(shape.dof.flatten(), torch.tensor([8.0, 5, 2]))
    torch.testing.assert_close(shape.width.flatten(), torch.tensor([0.9, 0.7, 0.5]))
    for i in range(3):
        alone = layer(bases[i : i + 1], sparse[i : i + 1])
        half = layer.shape(alone, points[i]).half_width(alone.var, 0.9)
        torch.testing.assert_close(shape.half_width(after.var, 0.9)[i], half[0])


def test_a_followed_prior_forgets_its_start_and_finds_mean_spread_and_noise():
    torch.manual_seed(0)
    layer = BasisFit(2)
    for _ in range(400):
        weights = torch.tensor([1.0, -2, 3]) + torch.tensor([0.5, 0.1, 0.2]) * torch.randn(4, 3)
        phi = torch.randn(4, 200, 3)
        z = (phi @ weights[..., None])[..., 0] + 0.1 * torch.randn(4, 200)
        layer.follow(fit.ml(phi, z))
    torch.testing.assert_close(layer.prior_mean, torch.tensor([1.0, -2, 3]), rtol=0, atol=0.15)
    spread = layer.prior_cov.diagonal().sqrt()
    torch.testing.assert_close(spread, torch.tensor([0.5, 0.1, 0.2]), rtol=0.3, atol=0)
    shape, rate = layer.hyperprior[1].tolist()
    assert rate / shape == pytest.approx(0.01, rel=0.1)


def test_the_local_mean_of_training_is_universal_kriging_and_has_its_gradient():
    g = torch.Generator().manual_seed(4)
    kernel = fit.Kernel(0.3, 0.5, 0.05, 1.5)
    layer = BasisFit(3)
    layer.set_local(kernel)
    bases = torch.rand(1, 3, 8, 10, generator=g).double().requires_grad_()
    guide = torch.rand(1, 3, 8, 10, generator=g).double()
    sparse = torch.zeros(1, 1, 8, 10).double()
    sparse.view(-1)[torch.randperm(80, generator=g)[:10]] = 1 + torch.rand(10, generator=g).double()
    mean = layer.mean_locally(*layer.read(bases, sparse), guide)
    row, column = torch.meshgrid(torch.arange(8), torch.arange(10), indexing="ij")
    place = torch.cat([torch.stack([row, column]) / 10, kernel.colour * guide[0]]).flatten(1).mT
    distance = torch.cdist(place, place) * 3**0.5 / kernel.length
    cov = (1 + distance) * (-distance).exp()
    at = sparse.flatten().nonzero()[:, 0]
    phi = torch.cat([torch.ones(1, 80), bases[0].flatten(1)]).mT
    inverse = (cov[at][:, at] + kernel.nugget * torch.eye(10)).inverse()
    z, near = sparse.flatten()[at].log(), phi[at]
    weights = torch.linalg.solve(near.mT @ inverse @ near, near.mT @ inverse @ z)
    want = phi @ weights + cov[:, at] @ inverse @ (z - near @ weights)
    torch.testing.assert_close(mean.flatten(), want, rtol=1e-5, atol=1e-5)
    probe = torch.rand(80, generator=g).double()
    ours, theirs = (
        torch.autograd.grad((probe * out.flatten()).sum(), bases)[0] for out in (mean, want)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
