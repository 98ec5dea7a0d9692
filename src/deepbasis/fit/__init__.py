# SPDX-License-Identifier: Apache-2.0
"""The Bayesian linear fit of depth bases to sparse points.  Pure functions on tensors.

Notation (Bishop, PRML, sections 3.3 and 3.5)        code           shape
    N points, M bases, design matrix Phi             phi            *b n m
    targets z: log depth, ln metres                  z              *b n
    relative precision of a point; 0 drops it        weight         *b n
    prior scale precision, noise precision           alpha, beta    *b
    prior of the weights, N(m0, Sigma0 / alpha)      prior          m, m m
    posterior of the weights, N(mean, root root')    Posterior      *b m, *b m m

Model: z = Phi w + eps, eps_n ~ N(0, 1 / (beta weight_n)).  Matrices of size M x M are worked on in
float64 whatever comes in; results return in the dtype of `phi`.
"""

from deepbasis.fit import local
from deepbasis.fit.adapt import Adapted, Strength, adapt_prior
from deepbasis.fit.calibration import laplace_factor, match_nees, nees, two_term
from deepbasis.fit.evidence import evidence
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.linear import JitterWarning, Posterior, ml, posterior, shrunk
from deepbasis.fit.local_learn import Frame, learn_kernel, log_likelihood, search_kernel
from deepbasis.fit.prior import Gamma, Hyperprior, Prior, WeightSample, fit_gamma

__all__ = [
    "Adapted",
    "Frame",
    "Gamma",
    "Hyperprior",
    "JitterWarning",
    "Kernel",
    "Posterior",
    "Prior",
    "Strength",
    "WeightSample",
    "adapt_prior",
    "evidence",
    "fit_gamma",
    "laplace_factor",
    "learn_kernel",
    "local",
    "log_likelihood",
    "match_nees",
    "ml",
    "nees",
    "posterior",
    "search_kernel",
    "shrunk",
    "two_term",
]
