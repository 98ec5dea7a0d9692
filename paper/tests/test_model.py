# SPDX-License-Identifier: Apache-2.0
"""Models of one network or several: files, mixtures, and the interface of the library's models."""

import json
import resource

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import deepbasis
from deepbasis.data.tensors import load_tensors, save_tensors
from deepbasis.layer import Prediction
from deepbasis.model import Card, Completer
from deepbasis_paper.methods import METHODS
from deepbasis_paper.model import Ensemble, load, mix
from deepbasis_paper.networks import PaperArchitecture
from models import set_prior


@pytest.fixture
def frame():
    torch.manual_seed(0)
    image = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    depth = 1 + torch.rand(2, 1, 32, 48)
    return image, torch.where(torch.rand_like(depth) < 0.1, depth, 0)


@pytest.mark.parametrize("depth_input", ["rgb", "rgbd"])
@pytest.mark.parametrize("method", ["bdbf", "log", "snap+log"])
def test_saved_and_loaded_it_predicts_the_same_bits(method, depth_input, frame, tmp_path):
    architecture = PaperArchitecture(method=method, input=depth_input)
    model = Ensemble(architecture, min(2, METHODS[method].copies))
    model.card = Card({"seed": 3}, {"train": "abc"}, {"losses": [1.0]})
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path)
    assert again.card == model.card
    assert again.architecture == architecture
    assert not again.training
    for one, other in zip(model(*frame), again(*frame), strict=True):
        assert torch.equal(one, other)


def test_models_of_the_library_are_loaded_too_and_those_of_the_paper_refused_there(tmp_path):
    Completer(deepbasis.nets.Architecture()).save(tmp_path / "library.safetensors")
    assert isinstance(load(tmp_path / "library.safetensors"), Completer)
    with pytest.raises(ValueError, match="is not a model of this version of deepbasis-paper"):
        Ensemble.load(tmp_path / "library.safetensors")
    Ensemble(PaperArchitecture(method="ncnn")).save(tmp_path / "paper.safetensors")
    with pytest.raises(ValueError, match=r"not a model of this version of deepbasis: .*'paper-1'"):
        deepbasis.load(tmp_path / "paper.safetensors")
    with pytest.raises(ValueError, match="there is no model 'indor'; did you mean"):
        load("indor")


