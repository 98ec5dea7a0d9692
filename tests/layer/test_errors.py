# SPDX-License-Identifier: Apache-2.0
"""Error models: independent, correlated and the paper's, with the calibration that each owns."""

from dataclasses import replace

import pytest
import torch

from deepbasis import BasisFit, fit, latent
from deepbasis.layer import CalibrationRow
from deepbasis.points import Points
from layer.scenes import make_layer, make_scales, make_sparse, observe
from models import set_prior

ERRORS = ("independent", "correlated", "paper")


def small_scene(batch=1, seed=0):
    """Three bases at 8 x 9 pixels and nine points."""
    torch.manual_seed(seed)
    bases, sparse = torch.randn(batch, 3, 8, 9), torch.zeros(batch, 1, 8, 9)
    sparse[:, 0, ::3, ::3] = 2.0 + torch.rand(batch, 3, 3)
    return bases, sparse


def predict(layer, bases, sparse, guide=None, **options):
    return layer.fit_details(observe(layer, bases, sparse, guide), **options).prediction


def test_factors_scale_noise_and_model_variance_and_the_papers_has_no_noise(generator):
    scales, sparse = make_scales(generator), make_sparse(generator, [30])
    layer = make_layer(generator)
    want = layer(scales, sparse)
    layer.error_model("independent").calibration.set_factors(1.5, 0.5)
    layer.error_model("paper").calibration.set_factors(1.0, 8.0)
    ours, papers = (predict(layer, scales, sparse, errors=e) for e in ("independent", "paper"))
    torch.testing.assert_close(ours.noise_var, 1.5 * want.noise_var)
    torch.testing.assert_close(ours.model_var, 0.5 * want.model_var)
    torch.testing.assert_close(papers.model_var, 8 * want.model_var)
    assert torch.equal(papers.mean, want.mean)
    assert (papers.noise_var == 0).all()


def test_factors_of_correlated_errors_scale_noise_and_model_variance():
    bases, sparse = small_scene()
    layer = BasisFit(3, errors="correlated").eval()
    plain = layer(bases, sparse)
    layer.correlated.calibration.set_factors(2.0, 3.0)
    mean, model_var, noise_var = layer(bases, sparse)
    torch.testing.assert_close(mean, plain.mean)
    torch.testing.assert_close(model_var, 3 * plain.model_var)
    torch.testing.assert_close(noise_var, 2 * plain.noise_var)


@pytest.mark.parametrize("errors", ERRORS)
def test_the_argument_overrides_the_layers_own_errors_and_leaves_them(errors):
    bases, sparse = small_scene()
    layer, other = BasisFit(3).eval(), BasisFit(3, errors=errors).eval()
    before = layer(bases, sparse)
    for have, want in zip(predict(layer, bases, sparse, errors=errors), other(bases, sparse),
                          strict=True):  # fmt: skip
        assert torch.equal(have, want)
    assert layer.errors == "independent"
    assert all(map(torch.equal, layer(bases, sparse), before))


