# SPDX-License-Identifier: Apache-2.0
"""Whole models: files, also of earlier versions, and what the options of a prediction do."""

import inspect
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import deepbasis
from deepbasis import fit
from deepbasis.data.tensors import load_tensors, save_tensors
from deepbasis.layer import CalibrationRow
from deepbasis.model import FORMAT, Card, Completer
from deepbasis.nets import Architecture
from deepbasis.points import Points
from models import make_model

ERRORS = ("independent", "correlated", "paper")


@pytest.fixture
def frame():
    torch.manual_seed(0)
    image = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    depth = 1 + torch.rand(2, 1, 32, 48)
    return image, torch.where(torch.rand_like(depth) < 0.1, depth, 0)


def predict(model, frame, **options):
    image, sparse = frame
    with torch.no_grad():
        observed = model.network.observe(image, Points.from_maps(sparse))
        return model.network.fit.fit_details(observed, **options)


def calibrated_model():
    """Every number that is learned after the network, unlike its default and all others."""
    model = make_model()
    layer = model.network.fit
    draw = torch.Generator().manual_seed(1)
    root = torch.eye(63) + 0.05 * torch.randn(63, 63, generator=draw)
    mean = torch.randn(63, generator=draw)
    prior, noise = fit.Prior(mean, root @ root.mT), fit.Gamma(2.0, 0.05)
    layer.set_prior(prior, fit.Hyperprior(fit.Gamma(3.0, 2.5), noise))
    layer.correlated.noise.set(fit.Gamma(4.0, 0.3))
    layer.correlated.set_kernel(fit.Kernel(0.21, 0.32, 0.043, 1.5))
    layer.error_model("independent").calibration.set_factors(1.1, 1.2)
    layer.correlated.calibration.set_factors(1.3, 1.4)
    layer.error_model("paper").calibration.set_factors(1.0, 6.0)
    for factor, errors in ((1.0, "independent"), (1.5, "correlated")):
        rows = [(0, 0.9, 4, 0.6), (20, 1.7, 3, 0.5), (200, 0.8, 2, 0.4)]
        rows = [CalibrationRow(row[0], factor * row[1], factor * row[2], row[3]) for row in rows]
        layer.error_model(errors).calibration.set_rows(rows)
    return model


def save_as_format_2(model, path):
    """What version 0.1 wrote: the fit in packed tensors."""
    layer, state = model.network.fit, model.network.bases.state_dict()
    tensors = {f"members.0.bases.{name}": value for name, value in state.items()}

    def pack(*values):
        return torch.stack([torch.as_tensor(value) for value in values])

    def tails(errors):
        table = layer.error_model(errors).calibration
        return torch.stack([table.points, table.factor, table.dof, table.width], 1)

    own, near = layer.error_model("independent"), layer.correlated
    alpha = layer.prior.alpha
    nees = layer.error_model("paper").calibration.model_factor
    packed = {
        "prior_mean": layer.prior.mean, "prior_cov": layer.prior.cov,
        "hyperprior": pack(alpha.shape, alpha.rate, own.noise.shape, own.noise.rate).view(2, 2),
        "calibration": pack(own.calibration.noise_factor, own.calibration.model_factor, nees),
        "local": pack(
            near.length, near.colour, near.nugget, near.smoothness, near.noise.shape,
            near.noise.rate, near.calibration.noise_factor, near.calibration.model_factor,
        ),
        "tails": torch.stack([tails("independent"), tails("correlated")]),
    }  # fmt: skip
    tensors |= {f"members.0.last.{name}": value for name, value in packed.items()}
    architecture = {
        "method": "bdbf", "encoder": "mobilenet_v2", "depth_input": False,
        "normalisation": "imagenet", "errors": "local", "width": 32,
    }  # fmt: skip
    header = {"training": {"seed": 3}, "split": {}, "metrics": {}}
    save_tensors(path, tensors, header | {"format": 2, "copies": 1, "architecture": architecture})


def assert_same(one, other, frame):
    """All error models, at the points of the frame and without any."""
    image, sparse = frame
    for points in (sparse, 0 * sparse):
        for errors in ERRORS:
            have, want = (predict(each, (image, points), errors=errors) for each in (one, other))
            assert all(map(torch.equal, have.prediction, want.prediction)), errors
            half, wanted = (
                each.distribution.half_width(each.prediction.var, 0.9) for each in (have, want)
            )
            assert torch.equal(half, wanted), errors


def test_saved_and_loaded_it_predicts_the_same_bits(frame, tmp_path):
    model = calibrated_model()
    model.card = Card({"seed": 3}, {"train": "abc"}, {"losses": [1.0]})
    model.save(str(tmp_path / "model.safetensors"))
    again = deepbasis.load(tmp_path / "model.safetensors")
    assert again.card == model.card
    assert again.architecture == model.architecture
    assert not again.training
    assert_same(again, model, frame)
    assert all(map(torch.equal, again(*frame), model(*frame)))


