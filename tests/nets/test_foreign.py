# SPDX-License-Identifier: Apache-2.0
"""Third-party networks as bases: a small model of transformers, a module, a function."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import deepbasis
from deepbasis.cli import main
from deepbasis.data.sample import Frames
from deepbasis.data.sources import Source
from deepbasis.data.with_points import WithPoints
from deepbasis.data.worlds import Worlds
from deepbasis.nets.foreign import COMPONENTS, HubNetwork
from deepbasis.patterns import parse

transformers = pytest.importorskip("transformers")
SIZE = (56, 84)


def make_hub_model(folder, kind="relative"):
    """A model of Depth Anything's class with a few thousand weights, saved as it would be."""
    torch.manual_seed(0)
    backbone = transformers.Dinov2Config(
        hidden_size=24, num_hidden_layers=4, num_attention_heads=2, mlp_ratio=2, image_size=56,
        patch_size=14, out_indices=[1, 2, 3, 4], reshape_hidden_states=False,
        apply_layernorm=True,
    )  # fmt: skip
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone, patch_size=14, reassemble_hidden_size=24,
        neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, head_hidden_size=8,
        depth_estimation_type=kind, max_depth=20 if kind == "metric" else 1,
    )  # fmt: skip
    model = transformers.DepthAnythingForDepthEstimation(config)
    nn.init.constant_(model.head.conv3.bias, 0.5)  # so that depths are positive, and differ
    for name, weight in model.named_parameters():
        if name.startswith(("neck", "head")) and weight.ndim > 1:
            nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    nn.init.normal_(model.head.conv3.weight, std=0.05)
    model.save_pretrained(folder)
    settings = {"image_mean": [0.4] * 3, "image_std": [0.2] * 3, "ensure_multiple_of": 14,
                "size": {"height": 56, "width": 56}}  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    return make_hub_model(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def rooms():
    return Worlds("rooms", 6, size=SIZE)


def test_a_model_of_transformers_completes_at_once(hub, rooms):
    for name in (hub, str(hub), f"hf:{hub}"):
        model = deepbasis.load(name)
    assert model.network.bases.prediction == "disparity"
    assert model.network.fit.channels == 3 + COMPONENTS
    room = WithPoints(rooms, parse("100"), seed=0)[0]
    out = model.complete(room.image, room.sparse[0])
    assert out.depth.shape == SIZE
    assert np.isfinite(out.depth).all()
    measured = room.sparse[0].numpy() > 0
    error = np.abs(np.log(out.depth / room.depth[0].numpy()))
    # It follows the measurements, and is uncertain between them.
    assert np.median(error[measured]) < 0.02
    assert out.std[measured].mean() < out.std[~measured].mean()
    alone = model.complete(room.image)
    assert (alone.std > out.std).mean() > 0.99


def test_its_prediction_and_features_are_the_bases(hub, rooms):
    """Against the model itself, with the preprocessing written out."""
    network = transformers.AutoModelForDepthEstimation.from_pretrained(hub).eval()
    image = rooms[0].image[None]  # of the model's own size, so that nothing is resized
    with torch.no_grad():
        found = network((image / 255 - 0.4) / 0.2, output_hidden_states=True)
    features, bases = deepbasis.load(hub).network.bases(image).bases
    relative = found.predicted_depth.median() / found.predicted_depth
    middle = (1 / found.predicted_depth).median() * found.predicted_depth.median()
    assert torch.allclose(bases[:, 2], relative / middle, atol=1e-5)
    assert torch.allclose(bases[:, 0], bases[:, 2].log(), atol=1e-5)
    tokens = found.hidden_states[-1][:, 1:]
    off = (tokens - tokens.mean(1)) / tokens.std(1, correction=0)
    mix = deepbasis.load(hub).network.bases.mix
    assert torch.allclose(features.flatten(2).mT, off @ mix.mT, atol=1e-4)


def test_the_prior_is_what_the_network_says_up_to_its_scale():
    def ramp(image):
        return torch.linspace(1, 4, image.shape[3]).expand(len(image), 1, *image.shape[2:])

    image = np.zeros((*SIZE, 3), np.uint8)
    metric = deepbasis.load(ramp, prediction="metric").complete(image)
    assert metric.depth[0] == pytest.approx(np.linspace(1, 4, SIZE[1]), rel=1e-4)
    scaled = deepbasis.load(ramp, prediction="depth").complete(image)
    assert np.median(scaled.depth) == pytest.approx(3.0, rel=0.01)
    inverse = deepbasis.load(lambda x: 1 / ramp(x), prediction="disparity").complete(image)
    assert inverse.depth == pytest.approx(scaled.depth, rel=1e-3)
    assert metric.std.mean() < 0.6 * scaled.std.mean()
    # One point tells the scale.
    one = deepbasis.load(ramp, prediction="depth").complete(image, [[40, 30, 25.0]])
    ratio = one.depth[30] / np.linspace(1, 4, SIZE[1])
    assert ratio == pytest.approx(25 / np.linspace(1, 4, SIZE[1])[40], rel=0.1)


class Blurred(nn.Module):
    """A module with features; its depth is the brightness."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)

    def forward(self, image):
        return 1 + image.mean(1, keepdim=True), self.conv(image)


def test_a_module_is_adapted_saved_and_loaded_with_its_network(rooms, tmp_path):
    network = Blurred()
    model = deepbasis.load(network, prediction="depth")
    assert model.network.fit.channels == 3 + 6
    assert not list(model.parameters())  # its weights stay its user's
    model.save(tmp_path / "own.safetensors")
    with pytest.raises(ValueError, match="which only Python can pass"):
        deepbasis.load(tmp_path / "own.safetensors")
    again = deepbasis.load(tmp_path / "own.safetensors", network=network)
    room = WithPoints(rooms, parse("50"), seed=0)[1]
    one, other = (each.complete(room.image, room.sparse[0]) for each in (model, again))
    assert (one.depth == other.depth).all()


def adapt(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["deepbasis", "adapt", *map(str, words)])
    main()


def coverage(model, frames: Frames, pattern):
    """Share of unmeasured pixels inside the 90 % interval, and the mean error of log depth."""
    inside, errors = [], []
    for i in range(len(frames)):
        room = WithPoints(frames, parse(pattern), seed=1)[i]
        out = model.complete(room.image, room.sparse[0] if pattern != "0" else None)
        low, high = out.interval(0.9)
        true = room.depth[0].numpy()
        asked = (true > 0) & (room.sparse[0].numpy() == 0)
        inside.append(((low <= true) & (true <= high))[asked].mean())
        errors.append(np.abs(np.log(out.depth[asked] / true[asked])).mean())
    return np.mean(inside), np.mean(errors)


@pytest.mark.slow
def test_an_adapted_model_of_transformers_has_calibrated_error_bars(
    hub, tmp_path, monkeypatch, capsys
):
    """Learned from 30 rooms; on 12 others, nine tenths of the pixels are inside the intervals."""
    out = tmp_path / "adapted.safetensors"
    words = ["--data", "rooms", "--frames", 30, "--size", *SIZE, "--val-frames", 0, "--out", out]
    adapt(monkeypatch, hub, *words)
    assert "learned from     30 frames" in capsys.readouterr().out
    before, after = deepbasis.load(hub), deepbasis.load(out)
    assert after.architecture.encoder == f"hf:{hub}"
    others = Source("rooms", None, 12, SIZE, 1).open("test")
    for pattern in ("0", "20", "200"):
        share, error = coverage(after, others, pattern)
        assert 0.8 < share < 0.98, pattern
        if pattern == "0":  # where the prior is all there is
            assert error < 1.02 * coverage(before, others, pattern)[1]


def test_the_command_takes_the_folder_of_a_model(hub, rooms, tmp_path, monkeypatch, capsys):
    from deepbasis.data.formats import write_image

    write_image(tmp_path / "room.png", rooms[0].image.permute(1, 2, 0).numpy())
    words = ["complete", str(tmp_path / "room.png"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["deepbasis", *words, "--model", str(hub)])
    main()
    monkeypatch.setattr(sys, "argv", ["deepbasis", *words, "--model", f"hf:{hub}"])
    with pytest.warns(UserWarning, match="error bars of hf:.* are not calibrated"):
        main()
    assert "0 points used" in capsys.readouterr().out


def test_metric_models_tell_it(tmp_path):
    assert HubNetwork(str(make_hub_model(tmp_path, "metric"))).prediction == "metric"


def test_refusals(hub, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="what does the network predict"):
        deepbasis.load(lambda image: image)
    with pytest.raises(ValueError, match=r"depth of \[1, 3, 112, 112\] for images"):
        deepbasis.load(lambda image: image, prediction="depth")
    with pytest.raises(ValueError, match="depth str for images"):
        deepbasis.load(lambda image: "deep", prediction="depth")
    output = SimpleNamespace(predicted_depth=torch.ones(1, 8, 8))
    with pytest.raises(ValueError, match="to use a model of transformers, pass hf: and its name"):
        deepbasis.load(lambda image: output, prediction="depth")
    with pytest.raises(FileNotFoundError, match="no folder /nowhere of a model"):
        deepbasis.load("hf:/nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as a model of transformers"):
        deepbasis.load(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "deepbasis\[hub\]"'):
        deepbasis.load(hub)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": "large"}, "it is damaged or has another format"),
        ({"size": 10**9}, "it asks for images of 1000000000 pixels"),
        ({"image_mean": [0.5]}, "not three numbers"),
        ({"image_std": [1, 0, 1]}, "not three numbers"),
        ({"ensure_multiple_of": [3]}, "it is damaged or has another format"),
    ],
)
def test_settings_of_another_kind_are_refused(hub, tmp_path, settings, said):
    for path in hub.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"cannot be read as a model of transformers.*{said}"):
        HubNetwork(str(tmp_path))


def test_older_models_tell_their_size_as_a_number(hub, tmp_path):
    for path in hub.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 84}))
    assert HubNetwork(str(tmp_path)).side == 84


def test_a_network_that_predicts_nothing_is_refused_in_one_sentence():
    model = deepbasis.load(lambda image: torch.zeros(len(image), 1, 8, 8), prediction="depth")
    with pytest.raises(ValueError, match="median is not above 0"):
        model.complete(np.zeros((*SIZE, 3), np.uint8))
    assert math.isfinite(model.network.fit.prior.mean.sum())
