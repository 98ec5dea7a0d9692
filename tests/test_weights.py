# SPDX-License-Identifier: Apache-2.0
"""The pretrained models: what they answer on its samples must not change unseen.

`python tests/test_weights.py` writes down what they answer now.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import deepbasis
from deepbasis import patterns
from deepbasis.data.packaged import packaged
from deepbasis.data.tensors import load_tensors
from deepbasis.model import FORMAT, find_model
from deepbasis.pretrained import PRETRAINED

ANSWERS = Path(__file__).with_name("weights.json")
WORLDS = {"indoor": "rooms", "open": "rooms", "outdoor": "roads"}
COUNTS = ("500", "10", "0")


def complete(name: str, points: str):
    """A model's answer for a packaged sample, and the sample."""
    sample = packaged(WORLDS[name])[0]
    draw = torch.Generator().manual_seed(100)
    measured = patterns.parse(points)(sample.depth, sample.image, sample.intrinsics, draw)
    model = deepbasis.load(name)
    return model.complete(sample.image.permute(1, 2, 0).numpy(), measured[0].numpy()), sample


def probe(name: str, points: str) -> dict[str, list[float]]:
    """Depth and std at some pixels, evenly spread."""
    answer, _ = complete(name, points)
    height, width = answer.depth.shape
    at = np.ix_(range(10, height, height // 4), range(10, width, width // 4))
    return {
        kind: [float(f"{value:.5g}") for value in getattr(answer, kind)[at].ravel()]
        for kind in ("depth", "std")
    }


@pytest.mark.parametrize("points", COUNTS)
@pytest.mark.parametrize("name", WORLDS)
def test_answers_are_those_written_down(name, points):
    wanted = json.loads(ANSWERS.read_text())[name][points]
    for kind, values in probe(name, points).items():
        np.testing.assert_allclose(values, wanted[kind], rtol=0.01)


@pytest.mark.parametrize("name", WORLDS)
def test_points_help_and_error_bars_hold_roughly(name):
    errors = []
    for points in COUNTS:
        answer, sample = complete(name, points)
        true, known = sample.depth[0].numpy(), sample.mask[0].numpy()
        low, high = answer.interval(0.9)
        errors.append(np.abs(answer.latent_mean - np.log(np.where(known, true, 1)))[known].mean())
        inside = ((low <= true) & (true <= high))[known].mean()
        assert inside > 0.6, (points, inside)
    assert errors[0] < 0.1
    assert errors[0] < 0.6 * min(errors[1:])


@pytest.mark.parametrize("name", WORLDS)
def test_saved_in_the_format_of_today_they_predict_the_same_bits(name, tmp_path):
    model, path = deepbasis.load(name), tmp_path / "model.safetensors"
    model.save(path)
    assert load_tensors(path)[1]["format"] == FORMAT
    again = deepbasis.load(path)
    assert again.card == model.card
    image = packaged(WORLDS[name])[0].image.permute(1, 2, 0).numpy()[::2, ::2]
    rows = np.array([[20.0, 30, 2], [50.25, 40.5, 3], [90, 60, 2.5]])
    for errors in ("independent", "correlated", "paper"):
        one, other = (each.complete(image, rows, errors=errors) for each in (model, again))
        np.testing.assert_array_equal(one.latent_mean, other.latent_mean)
        np.testing.assert_array_equal(one.latent_var, other.latent_var)
        np.testing.assert_array_equal(one.interval(0.9), other.interval(0.9))


@pytest.mark.parametrize("name", WORLDS)
def test_files_are_small_narrow_and_have_a_card(name):
    file = find_model(name)
    assert file.stat().st_size < 20e6
    card = file.with_suffix(".md").read_text()
    for word in (
        "Trained on",
        "Licence",
        "```text\n$ deepbasis train",
        "Coverage of the 90 %",
        "Not suitable for",
    ):
        assert word in card, word
    model = deepbasis.load(name)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert model.architecture.errors == "correlated"


def test_every_model_is_tested():
    assert sorted(WORLDS) == sorted(one.name for one in PRETRAINED)


if __name__ == "__main__":
    answers = {name: {points: probe(name, points) for points in COUNTS} for name in WORLDS}
    ANSWERS.write_text(json.dumps(answers, indent=1) + "\n")
