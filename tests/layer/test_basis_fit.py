# SPDX-License-Identifier: Apache-2.0
"""BasisFit against its plain twin, and what a drop-in layer has to promise."""

import pytest
import torch
from torch import nn

import reference
from deepbasis import BasisFit, fit
from deepbasis.layer import CalibrationRow, pyramid
from layer.scenes import CHANNELS, make_layer, make_scales, make_sparse, observe
from refusals import refusals


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
    for have, want in zip(got, reference.layer(scales, sparse, layer.prior.value), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-7, atol=1e-9)


def test_training_agrees_with_the_fit_on_the_full_basis(generator):
    scales, sparse = make_scales(generator), make_sparse(generator, [60])
    mean, model_var, noise_var = make_layer(generator).train()(scales, sparse)
    phi = reference.full_basis(scales, (24, 32)).flatten(2).mT
    at = sparse.flatten() > 0
    post = fit.ml(phi[:, at], sparse.flatten()[at].log()[None])
    for have, want in zip((mean, model_var, noise_var), post.predict(phi), strict=True):
        torch.testing.assert_close(have.flatten(1), want)


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
    torch.testing.assert_close(together.mean[0].flatten(), phi @ layer.prior.mean)
    spread = (phi @ layer.prior.cov * phi).sum(-1)
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
    sparse = make_sparse(generator, [25, 28], size=(5, 6))
    layer = make_layer(generator).train()
    scales = [s.requires_grad_() for s in make_scales(generator, (5, 6), (4, 2, 1), batch=2)]
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
    "layer(bases * nan, sparse * 0)": "the bases hold NaN or infinity, or are too large; check the",
    "layer.train()(bases, sparse * 0)": "as bases, 4, but batch items [0] of 1 has 0",
    "layer.set_prior(fit.Prior(ones(3), torch.eye(3)))": "is for 3 bases, but the layer has 4",
    "layer.learn_prior()": "no weights were collected",
    "layer.collect_weights() or layer.learn_prior()": "no weights were collected",
    "BasisFit(3, errors='some')": "choose one of 'independent', 'correlated', 'paper'",
    "layer.error_model('local')": "`errors` is 'local'; choose one of 'independent', 'correlated'",
}

SETUP = "bases, sparse = torch.rand(1, 3, 4, 6), ones(1, 1, 4, 6); layer = BasisFit(3).eval()"


@pytest.fixture(scope="module")
def said():
    return refusals(SETUP, CASES)


@pytest.mark.parametrize("case", CASES)
def test_bad_input_says_what_was_wrong(said, case):
    assert CASES[case] in said[case]
    assert "\n" not in said[case]


def test_collects_nothing_unless_asked_and_then_learns_the_prior(generator):
    layer = make_layer(generator).train()
    layer(make_scales(generator), make_sparse(generator, [60]))
    assert layer.collector is None
    layer.collect_weights()
    for _ in range(4):
        layer(make_scales(generator, batch=3), make_sparse(generator, [60, 70, 80]))
    layer.eval()(make_scales(generator), make_sparse(generator, [60]))
    sample = layer.collector.sample
    assert sample.weights.shape == (12, 10)
    layer.learn_prior(correct=False)
    assert layer.collector is None
    torch.testing.assert_close(layer.prior.mean, sample.weights.mean(0))
    torch.testing.assert_close(layer.prior.cov, sample.weights.mT.cov())
    want = sample.hyperprior()
    assert tuple(layer.prior.alpha.value) == pytest.approx(tuple(want.alpha))
    for errors in ("independent", "paper"):
        assert tuple(layer.error_model(errors).noise.value) == pytest.approx(tuple(want.beta))
    assert min(*want.alpha, *want.beta) > 0


