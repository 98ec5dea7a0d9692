# SPDX-License-Identifier: Apache-2.0
"""The paper's recipe, each part against its equations written out with explicit inverses."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from deepbasis import fit, latent
from deepbasis.layer import BasisFit
from deepbasis.points import Points
from deepbasis.train import loop
from deepbasis.train.record import Record
from deepbasis_paper.data.training import PaperTrainingSet
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import RgbdNetwork, RgbNetwork
from deepbasis_paper.networks.fits import LastEpoch
from deepbasis_paper.train.job import PaperJob
from deepbasis_paper.train.run import train

SIZE = (12, 16)


def design(bases: list[torch.Tensor], image: int, size: tuple[int, int]) -> np.ndarray:
    """Bases of an image at full size, one row for each pixel, the constant first."""
    full = [F.interpolate(b[image : image + 1].double(), size, mode="bilinear") for b in bases]
    columns = torch.cat(full, 1)[0].flatten(1).T.numpy()
    return np.hstack([np.ones((len(columns), 1)), columns])


def maximum_likelihood(phi: np.ndarray, depth: np.ndarray, sparse: np.ndarray) -> tuple[Any, float]:
    """Weights of one image, and the mean over its pixels of squared error over variance."""
    at, z = phi[sparse > 0], np.log(sparse[sparse > 0])
    weights = np.linalg.lstsq(at, z, rcond=None)[0]
    beta = len(z) / np.square(z - at @ weights).sum()
    cov = np.linalg.inv(beta * at.T @ at)
    known = depth > 0
    errors = np.log(depth[known]) - phi[known] @ weights
    variances = np.array([row @ cov @ row for row in phi[known]])
    return weights, float(np.mean(errors**2 / variances))


@pytest.fixture
def fits(monkeypatch):
    """Fits of all training steps, computed plainly: (weights, NEES) of every image of each step."""
    steps: list[list[tuple[Any, float]]] = []
    seen: list[list[torch.Tensor]] = []
    real_network, real_after = PaperJob.new_network, RgbNetwork.after_fit
    real_item = PaperTrainingSet.__getitem__

    def get_item(self, index):
        item = real_item(self, index)
        maps = {name: getattr(item, name).double() for name in ("depth", "sparse", "scaffold")}
        return item._replace(**maps)

    def new_network(job):
        network = real_network(job)
        network.double()  # bases of a new network are nearly dependent
        network.bases.register_forward_hook(
            lambda _, __, out: seen.append([basis.detach().clone() for basis in out.bases])
        )
        return network

    def after_fit(self, item, observed, post):
        if self.training:
            maps = [part.flatten(1).double().numpy() for part in (item.depth, item.sparse)]
            rows = [design(seen[-1], i, item.depth.shape[2:]) for i in range(len(item.depth))]
            steps.append([maximum_likelihood(*row) for row in zip(rows, *maps, strict=True)])
        real_after(self, item, observed, post)

    monkeypatch.setattr(Record, "draw", lambda *_: None)
    monkeypatch.setattr(PaperTrainingSet, "__getitem__", get_item)
    monkeypatch.setattr(PaperJob, "new_network", new_network)
    monkeypatch.setattr(RgbNetwork, "after_fit", after_fit)
    return steps


@pytest.mark.slow
def test_prior_and_factor_are_those_of_the_last_epoch_in_training_mode(fits, small, tmp_path):
    """Four frames in two steps an epoch; of two epochs the second counts."""
    model = Ensemble.load(train(small(tmp_path, input="rgbd", input_points="400", epochs=2)))
    assert len(fits) == 4
    last = [one for step in fits[2:] for one in step]
    weights, nees = np.array([w for w, _ in last]), np.mean([n for _, n in last])
    network = model.network
    assert isinstance(network, RgbdNetwork)
    prior, factor = network.last_epoch.prior, model.card.metrics["nees_factor"]
    np.testing.assert_allclose(prior.mean, weights.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prior.cov, np.cov(weights.T), rtol=1e-3, atol=1e-4)
    assert factor == pytest.approx(nees, rel=1e-4)
    # The model predicts with these, and with nothing else.
    assert model.architecture.errors == "paper"
    torch.testing.assert_close(network.fit.prior.mean, prior.mean.float())
    torch.testing.assert_close(network.fit.prior.cov, prior.cov.float())
    paper = network.fit.error_model("paper")
    assert network.fit.prior.alpha.value == paper.noise.value == fit.Gamma()
    assert float(paper.calibration.model_factor) == pytest.approx(factor)
    assert network.fit.em == {"steps": 8, "tol": 0.01}


def expectation_maximisation(phi, z, mean, cov):
    """The paper's inference: posterior mean and covariance of the weights, and the EM steps."""
    n, m = phi.shape
    if n == 0:
        return mean, cov, 0
    inverse = np.linalg.inv(cov)
    alpha, beta, steps = 1.0, np.sqrt(n), 0
    for _ in range(8):
        steps += 1
        sigma = np.linalg.inv(alpha * inverse + beta * phi.T @ phi)
        mu = sigma @ (alpha * inverse @ mean + beta * phi.T @ z)
        off = mu - mean
        alpha = m / (off @ inverse @ off + np.trace(inverse @ sigma))
        before, beta = beta, n / (np.square(z - phi @ mu).sum() + np.trace(phi.T @ phi @ sigma))
        if abs(beta - before) < 0.01 * before:
            break
    sigma = np.linalg.inv(alpha * inverse + beta * phi.T @ phi)
    return sigma @ (alpha * inverse @ mean + beta * phi.T @ z), sigma, steps