def test_correlated_errors_of_no_length_are_independent_errors():
    """Where nothing was measured. The nugget adds to what errors share; beta is of the sum."""
    torch.manual_seed(0)
    bases, image = torch.randn(2, 4, 10, 14).double(), torch.rand(2, 3, 10, 14).double()
    sparse = torch.where(torch.rand(2, 1, 10, 14) < 0.3, 1 + torch.rand(2, 1, 10, 14), 0).double()
    plain = BasisFit(4, steps=500, tol=1e-9).double().eval()
    near = BasisFit(4, steps=500, tol=1e-9, errors="correlated").double().eval()
    near.correlated.set_kernel(fit.Kernel(length=1e-6, colour=1.0, nugget=0.5))
    free = sparse == 0
    for one, other in zip(plain(bases, sparse), near(bases, sparse, guide=image), strict=True):
        torch.testing.assert_close(one[free], other[free], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("between", [False, True], ids=["at pixels", "between pixels"])
@pytest.mark.parametrize("varied", [False, True], ids=["one amplitude", "amplitudes"])
def test_correlated_errors_are_universal_kriging(generator, between, varied):
    """One Gaussian of points and pixels, conditioned densely at the precisions that were found."""
    size, count, kernel = (8, 10), 11, fit.Kernel(0.3, 0.5, 0.05, 1.5)
    layer = make_layer(generator, errors="correlated")
    layer.correlated.set_kernel(kernel)
    scales = make_scales(generator, size, (4, 2, 1))
    guide = torch.rand(1, 3, *size, generator=generator).double()
    pixel = torch.randperm(80, generator=generator)[:count]
    off = (0.9 * torch.rand(2, count, generator=generator).double() - 0.45) * between
    v, u = ((x.double() + shift)[None] for x, shift in zip((pixel // 10, pixel % 10), off,
                                                           strict=True))  # fmt: skip
    z = torch.rand(1, count, generator=generator).double()
    weight = 0.5 + torch.rand(1, count, generator=generator).double()
    amplitude = torch.randn(1, 1, *size, generator=generator).double().exp() if varied else None
    observed = layer.observe(scales, Points(u, v, z, weight), size, guide, amplitude)
    fitted = layer.fit_details(observed)
    post, prior = fitted.posterior, layer.prior.value
    s = amplitude.flatten() if varied else torch.ones(80).double()

    def place(rows, columns, index):
        position = torch.stack([rows, columns], 1) / size[1]
        colour = guide[0].flatten(1).mT[index]
        return torch.cat([position, kernel.colour * colour], 1)

    def correlation(one, other):
        distance = 3**0.5 * torch.cdist(one, other) / kernel.length
        return (1 + distance) * (-distance).exp()

    every = torch.arange(80)
    x = place((every // 10).double(), (every % 10).double(), every)
    at = place(v[0], u[0], pixel)
    full = fitted.observed.pyramid.rows(0, 8)[0].mT
    phi = fitted.observed.phi[0]
    noise = torch.outer(s[pixel], s[pixel]) * correlation(at, at)
    noise = noise + torch.diag(kernel.nugget / weight[0])
    cov = phi @ prior.cov @ phi.mT / post.alpha + noise / post.beta
    shared = torch.outer(s, s[pixel]) * correlation(x, at)
    cross = full @ prior.cov @ phi.mT / post.alpha + shared / post.beta
    gain = torch.linalg.solve(cov, cross.mT).mT
    mean = full @ prior.mean + gain @ (z[0] - phi @ prior.mean)
    var = (full @ prior.cov * full).sum(1) / post.alpha + (s**2 + kernel.nugget) / post.beta
    var = var - (gain * cross).sum(1)
    torch.testing.assert_close(fitted.prediction.mean.flatten(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fitted.prediction.var.flatten(), var, rtol=1e-5, atol=1e-7)


def test_an_amplitude_of_one_changes_nothing(generator):
    """All points are neighbours; of more, other ones may be chosen, see `fit.field`."""
    layer = make_layer(generator, errors="correlated")
    scales, points = make_scales(generator), Points.from_maps(make_sparse(generator, [12]))
    guide, one = torch.rand(1, 3, 24, 32, generator=generator).double(), torch.ones(1, 1, 24, 32)
    want, have = (
        layer.fit_details(layer.observe(scales, points, (24, 32), guide, s)).prediction
        for s in (None, one.double())
    )
    for part, expected in zip(have, want, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-10, atol=0)


def test_without_points_amplitudes_still_tell_pixels_apart(generator):
    layer = make_layer(generator, errors="correlated")
    layer.error_model().noise.set(fit.Gamma(10.0, 0.1))
    scales, points = make_scales(generator), Points.from_maps(torch.zeros(1, 1, 24, 32).double())
    s = torch.rand(1, 1, 24, 32, generator=generator).double() + 0.5
    fitted = layer.fit_details(layer.observe(scales, points, (24, 32), None, s))
    want = (s.square() + layer.correlated.kernel.nugget) / fitted.posterior.beta
    torch.testing.assert_close(fitted.prediction.noise_var, want)


def test_split_points_have_the_bases_of_all(generator):
    layer = make_layer(generator)
    scales, points = make_scales(generator), Points.from_maps(make_sparse(generator, [30]))
    whole = layer.observe(scales, points, (24, 32))
    first, second = whole.split([10, 20])
    assert torch.equal(torch.cat([first.phi, second.phi], 1), whole.phi)
    assert torch.equal(first.phi, layer.observe(scales, first.points, (24, 32)).phi)
    assert torch.equal(second.z, whole.z[:, 10:])


@pytest.mark.parametrize("errors", ["independent", "correlated", "amplitudes"])
def test_leave_one_out_is_what_a_fit_without_the_point_predicts(generator, errors):
    """At the same precisions; then the calibration's factors multiply the variances."""
    varied = errors == "amplitudes"
    errors = "correlated" if varied else errors
    layer = make_layer(generator, errors=errors)
    layer.error_model().calibration.set_factors(2.0, 3.0)
    scales, sparse = make_scales(generator), make_sparse(generator, [9])
    guide = torch.rand(1, 3, 24, 32, generator=generator).double()
    amplitude = torch.randn(1, 1, 24, 32, generator=generator).double().exp() if varied else None
    observed = layer.observe(scales, Points.from_maps(sparse), (24, 32), guide, amplitude)
    fitted = layer.fit_details(observed)
    post, prior, phi = fitted.posterior, layer.prior.value, fitted.observed.phi[0]
    noise = torch.eye(9).double() / post.beta
    if errors == "correlated":
        kernel = fitted.kernel
        scaled = kernel.scale(fitted.observed.x[0])
        s = amplitude[sparse > 0] if varied else torch.ones(9).double()
        noise = torch.outer(s, s) * kernel.correlation(scaled, scaled)
        noise = (noise + kernel.nugget * torch.eye(9).double()) / post.beta
    precision = torch.linalg.inv(phi @ prior.cov @ phi.mT / post.alpha + noise)
    residual = precision @ (fitted.observed.z[0] - phi @ prior.mean) / precision.diagonal()
    found = fitted.leave_one_out()
    torch.testing.assert_close(found.residual, residual, rtol=1e-5, atol=1e-7)
    noise_var = found.noise_share * found.var
    plain = noise_var / 2 + (found.var - noise_var) / 3
    torch.testing.assert_close(plain, 1 / precision.diagonal(), rtol=1e-5, atol=0)
    if errors == "independent":
        torch.testing.assert_close(noise_var, (2 / post.beta).expand(9))


def test_a_point_left_out_in_doubt_adds_variance_around_it(generator):
    """That of a mixture: at its own pixel, nearly p (1 - p) residual^2."""
    layer = make_layer(generator, errors="correlated")
    layer.error_model().calibration.set_factors(2.0, 3.0)
    layer.correlated.set_kernel(replace(layer.correlated.kernel, nugget=0.3))
    scales, sparse = make_scales(generator), make_sparse(generator, [30])
    amplitude = torch.rand(1, 1, 24, 32, generator=generator).double() + 0.5
    guide = torch.rand(1, 3, 24, 32, generator=generator).double()
    observed = layer.observe(scales, Points.from_maps(sparse), (24, 32), guide, amplitude)
    wrong = torch.zeros(30, dtype=torch.float64)
    assert layer.fit_without_wrong(observed, wrong).wrong is None
    wrong[[4, 20]] = torch.tensor([0.7, 0.99]).double()
    fitted = layer.fit_without_wrong(observed, wrong)
    assert ((fitted.observed.weight == 0).nonzero()[:, 1]).tolist() == [4, 20]
    added = fitted.prediction.model_var - fitted.without_doubt.model_var
    for name in ("mean", "noise_var"):
        assert torch.equal(getattr(fitted.prediction, name), getattr(fitted.without_doubt, name))
    v, u = (part[0, 4].long() for part in (observed.points.v, observed.points.u))
    residual = fitted.leave_one_out().residual[4]
    noise_var = fitted.predict_left_out()[2][4]
    own = fitted.kernel.nugget / fitted.posterior.beta[0]  # of the measurement itself
    want = 0.7 * 0.3 * (residual * (1 - own / noise_var)).square()
    assert added[0, 0, v, u] == pytest.approx(float(want), rel=0.02)
    assert added.argmax() == 32 * v + u
    independent = layer.fit_without_wrong(observed, wrong, errors="independent")
    assert torch.equal(independent.prediction.var, independent.without_doubt.var)


@pytest.mark.parametrize("errors", ["independent", "correlated"])
def test_huber_keeps_an_outlier_out(generator, errors):
    scales = make_scales(generator)
    sparse = torch.zeros(1, 1, 24, 32, dtype=torch.float64)
    sparse[0, 0, ::3, ::3] = 5.0
    wrong = sparse.clone()
    wrong[0, 0, 12, 12] = 50.0
    layer = make_layer(generator, errors=errors)
    pull = []
    for huber in (None, 1.345):
        one, other = (predict(layer, scales, each, huber=huber).mean for each in (wrong, sparse))
        pull.append((one - other).abs().mean())
    assert pull[1] < (0.05 if errors == "independent" else 0.2) * pull[0]


def test_huber_keeps_an_outlier_from_its_surroundings():
    torch.manual_seed(0)
    sparse = torch.zeros(1, 1, 20, 30)
    sparse[0, 0, ::4, ::4] = 2.0
    layer = BasisFit(1, errors="correlated").eval()
    bases = torch.randn(1, 1, 20, 30)
    before = predict(layer, bases, sparse, huber=1.5).mean
    sparse[0, 0, 8, 12] = 20.0
    robust = (predict(layer, bases, sparse, huber=1.5).mean - before).abs()
    plain = (predict(layer, bases, sparse).mean - before).abs()
    assert robust[0, 0, 6:11, 10:15].mean() < 0.2 * plain[0, 0, 6:11, 10:15].mean()


@pytest.mark.parametrize("errors", ERRORS)
def test_huber_on_and_off_again_is_the_first_result(errors):
    bases, sparse = small_scene()
    sparse[0, 0, 3, 3] = 30.0
    layer = BasisFit(3, errors=errors).eval()
    first = predict(layer, bases, sparse)
    robust = predict(layer, bases, sparse, huber=1.345)
    again = predict(layer, bases, sparse)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first.mean, robust.mean)


def test_the_distribution_is_that_of_the_errors_assumed():
    bases, sparse = small_scene()
    layer = BasisFit(3).eval()
    observed = observe(layer, bases, sparse)
    assert layer.fit_details(observed).distribution == latent.LAPLACE
    layer.error_model("independent").calibration.set_rows([CalibrationRow(0, 1, 1.5, 0.5)])
    layer.error_model("correlated").calibration.set_rows([CalibrationRow(0, 1, 4.0, 0.7)])
    for errors, want in (("independent", (1.5, 0.5)), ("correlated", (4.0, 0.7))):
        fitted = layer.fit_details(observed, errors=errors)
        found = fitted.distribution
        assert (found.dof, found.width) == pytest.approx(want)
        _, model_var, noise_var = fitted.prediction
        torch.testing.assert_close(found.noise_share, noise_var / (noise_var + model_var))
    assert layer.fit_details(observed, errors="paper").distribution == latent.LAPLACE


@pytest.mark.parametrize("errors", ["independent", "correlated"])
def test_each_image_is_calibrated_for_its_number_of_points(errors):
    torch.manual_seed(0)
    bases, sparse = torch.randn(3, 3, 8, 9), torch.zeros(3, 1, 8, 9)
    sparse[1, 0, 4, 4] = 2.0
    sparse[2, 0, ::2, ::3] = 2.0 + torch.rand(4, 3)
    layer = BasisFit(3, errors=errors).eval()
    before = layer(bases, sparse)
    rows = [(12, 4, 2, 0.5), (0, 1, 8, 0.9), (1, 3, 5, 0.7)]
    layer.error_model().calibration.set_rows([CalibrationRow(*row) for row in rows])
    fitted = layer.fit_details(observe(layer, bases, sparse))
    after, distribution = fitted.prediction, fitted.distribution
    factor = torch.tensor([1.0, 3, 4]).view(3, 1, 1, 1)
    torch.testing.assert_close(after.mean, before.mean)
    torch.testing.assert_close(after.noise_var, factor * before.noise_var)
    torch.testing.assert_close(after.model_var, factor * before.model_var)
    torch.testing.assert_close(distribution.dof.flatten(), torch.tensor([8.0, 5, 2]))
    torch.testing.assert_close(distribution.width.flatten(), torch.tensor([0.9, 0.7, 0.5]))
    for i in range(3):
        alone = layer.fit_details(observe(layer, bases[i : i + 1], sparse[i : i + 1]))
        half = alone.distribution.half_width(alone.prediction.var, 0.9)
        torch.testing.assert_close(distribution.half_width(after.var, 0.9)[i], half[0])


@pytest.mark.parametrize("errors", ["independent", "correlated"])
def test_padding_changes_nothing(generator, errors):
    """Points of weight 0, at a place that has a point and with any depth."""
    layer = make_layer(generator, errors=errors)
    scales, sparse = make_scales(generator), make_sparse(generator, [20])
    points = Points.from_maps(sparse)
    filled = Points(
        *(torch.cat([part, part[:, :5]], 1) for part in (points.u, points.v)),
        torch.cat([points.z, torch.full((1, 5), 7.0).double()], 1),
        torch.cat([points.weight, torch.zeros(1, 5).double()], 1),
    )
    plain, padded = (
        layer.fit_details(layer.observe(scales, p, (24, 32))) for p in (points, filled)
    )
    for have, want in zip(padded.prediction, plain.prediction, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-12)
    assert padded.count.tolist() == plain.count.tolist() == [20]


def test_noise_is_what_nothing_explains_at_a_point(generator):
    bases, sparse = small_scene()
    layer = BasisFit(3).eval()
    set_prior(layer)
    for errors in ("independent", "correlated"):
        fitted = layer.fit_details(observe(layer, bases, sparse), errors=errors)
        nugget = fitted.kernel.nugget if errors == "correlated" else 1.0
        torch.testing.assert_close(fitted.noise_var, nugget / fitted.posterior.beta)
        usual = layer.error_model(errors).usual_noise
        assert usual == pytest.approx(nugget * layer.error_model(errors).noise.usual_variance)


@pytest.mark.parametrize("errors", ["independent", "correlated"])
def test_noisy_points_are_calibrated_as_fewer_points(errors):
    """A point tells of the size of errors by the share that they have in its variance."""
    bases, sparse = small_scene()
    layer = BasisFit(3, errors=errors).eval()
    model = layer.error_model(errors)
    model.calibration.set_rows([CalibrationRow(n, 1.0 + n, 5.0, 1.0) for n in (0, 9)])
    seen = observe(layer, bases, sparse)
    nugget = float(layer.correlated.nugget) if errors == "correlated" else 1.0
    correlated_var = 1.0 if errors == "correlated" else 0.0
    for sigma in (0.0, 0.3, 2.0):  # relative to the noise of weight 1
        noise_var = nugget * (1 + sigma**2)
        weight = torch.full_like(seen.weight, nugget / noise_var)
        weight[:, 4:] = 0
        fitted = layer.fit_details(seen.reweighted(weight), errors=errors)
        worth = 4 * (correlated_var + nugget) / (correlated_var + noise_var)
        assert fitted.calibrated.noise_factor.item() == pytest.approx(
            model.calibration.at(torch.tensor([worth])).noise_factor.item(), rel=1e-5
        )
        assert fitted.count.item() == 4


@pytest.mark.parametrize("errors", ERRORS)
def test_what_was_fitted_does_not_change_with_the_layer(errors):
    bases, sparse = small_scene()
    sparse[0, 0, 3, 3] = 9.0
    layer, untouched = (BasisFit(3, errors=errors).eval() for _ in range(2))
    fitted, want = (each.fit_details(observe(each, bases, sparse)) for each in (layer, untouched))
    layer.set_prior(fit.Prior(torch.full((4,), 5.0), 9 * torch.eye(4)), fit.Hyperprior(
        fit.Gamma(2.0, 9.0), fit.Gamma(3.0, 7.0)))  # fmt: skip
    layer.correlated.set_kernel(fit.Kernel(0.9, 0.9, 0.9, 1.5))
    for model in layer.models.values():
        model.calibration.set_factors(4.0, 5.0)
        model.calibration.set_rows([CalibrationRow(0, 3.0, 2.0, 0.3)])
        model.noise.set(fit.Gamma(5.0, 5.0))
    for have, expected in zip(fitted.prediction, want.prediction, strict=True):
        assert torch.equal(have, expected)
    assert fitted.distribution == want.distribution
    assert torch.equal(fitted.noise_var, want.noise_var)
    assert all(map(torch.equal, fitted.leave_one_out(), want.leave_one_out()))
    assert torch.equal(fitted.prior.mean, want.prior.mean)
    assert torch.equal(fitted.prior.cov, want.prior.cov)
    changed = predict(layer, bases, sparse)
    assert not torch.equal(changed.mean, fitted.prediction.mean)
