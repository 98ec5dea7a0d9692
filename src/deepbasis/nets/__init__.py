# SPDX-License-Identifier: Apache-2.0
"""Networks that turn an image into depth bases, and whole networks with their losses."""

from deepbasis.nets.basis import BasisNet, Features
from deepbasis.nets.encoders import (
    EfficientNetLite0,
    MobileNetV2,
    ResNet34,
    load_encoder_weights,
)
from deepbasis.nets.frozen import FrozenBases
from deepbasis.nets.network import Architecture, DepthNetwork, Network

__all__ = [
    "Architecture",
    "BasisNet",
    "DepthNetwork",
    "EfficientNetLite0",
    "Features",
    "FrozenBases",
    "MobileNetV2",
    "Network",
    "ResNet34",
    "load_encoder_weights",
]
