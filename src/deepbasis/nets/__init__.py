# SPDX-License-Identifier: Apache-2.0
"""Networks that turn an image, and perhaps sparse depth, into depth bases."""

from deepbasis.nets.basis import BasisNet
from deepbasis.nets.encoders import MobileNetV2, ResNet34, load_encoder_weights
from deepbasis.nets.heads import ConvHead

__all__ = ["BasisNet", "ConvHead", "MobileNetV2", "ResNet34", "load_encoder_weights"]