def test_a_file_of_format_2_predicts_the_same_bits(frame, tmp_path):
    model, path = calibrated_model(), tmp_path / "old.safetensors"
    save_as_format_2(model, path)
    migrated = deepbasis.load(path)
    assert migrated.architecture == model.architecture == Architecture()
    assert migrated.card.training == {"seed": 3}
    assert_same(migrated, model, frame)
    migrated.save(tmp_path / "new.safetensors")
    header = load_tensors(tmp_path / "new.safetensors")[1]
    assert header["format"] == FORMAT == 3
    again = deepbasis.load(tmp_path / "new.safetensors")
    assert_same(again, model, frame)
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize(("name", "value"), [("method", "snap"), ("depth_input", True)])
def test_the_papers_models_of_format_2_are_refused(name, value, tmp_path):
    path = tmp_path / "old.safetensors"
    save_as_format_2(make_model(), path)
    tensors, header = load_tensors(path)
    header["architecture"][name] = value
    save_tensors(path, tensors, header)
    with pytest.raises(ValueError, match="is a model of the paper's experiments"):
        deepbasis.load(path)


def test_half_precision_halves_the_file_and_leaves_the_fit_exact(tmp_path):
    model = calibrated_model()
    sizes = {}
    for dtype in (torch.float32, torch.float16):
        path = tmp_path / f"{dtype}.safetensors"
        model.save(path, dtype)
        sizes[dtype] = path.stat().st_size
    assert sizes[torch.float16] < 0.52 * sizes[torch.float32]
    loaded = deepbasis.load(path)
    assert all(p.dtype == torch.float32 for p in loaded.parameters())
    for name, value in model.network.fit.state_dict().items():
        assert torch.equal(loaded.network.fit.state_dict()[name], value), name
    narrow, exact = (each.network.bases.state_dict() for each in (loaded, model))
    assert any(not torch.equal(value, narrow[name]) for name, value in exact.items())


def test_correlated_errors_bring_the_prediction_to_the_points(frame):
    _, sparse = frame
    model = Completer(Architecture())
    known = sparse > 0
    errors = {}
    for assumed in ("independent", "correlated"):
        mean, model_var, noise_var = predict(model, frame, errors=assumed).prediction
        errors[assumed] = (mean[known] - sparse[known].log()).abs().mean()
        assert (model_var + noise_var > 0).all()
        assert (model_var + noise_var)[known].mean() < (model_var + noise_var).mean() * 1.01
    assert errors["correlated"] < 0.5 * errors["independent"]


def test_the_papers_variance_is_the_model_part_times_its_factor(frame):
    model = Completer(Architecture())
    model.network.fit.error_model("independent").calibration.set_factors(2.0, 3.0)
    model.network.fit.error_model("paper").calibration.set_factors(1.0, 6.0)
    ours, papers = (
        predict(model, frame, errors=errors).prediction for errors in ("independent", "paper")
    )
    assert torch.equal(papers.mean, ours.mean)
    torch.testing.assert_close(papers.model_var, 2 * ours.model_var)
    assert not papers.noise_var.any()


def test_correlated_errors_work_without_points():
    frame = torch.zeros(1, 3, 32, 48, dtype=torch.uint8), torch.zeros(1, 1, 32, 48)
    model = Completer(Architecture())
    plain, near = (
        predict(model, frame, errors=errors).prediction for errors in ("independent", "correlated")
    )
    torch.testing.assert_close(near.mean, plain.mean)
    torch.testing.assert_close(near.model_var, plain.model_var, rtol=1e-4, atol=1e-6)


def test_a_model_uses_the_errors_of_its_architecture(frame):
    for errors in ERRORS:
        model = make_model(errors=errors)
        assert all(map(torch.equal, model(*frame), predict(model, frame, errors=errors).prediction))


def test_predicting_changes_nothing_in_the_model(frame):
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    image = frame[0][0].permute(1, 2, 0).numpy()
    for options in ({}, {"errors": "paper"}, {"huber": 1.345}, {"max_depth": 1.5}):
        model.complete(image, frame[1][0, 0].numpy(), **options)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not model.training
    assert np.isfinite(model.complete(image).depth).all()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:1000]), "cannot be read as a safetensors file"),
        (lambda p: p.write_text("hello"), "cannot be read as a safetensors file"),
        (lambda p: save_file({"x": torch.zeros(1)}, p), "not a model of this version .* is None"),
        (
            lambda p: save_file(
                {"x": torch.zeros(1)}, p, {"deepbasis": json.dumps({"format": 99})}
            ),
            "its format is 99, and this version reads 3",
        ),
        (
            lambda p: save_tensors(p, {"x": torch.zeros(1)}, load_tensors(p)[1]),
            "is a model of another version of deepbasis",
        ),
        (lambda p: p.unlink(), "there is no file"),
    ],
)
def test_files_that_are_not_models_are_refused(spoil, message, tmp_path):
    path = tmp_path / "model.safetensors"
    Completer(Architecture()).save(path)
    spoil(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        deepbasis.load(path)


def test_only_names_files_and_networks_are_loaded():
    with pytest.raises(ValueError, match="name of a model, a file or a network, got NoneType"):
        inspect.unwrap(deepbasis.load)(None)


def test_loading_never_unpickles(tmp_path):
    torch.save({"anything": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        load_tensors(tmp_path / "model.safetensors")