@pytest.mark.parametrize("count", [0, 3, 15, 40, 150])
def test_inference_is_that_of_the_papers_equations(count, generator):
    """With 21 bases, so also with fewer points than bases; the variance has no noise term."""
    layer = BasisFit(20, errors="paper").double().eval()
    root = torch.randn(21, 21, generator=generator, dtype=torch.float64) / 5
    cov = root @ root.mT + 0.05 * torch.eye(21, dtype=torch.float64)
    mean = torch.randn(21, generator=generator, dtype=torch.float64)
    layer.set_prior(fit.Prior(mean, cov))
    layer.error_model("paper").calibration.set_factors(1.0, 3.7)
    bases = torch.randn(1, 20, *SIZE, generator=generator, dtype=torch.float64)
    phi = design([bases], 0, SIZE)
    z = phi @ mean.numpy() + 0.3 * torch.randn(192, generator=generator).double().numpy()
    at = torch.randperm(192, generator=generator)[:count].numpy()
    sparse = np.zeros(192)
    sparse[at] = np.exp(z[at])
    points = Points.from_maps(torch.from_numpy(sparse).view(1, 1, *SIZE))
    found = layer.fit_details(layer.observe(bases, points, SIZE))
    order = np.sort(at)
    mu, sigma, steps = expectation_maximisation(phi[order], z[order], mean.numpy(), cov.numpy())
    want = np.einsum("pm,mk,pk->p", phi, sigma, phi)
    np.testing.assert_allclose(found.prediction.mean.flatten(), phi @ mu, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.prediction.var.flatten(), 3.7 * want, rtol=1e-7)
    assert not found.prediction.noise_var.any()
    assert found.distribution is latent.LAPLACE
    if count:
        assert int(found.posterior.steps) == steps


@pytest.mark.slow
def test_a_training_resumed_in_its_last_epoch_has_the_same_prior_to_the_bit(
    small, tmp_path, monkeypatch
):
    train(small(tmp_path / "whole"))
    real, calls = loop.share_with_all, []

    def stop(job, loss, heard):
        calls.append(heard)
        return real(job, loss, 15 if len(calls) == 1 else 0)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "share_with_all", stop)
        with pytest.raises(loop.Stopped):
            train(small(tmp_path / "cut"))
    train(small(tmp_path / "cut", resume=True))
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "cut"))
    assert float(one["members.0.last_epoch.frames"]) == 4
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_too_few_frames_for_a_prior_are_one_sentence():
    record = LastEpoch(3)
    record.add(torch.zeros(1, 3), torch.ones(1))
    with pytest.raises(ValueError, match="at least 2 images, but the last epoch has fitted 1"):
        _ = record.prior
