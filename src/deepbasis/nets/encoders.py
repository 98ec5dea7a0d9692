# SPDX-License-Identifier: Apache-2.0
"""Image encoders with the parameter names of their published weights, so that these can be loaded.

Each returns feature maps at strides 2, 4, 8, 16 and 32 with `channels` channels. `stem` computes
the first of them and `rest` the others, so that other features can be fused in between.

Sandler et al., MobileNetV2 (2018), table 2; Tan and Le, EfficientNet (2019), table 1, whose Lite
version has ReLU6 and no squeeze-and-excitation; He et al., Deep Residual Learning (2016), table 1.
"""

import zipfile
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis.data.limits import check_count, reading
from deepbasis.shapes import Float


def conv_norm_act(
    into: int, out: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution, batch norm and ReLU6: the building block of MobileNetV2."""
    conv = nn.Conv2d(into, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; with a shortcut if the size stays the same."""

    def __init__(self, into: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = into * expand
        widen = [] if expand == 1 else [conv_norm_act(into, hidden, 1)]
        self.conv = nn.Sequential(
            *widen,
            conv_norm_act(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        """Features to features."""
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 1.0 without its last convolution and its classifier."""

    channels: ClassVar[tuple[int, ...]] = (16, 24, 32, 96, 320)
    unused: ClassVar[tuple[str, ...]] = ("features.18.", "classifier.")
    # expansion, channels, blocks, stride of the first block
    blocks: ClassVar[tuple[tuple[int, int, int, int], ...]] = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip
    stages: ClassVar[tuple[int, ...]] = (1, 3, 6, 13, 17)
    """Number of the last feature of each stage."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_norm_act(3, 32, 3, stride=2)]
        into = 32
        for expand, out, count, stride in self.blocks:
            for i in range(count):
                layers.append(InvertedResidual(into, out, stride if i == 0 else 1, expand))
                into = out
        self.features = nn.Sequential(*layers)

    def stem(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Feature map at stride 2."""
        return self.features[: self.stages[0] + 1](image)

    def rest(self, x: Float[Tensor, "b c h2 w2"]) -> list[Tensor]:
        """Feature maps at strides 4 to 32."""
        found = []
        for start, stop in pairwise(self.stages):
            x = self.features[start + 1 : stop + 1](x)
            found.append(x)
        return found


class MBConv(nn.Module):
    """`InvertedResidual` with the parameter names of EfficientNet's published weights."""

    def __init__(self, into: int, out: int, size: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = into * expand
        self.expand = expand > 1
        if self.expand:
            self._expand_conv = nn.Conv2d(into, hidden, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(hidden, eps=1e-3)
        self._depthwise_conv = nn.Conv2d(
            hidden, hidden, size, stride, size // 2, groups=hidden, bias=False
        )
        self._bn1 = nn.BatchNorm2d(hidden, eps=1e-3)
        self._project_conv = nn.Conv2d(hidden, out, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(out, eps=1e-3)
        self.shortcut = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        """Features to features."""
        y = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expand else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)), inplace=True)
        y = self._bn2(self._project_conv(y))
        return x + y if self.shortcut else y


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its last convolution and its classifier.

    Strided convolutions are padded equally on both sides, unlike the original's, which shifts its
    features by half a pixel in each of them.
    """

    channels: ClassVar[tuple[int, ...]] = (16, 24, 40, 112, 320)
    unused: ClassVar[tuple[str, ...]] = ("_conv_head.", "_bn1.", "_fc.")
    # kernel size, stride of the first block, expansion, channels, blocks
    blocks: ClassVar[tuple[tuple[int, int, int, int, int], ...]] = (
        (3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3),
        (5, 1, 6, 112, 3), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1),
    )  # fmt: skip
    stages: ClassVar[tuple[int, ...]] = (1, 3, 5, 11, 16)
    """Number of blocks up to the end of each stage."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=1e-3)
        layers, into = [], 32
        for size, stride, expand, out, count in self.blocks:
            for i in range(count):
                layers.append(MBConv(into, out, size, stride if i == 0 else 1, expand))
                into = out
        self._blocks = nn.Sequential(*layers)

    def stem(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Feature map at stride 2."""
        x = F.relu6(self._bn0(self._conv_stem(image)), inplace=True)
        return self._blocks[: self.stages[0]](x)

    def rest(self, x: Float[Tensor, "b c h2 w2"]) -> list[Tensor]:
        """Feature maps at strides 4 to 32."""
        found = []
        for start, stop in pairwise(self.stages):
            x = self._blocks[start:stop](x)
            found.append(x)
        return found


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module | None = None
        if stride != 1 or into != out:
            shortcut = nn.Conv2d(into, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Features to features."""
        kept = x if self.downsample is None else self.downsample(x)
        x = self.bn1(self.conv1(x)).relu()
        return (kept + self.bn2(self.conv2(x))).relu()


class ResNet34(nn.Module):
    """ResNet-34 without its classifier."""

    channels: ClassVar[tuple[int, ...]] = (64, 64, 128, 256, 512)
    unused: ClassVar[tuple[str, ...]] = ("fc.",)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(64, 64, 3, 1)
        self.layer2 = self._stage(64, 128, 4, 2)
        self.layer3 = self._stage(128, 256, 6, 2)
        self.layer4 = self._stage(256, 512, 3, 2)

    @staticmethod
    def _stage(into: int, out: int, blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(into, out, stride)
        return nn.Sequential(first, *(BasicBlock(out, out, 1) for _ in range(blocks - 1)))

    def stem(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Feature map at stride 2."""
        return self.bn1(self.conv1(image)).relu()

    def rest(self, x: Float[Tensor, "b c h2 w2"]) -> list[Tensor]:
        """Feature maps at strides 4 to 32."""
        found, x = [], self.maxpool(x)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
            found.append(x)
        return found


Encoder = MobileNetV2 | EfficientNetLite0 | ResNet34
ENCODERS: dict[str, type[Encoder]] = {
    "mobilenet_v2": MobileNetV2,
    "efficientnet_lite0": EfficientNetLite0,
    "resnet34": ResNet34,
}


def load_encoder_weights(encoder: Encoder, path: Path) -> None:
    """Load published weights, a .safetensors or .pth file. No code in it is executed.

    Weights of the classifier are ignored; any other unknown or missing name is an error.
    """
    state = {k: v for k, v in read_state(path).items() if not k.startswith(encoder.unused)}
    own = encoder.state_dict()
    # Some files contain batch norm's counters, which are not used here.
    counters = {k for k in own if k.endswith("num_batches_tracked")}
    missing, extra = sorted(own.keys() - state.keys() - counters), sorted(state.keys() - own.keys())
    if missing or extra:
        kind = type(encoder).__name__
        raise ValueError(
            f"{path} is not a {kind}: {_some('it lacks', missing)}{_some('it also has', extra)}"
            "choose the encoder that the file was made for"
        )
    for name, value in state.items():
        if value.shape != own[name].shape:
            raise ValueError(
                f"{path}: {name} is {list(value.shape)}, but {type(encoder).__name__} has "
                f"{list(own[name].shape)}; does it have another width?"
            )
    encoder.load_state_dict(state, strict=False)


def read_state(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; check --encoder-weights")
    with reading(path, "the weights of an encoder"):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        _check_archive(path)
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError as error:
            raise ValueError("it holds more than tensors, so it was not loaded") from error
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}, not a state dict")
        for name, value in state.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise ValueError(f"{str(name)[:50]!r} in it is a {type(value).__name__}")
        return state


def _check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it holds: PyTorch does not compress."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    check_count(claimed // 4, path, "numbers")
    if claimed > path.stat().st_size:
        raise ValueError(f"it claims {claimed} bytes, more than it holds")


def _some(verb: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{verb} {', '.join(names[:3])}{more}; "
