# SPDX-License-Identifier: Apache-2.0
"""Bad input gets one clear sentence."""

import pytest
import torch

from deepbasis import BasisFit, fit
from refusals import refusals

CASES = {
    "fit.evidence(ones(3, 2), ones(4), prior)": r"`phi` is [3, 2], `z` [4], `weight` [4]",
    "fit.evidence(ones(2, 3, 2), ones(3), prior)": r"`phi` is [2, 3, 2], `z` [3]",
    "fit.evidence(ones(3), ones(3), prior)": r"expected [..., n, m], [..., n] and [..., n]",
    "fit.evidence(ones(3, 2), ones(3), prior, ones(2))": r"`weight` [2]",
    "fit.evidence(ones(3, 5), ones(3), prior)": "the prior is for 2 bases, but `phi` has 5",
    "fit.evidence(ones(3, 2).long(), ones(3), prior)": "pass floating point tensors",
    "fit.evidence(ones(3, 2) * nan, ones(3), prior)": "`phi` holds NaN or infinity at a point of",
    "fit.evidence(ones(3, 2), ones(3) / 0, prior)": "`z` holds NaN or infinity at a point of",
    "fit.evidence(ones(3, 2), ones(3), prior, -ones(3))": "`weight` is negative, NaN or infinite",
    "fit.evidence(ones(3, 2), ones(3), prior, steps=-1)": "`steps` is -1",
    "fit.evidence(ones(3, 2), ones(3), prior, tol=nan)": "`tol` nan",
    "fit.evidence(ones(3, 2), ones(3), prior, hyperprior=fit.Hyperprior(fit.Gamma(2.0)))": (
        "shape and rate must be positive, or both 0"
    ),
    "fit.posterior(ones(3, 2), ones(3), prior, beta=0)": "pass a positive, finite number",
    "fit.ml(ones(2, 9, 2) * nan, ones(2, 9))": "batch items [0, 1] of 2",
    "fit.ml(ones(1, 2), ones(1))": "as bases, 2, but the image has 1",
    "fit.evidence(ones(3, 2), ones(3), prior).predict(ones(4, 3))": "the same number of bases",
    "fit.Prior(ones(2), ones(3, 3))": "mean is [2] and its cov [3, 3]",
    "fit.nees(1e30 * ones(2), ones(2))": "an error is so large, or a variance so small",
    "fit.nees(ones(2), ones(3))": "errors are [2] but variances [3]",
}

SETUP = "prior = fit.Prior(torch.zeros(2), torch.eye(2))"


@pytest.fixture(scope="module")
def said():
    return refusals(SETUP, CASES)


@pytest.mark.parametrize("case", CASES)
def test_says_what_was_wrong(said, case):
    assert CASES[case] in said[case]
    assert "\n" not in said[case]


def test_precisions_are_kept_in_double_precision():
    """0.7 in float32 is 0.699999988."""
    phi, z = torch.ones(3, 1), torch.ones(3)
    prior = fit.Prior(torch.zeros(1), torch.eye(1))
    post = fit.posterior(phi, z, prior, alpha=0.7, beta=0.3)
    assert (float(post.exact.alpha), float(post.exact.beta)) == (0.7, 0.3)
    wide = fit.posterior(phi.double(), z.double(), prior, alpha=0.7, beta=0.3)
    assert float(wide.mean[0]) == pytest.approx(0.3 * 3 / (0.7 + 0.3 * 3), rel=1e-14)


def test_odd_tensors_are_refused_or_answered():
    setup = (
        "phi, z, p = ones(2, 5, 1), ones(2, 5), fit.Prior(0 * ones(1), ones(1, 1))\n"
        "layer = BasisFit(2).eval(); sparse = ones(1, 1, 4, 6); bases = ones(1, 2, 2, 3)\n"
        "from deepbasis import latent, metrics, baselines\n"
    )
    cases = {
        "fit.posterior(phi, z, p, beta=-2.0)": "`beta` is a precision: pass a positive",
        "fit.posterior_mean(phi, z, p, beta=-2.0)": "`beta` is a precision: pass a positive",
        "fit.posterior(phi, z, p, beta=1.0, alpha=nan)": "`alpha` is a precision: pass a",
        "fit.posterior(phi, z, p, beta=ones(3))": "`beta` is [3]; pass one number, or one for each",
        "fit.evidence(phi, z, p, huber=float('inf'))": "`huber` is inf; pass a positive number",
        "fit.evidence(phi, 1e30 * z, p)": "overflow; bases and log depths must be below 1e+15",
        "fit.evidence(ones(()), ones(()), p)": "`phi` is [], `z` []",
        "fit.ml(phi.long(), z)": "pass floating point tensors",
        "layer(bases[:0], sparse[:0])": "there are 0 images of 4 x 6 pixels",
        "layer(bases, sparse[:, :, :0])": "there are 1 images of 0 x 6 pixels",
        "layer(bases / 0, sparse)": "`phi` holds NaN or infinity at a point of",
        "layer(1e30 * bases, 0 * sparse)": "the bases hold NaN or infinity, or are too large",
        "layer(bases, ones(()))": "sparse depth is torch.float32 []",
        "latent.interval(ones(3), ones(5), 0.9)": "the mean is [3] but the variance [5]",
        "metrics.auce(ones(2, 0, 5), ones(2, 0, 5), ones(2, 0, 5))": "no pixel has a true depth",
        "baselines.kriging(ones(3, 4, 6).byte(), sparse[0].bfloat16())": "is torch.bfloat16; pass",
    }
    said = refusals(setup, cases)
    for case, message in cases.items():
        assert message in said.get(case, "an answer"), case


def test_half_precision_and_empty_batches_of_fits_are_answered():
    prior = fit.Prior(torch.zeros(2), torch.eye(2))
    phi, z = torch.randn(3, 9, 2), torch.randn(3, 9)
    coarse, fine = (
        fit.evidence(*pair, prior) for pair in ((phi.bfloat16(), z.bfloat16()), (phi, z))
    )
    assert coarse.mean.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.mean.float(), fine.mean, atol=0.1, rtol=0.1)
    assert fit.evidence(phi[:0], z[:0], prior).mean.shape == (0, 2)
    assert fit.ml(phi[:0], z[:0]).mean.shape == (0, 2)
    sparse = (3 * torch.ones(1, 1, 4, 6)).bfloat16()
    for errors in ("independent", "correlated", "paper"):
        layer = BasisFit(2, errors=errors).eval()
        assert layer(torch.randn(1, 2, 2, 3), sparse).var.isfinite().all()
