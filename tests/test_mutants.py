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
    ("fit/adapt.py", "off.mT @ off + post.cov.sum(0)", "off.mT @ off", "fit"),
    ("fit/adapt.py", "strength.mean * torch.outer(moved, moved)", "torch.outer(moved, moved)", "fit"),
    ("fit/calibration.py", "error.square() / var", "error.square() / (var / 2)", "fit"),
    ("fit/calibration.py", "(var / 2).sqrt()).mean().square()", "(var / 2).sqrt()).mean()", "fit"),
    ("fit/calibration.py", "terms = parts *", "terms = parts.flip(0) *", "fit"),
    ("fit/kernel.py", "self.nugget / weight", "self.nugget * weight", "fit/test_local.py"),
    ("fit/kernel.py", "(1 + math.sqrt(3) * distance)", "(1 + distance)", "fit/test_local.py"),
    ("fit/kernel.py", "self.colour / self.length", "self.length / self.colour", "fit/test_local.py"),
    ("fit/kernel.py", "return u.mT @ whitener", "return (whitener.mT @ whitener @ u).mT", "fit/test_local.py"),
    ("fit/local.py", "-0.5 * torch.where", "0.5 * torch.where", "fit/test_local.py"),
    ("fit/local.py", "[:, 0] + self.kernel.nugget", "[:, 0]", "fit/test_local.py"),
    ("fit/local.py", "shares[-1].sqrt()", "shares[-1]", "fit/test_local.py"),
    ("fit/local.py", "p=torch.inf", "p=1.0", "fit/test_local.py"),
    ("fit/neighbours.py", "near < np.arange(start, stop)[:, None]", "near != np.arange(start, stop)[:, None]", "fit/test_local.py"),
    ("classical.py", "(2 * spread)", "(4 * spread)", "test_classical.py"),
    ("classical.py", "share / post.beta", "share * post.beta", "test_classical.py"),
    ("latent.py", "-math.log1p(-_checked(level))", "-math.log1p(-level / 2)", "test_latent.py"),
    ("latent.py", "(share * math.log(self.width)).exp()", "self.width + 0 * share", "test_latent.py"),
    ("latent.py", "(dof + 1) / 2 * torch.log1p", "dof / 2 * torch.log1p", "test_latent.py"),
    ("latent.py", "self.noise_share[where])", "self.noise_share.flatten()[: where.sum()])", "metrics"),
    ("fit/calibration.py", "c1 * noise + c2 * model)", "c2 * noise + c1 * model)", "fit/test_calibration.py"),
    ("fit/local.py", "known[:, -1] + rest @ post.mean", "known[:, -1] + at[1].double() @ post.mean", "fit/test_local.py"),
    ("fit/local_learn.py", "var.log().mean() / 2)", "var.log().mean())", "fit/test_local.py"),
    ("latent.py", "depth_m.isfinite() & (depth_m > 0)", "depth_m > 0", "test_latent.py"),
    ("pyramid.py", "- 0.5).clamp(0, last)", ").clamp(0, last)", "test_layer.py"),
    ("pyramid.py", "share[:, None]))\n        return torch.cat(parts, 1).mT", "1 - share[:, None]))\n        return torch.cat(parts, 1).mT", "test_layer.py"),
    ("pyramid.py", "total + _read_rows(part, taps, 0, self.size[0])", "total - _read_rows(part, taps, 0, self.size[0])", "test_layer.py"),
    ("measurements.py", "[image]\n    shape", "[image] * 0\n    shape", "test_layer.py"),
    ("layer.py", "return Prediction(mean, model * model_var, noise * noise_var)", "return Prediction(mean, model * model_var, noise_var)", "test_layer.py"),
    ("layer.py", "share / post.beta", "1 / post.beta + 0 * share", "test_layer.py"),
    ("layer.py", "trust = frame.news.lower(self.kernel, trust, post.weight)", "pass", "test_layer.py"),
    ("fit/outliers.py", "1 - exact.beta[..., None] * model_var / share", "1 - exact.beta[..., None] * model_var", "fit/test_outliers.py"),
    ("fit/outliers.py", "model_var[0] * news.share", "model_var[0]", "fit/test_outliers.py"),
    ("measurements.py", "usual / (usual + square)", "usual / (usual + square.sqrt())", "test_completion.py"),
    ("measurements.py", "np.argsort(-points[:, 2])", "np.argsort(points[:, 2])", "test_completion.py"),
    ("completion.py", "noise_share=noise_share)", "noise_share=0 * noise_share)", "test_completion.py"),
    ("completion.py", "share + kernel.noise(weight) - kernel.noise(trust)", "share", "test_completion.py"),
    ("complete/check.py", "np.abs(self.error) <= self.half", "np.abs(self.error) >= self.half", "test_complete.py"),
    ("complete/check.py", "max(SLACK, spread)", "SLACK", "test_complete.py"),
    ("complete/outputs.py", "(row - cy) / fy * z", "(row - cx) / fx * z", "test_complete.py"),
    ("data/training.py", "mine = start + rank * batch", "mine = start", "data/test_sources.py"),
    ("data/training.py", "torch.where(measured(seen), 0, sample.depth)", "sample.depth", "data/test_sources.py"),
    ("data/training.py", "count = math.expm1(", "count = (", "data/test_sources.py"),
    ("model.py", "mean.var(0, correction=0)", "(0 * mean.var(0))", "test_model.py"),
    ("train/loss.py", "+ log_b + math.log(2)", "+ math.log(2)", "train/test_loss.py"),
    ("train/loss.py", "0.5 * (var / 2).log()", "0.5 * var.log()", "train/test_loss.py"),
    ("train/schedule.py", "epoch // self.config.halve_every", "within // self.config.halve_every", "train/test_schedule.py"),
    ("train/schedule.py", "(within % self.cycle) / self.cycle", "within / self.cycle", "train/test_schedule.py"),
    ("train/checkpoint.py", "    _load_adam(adam, parts", "    print(adam, parts", "train/test_train.py"),
    ("evaluate.py", "confidence(tally.per_image())", "confidence({'rel': torch.rand(9)})", "test_evaluate.py"),
    ("metrics/checks.py", "value.detach()[valid]", "value.detach()[value == value]", "metrics"),
    ("metrics/error.py", "(depth - true).abs() / true", "(depth - true).abs() / depth", "metrics"),
    ("metrics/error.py", "torch.maximum(depth / true, true / depth)", "depth / true", "metrics"),
    ("metrics/error.py", "METRES_PER_KM**2 *", "METRES_PER_KM *", "metrics"),
    ("latent.py", "- (2 * var).log() / 2", "- (var / 2).log() / 2", "metrics"),
    ("metrics/uncertainty.py", "torch.bucketize(level, edges)", "torch.bucketize(level, edges, right=True)", "metrics"),
    ("metrics/uncertainty.py", "- self.level).abs(), self.level", "- self.level), self.level", "metrics"),
    ("metrics/sparsification.py", "return Groups((last + 1).double()", "return Groups(last.double()", "metrics"),
    ("metrics/sparsification.py", "before + share * (after - before)", "after", "metrics"),
    ("metrics/sparsification.py", "n - k * n // fractions", "n - max(k - 1, 0) * n // fractions", "metrics"),
    ("metrics/pooled.py", "stack([coarse, ((value - coarse) / FINE).round() * FINE])", "stack([value, value - value])", "metrics"),
    ("metrics/pooled.py", "finish(after, kept) - finish(before, kept)", "0 * finish(after, kept)", "metrics"),
    ("metrics/image.py", "for value in (at.std_m, error_m)]", "for value in (at.std_m, at.std_m)]", "metrics"),
    ("metrics/image.py", "means | {name: means[name].sqrt() for name in ROOTS}", "means", "metrics"),
    ("metrics/tally.py", "self._check_new(other.rows)", "pass", "metrics"),
    ("metrics/tally.py", "row[0, -len(AREAS) :] =", "row[0, -len(AREAS) :] /= len(table)  #", "metrics"),
    ("metrics/bootstrap.py", "(1 - level) / 2, (1 + level) / 2", "1 - level, level", "metrics"),
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
