# SPDX-License-Identifier: Apache-2.0
"""Whole models: files, ensembles, and one form of answer."""

import json

import pytest
import torch
from safetensors.torch import save_file

import deepbasis
from deepbasis.layer import BasisFit
from deepbasis.methods import METHODS
from deepbasis.model import Architecture, Card, Completer, load_tensors, mix
from deepbasis.prediction import Prediction


@pytest.fixture
def frame():
    torch.manual_seed(0)
    image = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    depth = 1 + torch.rand(2, 1, 32, 48)
    return image, torch.where(torch.rand_like(depth) < 0.1, depth, 0)


@pytest.mark.parametrize("depth_input", [False, True])
@pytest.mark.parametrize("method", ["bdbf", "log", "snap+log"])
def test_saved_and_loaded_it_predicts_the_same_bits(method, depth_input, frame, tmp_path):
    model = Completer(Architecture(method, depth_input=depth_input), METHODS[method].copies)
    model.card = Card({"seed": 3}, {"train": "abc"}, {"losses": [1.0]})
    model.save(tmp_path / "model.safetensors")
    again = deepbasis.load(tmp_path / "model.safetensors")
    assert again.card == model.card
    assert not again.training
    for one, other in zip(model(*frame), again(*frame), strict=True):
        assert torch.equal(one, other)


def test_half_precision_halves_the_file_and_leaves_the_fit_exact(frame, tmp_path):
    model = Completer(Architecture())
    layer = model.networks[0].last
    assert isinstance(layer, BasisFit)
    layer.prior_mean.copy_(torch.rand(63))
    sizes = {}
    for dtype in (torch.float32, torch.float16):
        path = tmp_path / f"{dtype}.safetensors"
        model.save(path, dtype)
        sizes[dtype] = path.stat().st_size
    assert sizes[torch.float16] < 0.52 * sizes[torch.float32]
    loaded = deepbasis.load(path).networks[0].last
    assert torch.equal(loaded.prior_mean, layer.prior_mean)
    assert all(p.dtype == torch.float32 for p in deepbasis.load(path).parameters())


def test_a_mixture_has_the_moments_of_its_parts():
    """Against draws from the parts themselves."""
    torch.manual_seed(0)
    parts = [
        Prediction(torch.randn(1, 1, 1, 1), torch.rand(1, 1, 1, 1), torch.rand(1, 1, 1, 1))
        for _ in range(5)
    ]
    draws = torch.cat([
        p.mean.flatten() + (p.model_var + p.noise_var).sqrt().flatten() * torch.randn(200_000)
        for p in parts
    ])  # fmt: skip
    mean, model_var, noise_var = mix(parts)
    error = 4 * draws.std() / len(draws) ** 0.5
    assert abs(float(mean) - float(draws.mean())) < error
    assert float(model_var + noise_var) == pytest.approx(float(draws.var()), rel=0.01)
    assert mix(parts[:1]) is parts[0]


def test_networks_that_agree_are_not_certain():
    same = Prediction(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
    assert (mix([same, same]).model_var > 0).all()


def test_dropout_differs_between_passes_and_not_between_calls(frame):
    model = Completer(Architecture("dropout"))
    first, second = model(*frame), model(*frame)
    assert torch.equal(first.mean, second.mean)
    assert first.model_var.mean() > 1e-6
    before = torch.random.get_rng_state()
    model(*frame)
    assert torch.equal(before, torch.random.get_rng_state())


def test_local_errors_bring_the_prediction_to_the_points(frame):
    image, sparse = frame
    model = Completer(Architecture())
    known = sparse > 0
    errors = {}
    for assumed in ("independent", "local"):
        mean, model_var, noise_var = model.assume(assumed)(image, sparse)
        errors[assumed] = (mean[known] - sparse[known].log()).abs().mean()
        assert (model_var + noise_var > 0).all()
        assert (model_var + noise_var)[known].mean() < (model_var + noise_var).mean() * 1.01
    assert errors["local"] < 0.5 * errors["independent"]


def test_the_papers_variance_is_the_model_part_times_its_factor(frame):
    model = Completer(Architecture())
    layer = model.networks[0].last
    assert isinstance(layer, BasisFit)
    layer.set_calibration(noise=2, model=3, nees=6)
    ours, papers = model(*frame), model.assume(variance="paper")(*frame)
    assert torch.equal(papers.mean, ours.mean)
    torch.testing.assert_close(papers.model_var, 2 * ours.model_var)
    assert not papers.noise_var.any()
    assert model.assume("independent").networks[0].last.variance == "paper"
    with pytest.raises(ValueError, match="variance is for independent errors; ask for both"):
        model.assume("local", "paper")


def test_local_errors_work_without_points():
    image = torch.zeros(1, 3, 32, 48, dtype=torch.uint8)
    model = Completer(Architecture())
    plain = model(image, torch.zeros(1, 1, 32, 48))
    local = model.assume("local")(image, torch.zeros(1, 1, 32, 48))
    torch.testing.assert_close(local.mean, plain.mean)
    torch.testing.assert_close(local.model_var, plain.model_var, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:1000]), "is not a safetensors file, or was cut"),
        (lambda p: p.write_text("hello"), "is not a safetensors file, or was cut short"),
        (lambda p: save_file({"x": torch.zeros(1)}, p), "no model of this version .* is None"),
        (
            lambda p: save_file(
                {"x": torch.zeros(1)}, p, {"deepbasis": json.dumps({"format": 99})}
            ),
            "its format is 99, and this version reads 2",
        ),
        (lambda p: p.unlink(), "there is no file"),
    ],
)
def test_files_that_are_no_models_are_refused(spoil, message, tmp_path):
    path = tmp_path / "model.safetensors"
    Completer(Architecture()).save(path)
    spoil(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        deepbasis.load(path)


def test_an_unknown_method_is_told_the_known_ones():
    with pytest.raises(ValueError, match="`method` is 'bdfb'; choose one of bdbf"):
        Architecture("bdfb")


def test_loading_never_unpickles(tmp_path):
    torch.save({"anything": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_tensors(tmp_path / "model.safetensors")
