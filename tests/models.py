# SPDX-License-Identifier: Apache-2.0
"""Models without training."""

import math

import torch

from deepbasis import fit
from deepbasis.model import Completer
from deepbasis.nets import Architecture

NOISE = 0.02


def make_model(**settings):
    """Untrained, with a prior and a usual noise made by hand: depths around 3 m."""
    torch.manual_seed(0)
    model = Completer(Architecture(**settings))
    set_prior(model.network.fit)
    return model


def set_prior(layer):
    """Depths around 3 m, and a usual noise."""
    mean = torch.zeros(layer.channels + 1)
    mean[0] = math.log(3)
    beta = fit.Gamma(20, 20 * NOISE**2)
    layer.set_prior(fit.Prior(mean, 0.1 * torch.eye(len(mean))), fit.Hyperprior(beta=beta))
    layer.correlated.noise.set(beta)
