# SPDX-License-Identifier: Apache-2.0
"""Would the tests notice? Each mutant is the code with one line made wrong on purpose."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC, PAPER, MODELS = ROOT / "src" / "deepbasis", ROOT / "paper" / "src", ROOT / "models" / "src"

# file, what stands there, what is put in its place, tests that have to fail
MUTANTS = [
    ("commands/complete/archive.py", 'keys.get(row["name"]) == row["made_from"]', 'row["name"] in keys', "commands/test_archive.py"),
    ("commands/complete/archive.py", "starts = range(0, len(frames), size)", "starts = range(0, len(frames), size + 1)", "commands/test_archive.py"),
    ("fit/linear.py", "- precision.log().sum(-1)", "+ precision.log().sum(-1)", "fit/test_evidence.py"),
    ("fit/linear.py", "precision.rsqrt()", "precision.sqrt()", "fit/test_evidence.py"),
    ("fit/linear.py", "return mean, model_var, (1 / self.beta", "return mean, model_var, (0 / self.beta", "fit/test_evidence.py"),
    ("fit/linear.py", "squares / n, smallest", "squares / m, smallest", "fit/test_ml.py"),
    ("fit/linear.py", "residual(self.points, self.mean) / others", "residual(self.points, self.mean) * others", "fit/test_evidence.py"),
    ("fit/evidence.py", "size = (var + ", "size = (0 * var + ", "fit/test_evidence.py"),
    ("fit/evidence.py", "+ (eigen.lam * var).sum(-1)", "", "fit/test_evidence.py"),
    ("fit/evidence.py", "torch.where(converged, beta, new_beta)", "new_beta", "fit/test_evidence.py"),
    ("fit/evidence.py", "points.n + 2 * hyper.beta.shape", "points.n + 2 * hyper.beta.shape - 2", "fit/test_evidence.py"),
    ("fit/robust.py", "(share * e).square()", "share * e.square()", "fit/test_robust.py"),
    ("fit/prior.py", "kept = (1 - values)", "kept = (1 + values)", "fit/test_prior.py"),
    ("fit/prior.py", "unbias = count / (count - m)", "unbias = count / (count + m)", "fit/test_prior.py"),
    ("fit/transfer.py", "off.mT @ off + post.cov.sum(0)", "off.mT @ off", "fit/test_transfer.py"),
    ("fit/transfer.py", "strength.mean * torch.outer(moved, moved)", "torch.outer(moved, moved)", "fit/test_transfer.py"),
    ("fit/calibration.py", "error.square() / var", "error.square() / (var / 2)", "fit/test_calibration.py"),
    ("deepbasis_paper/laplace.py", "(var / 2).sqrt()).mean().square()", "(var / 2).sqrt()).mean()", "../paper/tests/test_laplace.py"),
    ("deepbasis_paper/laplace.py", "terms = parts *", "terms = parts.flip(0) *", "../paper/tests/test_laplace.py"),
    ("fit/kernel.py", "self.nugget / weight", "self.nugget * weight", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/kernel.py", "(1 + math.sqrt(3) * distance)", "(1 + distance)", "fit/test_correlated.py::test_kernel_agrees_with_gpytorch"),
    ("fit/kernel.py", "addcmul_(minus, decay, value=-1)", "addcmul_(minus, decay, value=1)", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/kernel.py", "self.colour / self.length", "self.length / self.colour", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/kernel.py", "return u.mT @ white", "return (white.mT @ white @ u).mT", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/neighbours.py", "(~there).to(torch.uint8)", "there.to(torch.uint8)", "fit/test_correlated.py::test_others_are_searched_once_for_all_choices"),
    ("layer/errors.py", "(weight * own + nugget)", "(own + nugget)", "layer/test_errors.py"),
    ("layer/pyramid.py", "parts = [one]", "parts = [0 * one]", "layer/test_pyramid.py"),
    ("fit/correlated.py", "-0.5 * torch.where", "0.5 * torch.where", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/field.py", "left + self.kernel.nugget", "left", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/correlated.py", "ratios[-1].sqrt()", "ratios[-1]", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/field.py", "torch.inf, features", "1.0, features", "fit/test_correlated.py::test_a_measured_pixel_has_its_measurement_among_its_neighbours"),
    ("fit/memory.py", " | (noise != self.noise).any(1)", "", "fit/test_memory.py"),
    ("fit/memory.py", "            self._key = None\n", "            pass\n", "fit/test_memory.py"),
    ("fit/field.py", "mean - own, ends, ends", "own - mean, ends, ends", "fit/test_correlated.py::test_predictions_of_overlapping_blocks_are_blended"),
    ("fit/field.py", "(left / FREE).clamp(max=1) * ", "", "fit/test_correlated.py::test_a_mismatch_of_blocks_changes_nothing_at_a_point"),
    ("fit/field.py", "max(2 * self.ring, 0.5)", "max(self.ring, 0.5)", "fit/test_correlated.py::test_predictions_of_overlapping_blocks_are_blended"),
    ("fit/field.py", "within, torch.inf, features", "within, torch.inf, None", "fit/test_correlated.py::test_neighbours_of_a_block_are_on_its_surface"),
    ("fit/memory.py", "own, around, alpha=-1", "own, around, alpha=1", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/neighbours.py", "near < np.arange(start, stop)[:, None]", "near != np.arange(start, stop)[:, None]", "fit/test_correlated.py::test_with_all_points_as_neighbours_it_is_universal_kriging"),
    ("fit/sampling.py", "eye(len(at)).to(weights), -weights]", "eye(len(at)).to(weights), weights]", "fit/test_sampling.py"),
    ("fit/sampling.py", "left.sqrt().to(values)", "left.to(values)", "fit/test_sampling.py"),
    ("fit/sampling.py", "var = (cov.diagonal() + noise)", "var = cov.diagonal()", "fit/test_sampling.py"),
    ("joint.py", "known = -(fitted", "known = (fitted", "test_joint.py"),
    ("joint.py", "self._model_factor**0.5", "self._model_factor", "test_joint.py"),
    ("joint.py", "depth.square().mean(1) *", "depth.mean(1).square() *", "test_joint.py"),
    ("joint.py", "_average(score, reach // lattice.step)", "_average(score, 0)", "test_joint.py::test_the_nearest_surface_has_the_distribution_of_averages_of_the_dense_process"),
    ("latent.py", "(chi_square / dof).log() / 2", "(chi_square / dof).log()", "test_latent.py"),
    ("latent.py", "ratio = torch.lerp(one, other, across - left)", "ratio = (one + 0 * other)", "test_latent.py"),
    ("baselines.py", "(2 * spread)", "(4 * spread)", "test_baselines.py"),
    ("baselines.py", "variance_ratio / post.beta", "variance_ratio * post.beta", "test_baselines.py"),
    ("latent.py", "-math.log1p(-check_level(level))", "-math.log1p(-level / 2)", "test_latent.py"),
    ("latent.py", "width**share", "width + 0 * share", "test_latent.py"),
    ("latent.py", "(dof + 1) / 2 * torch.log1p", "dof / 2 * torch.log1p", "test_latent.py"),
    ("latent.py", "self.noise_share[where])", "self.noise_share.flatten()[: where.sum()])", "metrics/test_uncertainty.py"),
    ("fit/calibration.py", "c1 * noise + c2 * model)", "c2 * noise + c1 * model)", "fit/test_calibration.py"),
    ("fit/correlated.py", "((phi - known[:, 1:]) @ root)", "(phi @ root)", "fit/test_correlated.py::test_single_places_are_predicted_as_whole_images_are"),
    ("fit/kernel_search.py", "var.log().mean() / 2)", "var.log().mean())", "fit/test_correlated.py::test_learning_from_pixels_finds_what_predicts_them"),
    ("latent.py", "& (depth_m < LARGEST_DEPTH)", "", "test_latent.py"),
    ("layer/pyramid.py", "- 0.5).clamp(0, last)", ").clamp(0, last)", "layer/test_pyramid.py"),
    ("layer/pyramid.py", "return values.lerp(beside, right[..., None].to(scale.dtype))", "return beside.lerp(values, right[..., None].to(scale.dtype))", "layer/test_pyramid.py"),
    ("layer/pyramid.py", "total + _read_rows(part, taps, 0, self.size[0])", "total - _read_rows(part, taps, 0, self.size[0])", "layer/test_pyramid.py"),
    ("points.py", "[image]\n        shape", "[image] * 0\n        shape", "layer/test_basis_fit.py"),
    ("layer/calibration_table.py", "return Prediction(mean, model * model_var, noise * noise_var)", "return Prediction(mean, model * model_var, noise_var)", "layer/test_errors.py"),
    ("layer/errors.py", "ratio / post.beta.view(-1, 1, 1, 1)", "0 * ratio + 1 / post.beta.view(-1, 1, 1, 1)", "layer/test_errors.py"),
    ("layer/errors.py", "return self.innovations.lower(self.kernel, weight, self.posterior.weight)", "return weight", "layer/test_errors.py"),
    ("layer/errors.py", "self.weight * s.square()", "self.weight * s", "layer/test_errors.py"),
    ("layer/errors.py", "noise_var * s.square()", "noise_var * s", "layer/test_errors.py"),
    ("fit/field.py", "s.square() * left", "s * left", "layer/test_errors.py"),
    ("fit/correlated.py", "kernel.nugget / at[2].double()", "kernel.nugget", "nets/test_network.py"),
    ("fit/linear.py", "chol = _cholesky(a * eye + b *", "chol = _cholesky(eye + b *", "fit/test_correlated.py::test_differentiable_moments_are_those_of_the_posterior"),
    ("fit/neighbours.py", "dtype=np.int16) > max(k // 6, 1)", "dtype=np.int16) > k", "fit/test_correlated.py::test_neighbours_surround_a_place_between_scan_lines"),
    ("nets/kriging.py", "+ std.log().mean()", "- std.log().mean()", "nets/test_network.py"),
    ("data/sample.py", "(depths[0] / factor)", "(depths[0] * factor)", "data/test_sample.py"),
    ("fit/doubt.py", " - kernel.correlation(at, points) @ b", "", "fit/test_doubt.py"),
    ("fit/doubt.py", "self.wrong * (1 - self.wrong) * self", "(1 - self.wrong) * self", "fit/test_doubt.py"),
    ("fit/doubt.py", "cov / (var + points", "cov / (points", "fit/test_doubt.py"),
    ("fit/doubt.py", ".clamp(-1, 1)", "", "fit/test_doubt.py"),
    ("layer/errors.py", "seen.claimed_weight[0, which] * s.square()", "seen.claimed_weight[0, which]", "layer/test_errors.py"),
    ("fit/outliers.py", "1 - exact.beta[..., None] * model_var / ratio", "1 - exact.beta[..., None] * model_var", "fit/test_outliers.py"),
    ("fit/outliers.py", "model_var[0] * ratio, ratio", "model_var[0], ratio", "fit/test_outliers.py"),
    ("fit/outliers.py", "torch.where(used, rest, 1)", "rest", "fit/test_outliers.py"),
    ("fit/wrong_points.py", "return suspect & ~(unlikely & (count >= LEAST_CLUSTER))", "return suspect", "fit/test_wrong_points.py"),
    ("fit/wrong_points.py", "wrong_by(right + beside, pi)", "wrong_by(right, pi)", "fit/test_wrong_points.py"),
    ("fit/wrong_points.py", "wrong, 0)", "wrong, wrong)", "fit/test_wrong_points.py"),
    ("layer/basis_fit.py", "recalibrate(self.fit_details(kept", "(lambda fitted, _: fitted)(self.fit_details(observed", "test_result.py"),
    ("points.py", "usual / (usual + square)", "usual / (usual + square.sqrt())", "test_points.py"),
    ("points.py", "np.lexsort((-sigma, -rows[:, 2]))", "np.lexsort((-sigma, rows[:, 2]))", "test_points.py"),
    ("layer/errors.py", "return LeaveOneOut(residual.cpu(), var.cpu(), (noise_var / var).cpu())", "return LeaveOneOut(residual.cpu(), var.cpu(), (0 * var).cpu())", "layer/test_errors.py"),
    ("layer/errors.py", "ratio + kernel.noise(claimed) - kernel.noise(trust)", "ratio", "test_result.py"),
    ("self_check.py", "in np.abs(self.error) <= self.half", "in np.abs(self.error) >= self.half", "test_self_check.py::test_a_verdict_is_right_about_errors_of_known_size"),
    ("self_check.py", "min(n, share * (1 - share) / var)", "n", "test_self_check.py::test_bounds_are_wider_if_points_of_a_cell_are_alike"),
    ("self_check.py", "distance_to_points(other.points, size)", "distance_to_points(rows[~removed], size)", "test_check_frame.py::test_points_that_are_carried_over_count_in_the_distances"),
    ("nets/basis.py", 'F.interpolate(x, size, mode="bilinear")', 'F.interpolate(x, size, mode="bilinear", align_corners=True)', "nets/test_usual_size.py"),
    ("nets/usual_size.py", "image.float()", "image.float().roll(1, 3)", "nets/test_usual_size.py"),
    ("calibrate/familiarity.py", "network.usual_size.reduce(fabric.to_device(frames[index].image[None]))", "fabric.to_device(frames[index].image[None])", "nets/test_usual_size.py"),
    ("stream.py", "resets=[*self.resets]", "resets=self.resets", "test_check_frame.py::test_a_check_after_a_cut_does_not_reset_the_stream"),
    ("conformal.py", "np.full(n, 1 / (n + 1))", "np.full(n, 1 / n)", "test_conformal.py"),
    ("conformal.py", "1 / (size[which] * (len(size) + 1.0))", "1 / (size[which] * len(size))", "test_conformal.py"),
    ("conformal.py", "np.where(free, half, np.maximum(half, own))", "half", "test_conformal.py"),
    ("data/clouds.py", "(row - cy) / fy * z", "(row - cx) / fx * z", "commands/test_complete.py"),
    ("data/training.py", "mine = start + rank * batch", "mine = start", "data/test_sources.py"),
    ("data/training.py", "count = math.expm1(", "count = (", "data/test_sources.py"),
    ("model.py", '("correlated", local[4:6], local[6:], tails[1])', '("correlated", local[4:6], local[6:], tails[0])', "test_model.py::test_a_file_of_format_2_predicts_the_same_bits"),
    ("layer/calibration_table.py", "logs[right - 1].lerp(logs[right], step)", "logs[right]", "layer/test_calibration_table.py"),
    ("layer/learned_prior.py", "off.mT @ off / len(off)", "off.mT @ off", "layer/test_basis_fit.py"),
    ("nets/network.py", "+ few_points_weight * (l1_of(few) + l1_of(none))", "+ few_points_weight * l1_of(few)", "nets/test_network.py"),
    ("train/job.py", "math.cos(math.pi * share) + 1", "math.cos(math.pi * share)", "train/test_config.py"),
    ("train/checkpoint.py", "    _load_adam(adam, parts", "    print(adam, parts", "train/test_train.py::test_a_training_with_accumulated_batches_resumes_to_the_bit"),
    ("evaluation.py", "confidence(tally.per_image())", "confidence({'rel': torch.rand(9)})", "test_evaluation.py"),
    ("metrics/valid_pixels.py", "value.detach()[valid]", "value.detach()[value == value]", "metrics/test_metrics.py"),
    ("metrics/error.py", "(depth - true).abs() / true", "(depth - true).abs() / depth", "metrics/test_metrics.py"),
    ("metrics/error.py", "torch.maximum(depth / true, true / depth)", "depth / true", "metrics/test_metrics.py"),
    ("metrics/error.py", "METRES_PER_KM**2 *", "METRES_PER_KM *", "metrics/test_metrics.py"),
    ("latent.py", "- (2 * var).log() / 2", "- (var / 2).log() / 2", "metrics/test_uncertainty.py"),
    ("metrics/uncertainty.py", "torch.bucketize(level, edges)", "torch.bucketize(level, edges, right=True)", "metrics/test_uncertainty.py"),
    ("metrics/uncertainty.py", "- self.level).abs(), self.level", "- self.level), self.level", "metrics/test_uncertainty.py"),
    ("metrics/sparsification.py", "return Groups((last + 1).double()", "return Groups(last.double()", "metrics/test_sparsification.py"),
    ("metrics/sparsification.py", "total[:, at] + share * (total[:, at + 1] - total[:, at])", "total[:, at + 1]", "metrics/test_sparsification.py"),
    ("metrics/sparsification.py", "n - k * n // fractions", "n - max(k - 1, 0) * n // fractions", "metrics/test_sparsification.py"),
    ("metrics/image.py", "both_curves(at.std_m, error_m)", "both_curves(at.std_m, at.std_m)", "metrics/test_tally.py"),
    ("metrics/image.py", "means | {name: means[name].sqrt() for name in ROOTS}", "means", "metrics/test_tally.py"),
    ("metrics/tally.py", "self._check_new(other.rows)", "pass", "metrics/test_tally.py"),
    ("metrics/bootstrap.py", "(1 - level) / 2, (1 + level) / 2", "1 - level, level", "metrics/test_bootstrap.py"),
    ("data/sample.py", "[0.5, 0, -0.25]", "[0.5, 0, 0]", "data/test_sample.py"),
    ("data/sample.py", "argmax(-1, keepdim=True)", "argmin(-1, keepdim=True)", "data/test_sample.py"),
    ("data/with_points.py", "seeded(self.seed, self.epoch, index)", "seeded(self.seed, self.epoch)", "data/test_sample.py"),
    ("data/worlds/scene.py", "[[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]]", "[[cy, sy, 0], [-sy, cy, 0], [0, 0, 1]]", "data/test_worlds.py"),
    ("data/worlds/render.py", "lit = lit[~tracer", "lit = lit[tracer", "data/test_worlds.py"),
    ("stream.py", "mean + step @ (weights.mean - mean)", "mean + (weights.mean - mean)", "test_stream.py::test_the_filter_is_one_regression_on_the_points_of_all_frames"),
    ("stream.py", "cov + step @ (weights.cov - cov) @ step.mT", "step @ weights.cov @ step.mT", "test_stream.py::test_the_filter_is_one_regression_on_the_points_of_all_frames"),
    ("stream.py", "left[carried] = False", "left[carried] = True", "test_stream.py::test_a_resting_camera_with_a_pose_counts_each_measurement_once"),
    ("tracking.py", "move = move - change", "move = move + change", "test_tracking.py"),
    ("data/recording.py", "2 * (x * y - w * z), 2", "2 * (x * y + w * z), 2", "data/test_trajectories.py"),
]  # fmt: skip


def home(file: str) -> Path:
    """The file of a mutant, in the library or in the paper's package."""
    return (PAPER if file.startswith("deepbasis_paper/") else SRC) / file


