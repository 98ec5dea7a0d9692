# SPDX-License-Identifier: Apache-2.0
"""Would the tests notice? Each mutant is the code with one line made wrong on purpose."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# file, what stands there, what is put in its place, tests that have to fail
MUTANTS = [
    ("fit/linear.py", "- precision.log().sum(-1)", "+ precision.log().sum(-1)", "fit"),
    ("fit/linear.py", "precision.rsqrt()", "precision.sqrt()", "fit"),
    ("fit/linear.py", "return mean, model_var, (1 / self.beta", "return mean, model_var, (0 / self.beta", "fit"),
    ("fit/linear.py", "squares / n, smallest", "squares / m, smallest", "fit"),
    ("fit/linear.py", "residual(self.points, self.mean) / others", "residual(self.points, self.mean) * others", "fit"),
    ("fit/evidence.py", "size = (var + ", "size = (0 * var + ", "fit"),
    ("fit/evidence.py", "+ (white.lam * var).sum(-1)", "", "fit"),
    ("fit/evidence.py", "torch.where(converged, beta, new_beta)", "new_beta", "fit"),
    ("fit/evidence.py", "points.n + 2 * hyper.beta.shape", "points.n + 2 * hyper.beta.shape - 2", "fit"),
    ("fit/robust.py", "(share * e).square()", "share * e.square()", "fit"),
    ("fit/prior.py", "kept = (1 - values)", "kept = (1 + values)", "fit"),
    ("fit/prior.py", "unbias = count / (count - m)", "unbias = count / (count + m)", "fit"),
    ("fit/calibration.py", "error.square() / var", "error.square() / (var / 2)", "fit"),
    ("fit/calibration.py", "(var / 2).sqrt()).mean().square()", "(var / 2).sqrt()).mean()", "fit"),
    ("fit/calibration.py", "terms = parts *", "terms = parts.flip(0) *", "fit"),
    ("latent.py", "-math.log1p(-level)", "-math.log1p(-level / 2)", "test_latent.py"),
    ("latent.py", "depth_m.isfinite() & (depth_m > 0)", "depth_m > 0", "test_latent.py"),
    ("pyramid.py", "- 0.5).clamp(0, last)", ").clamp(0, last)", "test_layer.py"),
    ("pyramid.py", "share[:, None]))\n        return torch.cat(parts, 1).mT", "1 - share[:, None]))\n        return torch.cat(parts, 1).mT", "test_layer.py"),
    ("layer.py", "[image]\n    shape", "[image] * 0\n    shape", "test_layer.py"),
    ("layer.py", "noise_factor * noise_var", "noise_var", "test_layer.py"),
    ("metrics/error.py", "[valid]", "", "metrics"),
    ("data/sample.py", "[0.5, 0, -0.25]", "[0.5, 0, 0]", "data/test_sample.py"),
    ("data/sample.py", "argmax(-1, keepdim=True)", "argmin(-1, keepdim=True)", "data/test_sample.py"),
    ("data/points.py", "seeded(self.seed, self.epoch, index)", "seeded(self.seed, self.epoch)", "data/test_sample.py"),
    ("data/worlds/scene.py", "[[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]]", "[[cy, sy, 0], [-sy, cy, 0], [0, 0, 1]]", "data/test_worlds.py"),
    ("data/worlds/render.py", "lit = lit[~tracer", "lit = lit[tracer", "data/test_worlds.py"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("file", "right", "wrong", "tests"), MUTANTS)
def test_a_mutant_is_noticed(tmp_path, file, right, wrong, tests):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    target = tmp_path / "src" / "deepbasis" / file
    text = target.read_text()
    assert text.count(right) == 1, f"{right!r} stands {text.count(right)} times in {file}"
    target.write_text(text.replace(right, wrong))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", ROOT / "tests" / tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 1, f"nobody noticed: {wrong!r}\n{run.stdout[-2000:]}"
