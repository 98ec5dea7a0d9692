# SPDX-License-Identifier: Apache-2.0
"""Bad input gets one clear sentence."""

import pytest

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
    "fit.posterior(ones(3, 2), ones(3), prior, beta=0)": "pass positive, finite numbers",
    "fit.ml(ones(2, 9, 2) * nan, ones(2, 9))": "batch items [0, 1] of 2",
    "fit.ml(ones(1, 2), ones(1))": "as bases, 2, but the image has 1",
    "fit.evidence(ones(3, 2), ones(3), prior).predict(ones(4, 3))": "the same number of bases",
    "fit.Prior(ones(2), ones(3, 3))": "mean is [2] and its cov [3, 3]",
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