def test_every_mutant_changes_one_place():
    texts = {file: home(file).read_text() for file, *_ in MUTANTS}
    stale = [(file, right) for file, right, *_ in MUTANTS if texts[file].count(right) != 1]
    assert not stale, "these texts do not occur exactly once in their files"


def run_tests(source: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run some tests on a copy of the sources, until one fails; of a whole file the quick ones."""
    chosen = [] if "::" in tests else ["-m", "not slow"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", *chosen, "-p", "no:cacheprovider", ROOT / "tests" / tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (source, PAPER, MODELS)))},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


@cache
def run_unbroken(tests: str) -> subprocess.CompletedProcess[str]:
    """Once for each selection: tests that fail anyway notice nothing."""
    return run_tests(ROOT / "src", tests)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong", "tests"), sorted(MUTANTS, key=lambda mutant: mutant[3])
)
def test_a_mutant_is_noticed(tmp_path, file, right, wrong, tests):
    unbroken = run_unbroken(tests)
    assert unbroken.returncode == 0, f"{tests} fails without a mutant:\n{unbroken.stdout[-2000:]}"
    # Links, but for the one file that is changed.
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SRC, tmp_path / "deepbasis", ignore=skip, copy_function=os.symlink)
    target = tmp_path / "deepbasis" / file
    if file.startswith("deepbasis_paper/"):
        copy = tmp_path / "deepbasis_paper"
        shutil.copytree(PAPER / "deepbasis_paper", copy, ignore=skip, copy_function=os.symlink)
        target = tmp_path / file
    target.unlink()
    target.write_text(home(file).read_text().replace(right, wrong))
    run = run_tests(tmp_path, tests)
    assert run.returncode == 1, f"nobody noticed: {wrong!r}\n{run.stdout[-2000:]}"