def test_state_dict_carries_prior_hyperprior_kernel_and_calibration(generator):
    layer = make_layer(generator, errors="correlated")
    hyperprior = fit.Hyperprior(fit.Gamma(3.0, 3.0), fit.Gamma(2.0, 0.02))
    layer.set_prior(layer.prior.value, hyperprior)
    layer.correlated.noise.set(fit.Gamma(2.0, 0.05))
    layer.correlated.set_kernel(fit.Kernel(0.3, 0.5, 0.1, 1.5))
    for number, model in enumerate(layer.models.values(), start=1):
        model.calibration.set_factors(1.5 * number, 0.5 * number)
        rows = [CalibrationRow(0, 2.0, 3.0, 0.7), CalibrationRow(5, 1.1 * number, 4.0, 0.8)]
        model.calibration.set_rows(rows)
    twin = BasisFit(sum(CHANNELS)).double().eval()
    twin.load_state_dict(layer.state_dict())
    scales, sparse = make_scales(generator, batch=2), make_sparse(generator, [5, 0])
    for errors in ("independent", "correlated", "paper"):
        one, other = (
            each.fit_details(observe(each, scales, sparse), errors=errors) for each in (layer, twin)
        )
        for have, want in zip(one.prediction, other.prediction, strict=True):
            assert torch.equal(have, want)
        halves = [each.distribution.half_width(each.prediction.var, 0.9) for each in (one, other)]
        assert torch.equal(*halves)
    plain = layer.fit_details(observe(layer, scales, sparse), errors="independent")
    assert plain.prediction.noise_var[1].mean() == pytest.approx(2.0 * 1.5 * 0.02 / 2)


def test_the_running_prior_follows_the_weights_of_training():
    torch.manual_seed(0)
    layer = BasisFit(2)
    for _ in range(400):
        weights = torch.tensor([1.0, -2, 3]) + torch.tensor([0.5, 0.1, 0.2]) * torch.randn(4, 3)
        phi = torch.randn(4, 200, 3)
        z = (phi @ weights[..., None])[..., 0] + 0.1 * torch.randn(4, 200)
        layer.update_running_prior(fit.ml(phi, z))
    torch.testing.assert_close(layer.prior.mean, torch.tensor([1.0, -2, 3]), rtol=0, atol=0.15)
    spread = layer.prior.cov.diagonal().sqrt()
    torch.testing.assert_close(spread, torch.tensor([0.5, 0.1, 0.2]), rtol=0.3, atol=0)
    noise = layer.error_model("independent").noise
    assert noise.usual_variance == pytest.approx(0.01, rel=0.1)
    assert noise.value.rate / noise.value.shape == pytest.approx(0.01, rel=0.1)


def test_the_first_batch_sets_the_running_noise():
    layer = BasisFit(2)
    assert layer.error_model("independent").noise.usual_variance == 0
    generator = torch.Generator().manual_seed(0)
    phi, z = torch.randn(2, 20, 3, generator=generator), torch.randn(2, 20, generator=generator)
    post = fit.ml(phi, z)
    layer.update_running_prior(post)
    noise = layer.error_model("independent").noise.usual_variance
    assert noise == pytest.approx(float((1 / post.beta).mean()), rel=1e-5)


def test_the_mean_alone_is_the_mean_of_forward_in_value_and_gradient():
    """What the loss uses: weights first, then one weighted sum of the bases."""
    torch.manual_seed(0)
    bases = [torch.randn(2, 3, 4, 6).double(), torch.randn(2, 2, 9, 13).double()]
    sparse = torch.where(torch.rand(2, 1, 9, 13) < 0.5, 1 + torch.rand(2, 1, 9, 13), 0).double()
    layer = BasisFit(5)

    def mean_alone(leaves):
        observed = observe(layer, leaves, sparse)
        return observed.pyramid.combine(layer.fit_ml(observed).mean)[:, None]

    found = []
    for predict in (lambda b: layer(b, sparse).mean, mean_alone):
        leaves = [basis.clone().requires_grad_() for basis in bases]
        mean = predict(leaves)
        found.append([mean, *torch.autograd.grad(mean.sin().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert one.abs().max() > 0.1
        torch.testing.assert_close(one, other)