def test_an_rgbd_network_of_an_earlier_version_is_refused_in_one_sentence(tmp_path):
    """Its depth block was added to the image's stage, and its scaffold joined the last step."""
    path = tmp_path / "old.safetensors"
    Ensemble(PaperArchitecture(method="log", input="rgbd")).save(path)
    tensors, header = load_tensors(path)
    stem = "members.0.bases.depth_stem."
    del tensors[f"{stem}merge.weight"]
    tensors[f"{stem}conv.weight"] = tensors[f"{stem}conv.weight"][:16].clone()
    save_tensors(path, tensors, header)
    with pytest.raises(ValueError, match="is a model of another version") as caught:
        load(path)
    assert "train it again" in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_an_ensemble_is_the_mixture_of_its_members(frame):
    torch.manual_seed(0)
    model = Ensemble(PaperArchitecture(method="snap+log", input="rgbd"), 3)
    alone = Ensemble(PaperArchitecture(method="snap+log", input="rgbd"))
    parts = []
    for member in model.members:
        alone.network.load_state_dict(member.state_dict())
        parts.append(alone(*frame))
    for one, other in zip(model(*frame), mix(parts), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_differs_between_passes_and_not_between_calls(frame):
    model = Ensemble(PaperArchitecture(method="dropout"))
    first, second = model(*frame), model(*frame)
    assert torch.equal(first.mean, second.mean)
    assert first.model_var.mean() > 1e-6
    before = torch.random.get_rng_state()
    model(*frame)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("method", "depth_input"), [("bdbf", "rgbd"), ("snap", "rgbd"), ("dropout+log", "rgb")]
)
def test_complete_is_the_prediction_of_one_image_whatever_the_method(method, depth_input, frame):
    copies = min(2, METHODS[method].copies)
    model = Ensemble(PaperArchitecture(method=method, input=depth_input), copies)
    if method == "bdbf":
        set_prior(model.network.fit)
    image, sparse = (part[:1] for part in frame)
    out = model.complete(image[0].permute(1, 2, 0).numpy(), sparse[0, 0].numpy())
    want = model(image, sparse)
    np.testing.assert_allclose(out.latent_mean, want.mean[0, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out.latent_var, want.var[0, 0], rtol=1e-3, atol=1e-7)
    assert len(out.points) == int((sparse > 0).sum())
    assert (out.posterior is None) == (method != "bdbf")
    assert model.complete(image[0].permute(1, 2, 0).numpy()).depth.shape == (32, 48)


def test_a_fit_that_sees_the_points_has_all_error_models(frame):
    """Correlated errors bring the prediction to the points; the paper's variance has no noise."""
    image, sparse = frame
    model = Ensemble(PaperArchitecture(input="rgbd"))
    set_prior(model.network.fit)
    known, errors = sparse > 0, {}
    for name in ("independent", "correlated", "paper"):
        found = model(image, sparse, errors=name)
        errors[name] = (found.mean[known] - sparse[known].log()).abs().mean()
        assert (found.var > 0).all()
        assert found.noise_var.any() == (name != "paper")
    assert errors["correlated"] < 0.5 * errors["independent"]
    assert errors["paper"] == errors["independent"]


def test_sigma_weighs_points(frame):
    image = frame[0][0].permute(1, 2, 0).numpy()
    model = Ensemble(PaperArchitecture(input="rgbd", errors="independent"))
    set_prior(model.network.fit)
    rows = [[10, 10, 2.0, 0.01], [30, 20, 4.0, 0.01], [20, 5, 3.0, 0.01]]
    trusted = model.complete(image, rows)
    rows[1][3] = 10.0
    doubted = model.complete(image, rows)
    assert abs(doubted.depth[20, 30] - 4) > abs(trusted.depth[20, 30] - 4)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:1000]), "cannot be read as a safetensors file"),
        (lambda p: save_file({"x": torch.zeros(1)}, p), "its format is None, and this version"),
        (
            lambda p: save_file(
                {"x": torch.zeros(1)}, p, {"deepbasis": json.dumps({"format": "paper-9"})}
            ),
            "its format is 'paper-9', and this version reads 'paper-1'",
        ),
        (lambda p: p.unlink(), "there is no file"),
    ],
)
def test_files_that_are_not_models_are_refused(spoil, message, tmp_path):
    path = tmp_path / "model.safetensors"
    Ensemble(PaperArchitecture(method="ncnn")).save(path)
    spoil(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Ensemble.load(path)


def spoil_header(path, **changes):
    tensors, header = load_tensors(path)
    header["architecture"] |= changes.pop("architecture", {})
    save_tensors(path, tensors, {k: v for k, v in (header | changes).items() if v is not None})


@pytest.mark.parametrize(
    "changes",
    [
        {"copies": 100_000}, {"copies": "many"}, {"copies": 0}, {"copies": None},
        {"architecture": {"width": 100_000}}, {"architecture": {"width": 10**15}},
        {"architecture": {"width": "wide"}}, {"architecture": {"colour": 1}},
        {"training": None}, {"metrics": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_header_that_claims_much_or_nonsense_is_refused_before_memory_is_taken(tmp_path, changes):
    path = tmp_path / "model.safetensors"
    Ensemble(PaperArchitecture(method="enet", width=4)).save(path)
    spoil_header(path, **changes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"model\.safetensors (cannot be read as a|is a) model"):
        Ensemble.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="`method` is 'bdfb'; choose one of bdbf"):
        PaperArchitecture(method="bdfb")
