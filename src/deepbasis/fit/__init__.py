# SPDX-License-Identifier: Apache-2.0
"""The Bayesian linear fit of depth bases to sparse points.  Pure functions on tensors.

Notation (Bishop, PRML, sections 3.3 and 3.5):

                                                     code           shape
    N points, M bases, design matrix Phi             phi            *b n m
    targets z: log depth, ln metres                  z              *b n
    relative precision of a point; 0 drops it        weight         *b n
    prior scale precision, noise precision           alpha, beta    *b
    prior of the weights, N(m0, Sigma0 / alpha)      prior          m, m m
    posterior of the weights, N(mean, root root')    Posterior      *b m, *b m m

Model: z = Phi w + eps, eps_n ~ N(0, 1 / (beta weight_n)).  Computations on M x M matrices are in
float64 for any input; results have the dtype of `phi`.
"""

from deepbasis.fit import correlated
from deepbasis.fit.calibration import match_nees, nees
from deepbasis.fit.evidence import evidence
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.kernel_search import FramePoints, learn_kernel, log_likelihood, search_kernel
from deepbasis.fit.linear import (
    JitterWarning,
    Posterior,
    ml,
    posterior,
    posterior_mean,
    posterior_moments,
)
from deepbasis.fit.prior import Gamma, Hyperprior, Prior, WeightSample, Widening, fit_gamma
from deepbasis.fit.transfer import Adapted, Strength, adapt_prior

__all__ = [
    "Adapted",
    "FramePoints",
    "Gamma",
    "Hyperprior",
    "JitterWarning",
    "Kernel",
    "Posterior",
    "Prior",
    "Strength",
    "WeightSample",
    "Widening",
    "adapt_prior",
    "correlated",
    "evidence",
    "fit_gamma",
    "learn_kernel",
    "log_likelihood",
    "match_nees",
    "ml",
    "nees",
    "posterior",
    "posterior_mean",
    "posterior_moments",
    "search_kernel",
]
