"""ResNet-18, its half as deep ResNet-10 and the CIFAR ResNet-20, with torchvision's parameter names."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from torch import Tensor, nn

from fscil.errors import ConfigError
from fscil.models.backbone import Backbone, Initialisation, initialise_convolutions

Stem: TypeAlias = Literal["cifar", "half", "imagenet"]


class StridedProjection(nn.Conv2d):
    """A strided 1x1 convolution: takes every stride-th pixel and convolves those.

    Done in these two steps because oneDNN's strided 1x1 convolution writes beyond its buffer in the backward pass where
    a channels_last input has fewer channels than a vector register holds: wrong gradients, a crash or a hang.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 1, bias=False)
        self.every = stride

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :, :: self.every, :: self.every])


class BasicBlock(nn.Module):
    """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride): two 3x3 convolutions and a shortcut round them."""

    last_relu = True  # of the sum of convolutions and shortcut

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(StridedProjection(inputs, outputs, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x)) + shortcut
        y: Tensor = self.relu(x) if self.last_relu else x
        return y


def resnet18(
    stem: Stem = "cifar", width: int = 64, last_relu: bool = True, initialisation: Initialisation = "kaiming"
) -> Backbone:
    """Features of 8 * width. The cifar stem keeps the resolution (32 and 84 px), half halves, imagenet quarters it.

    last_relu: False leaves out the ReLU of the last block, so that features have both signs. initialisation:
    of convolutions, see fscil.models.backbone.initialise_convolutions.
    """
    return _resnet([2, 2, 2, 2], stem, width, last_relu, initialisation)


def resnet10(
    stem: Stem = "cifar", width: int = 64, last_relu: bool = True, initialisation: Initialisation = "kaiming"
) -> Backbone:
    """ResNet-18 with one block in each stage: half its operations, as many features."""
    return _resnet([1, 1, 1, 1], stem, width, last_relu, initialisation)


def resnet20(width: int = 16, last_relu: bool = True, initialisation: Initialisation = "kaiming") -> Backbone:
    """Features of 4 * width, for 32 px; shortcuts that change shape are 1x1 convolutions."""
    return _resnet([3, 3, 3], "cifar", width, last_relu, initialisation)


def _resnet(depths: Sequence[int], stem: Stem, width: int, last_relu: bool, initialisation: Initialisation) -> Backbone:
    if width < 1:
        raise ConfigError(f"A ResNet's width is its number of channels in the first stage: at least 1, not {width}.")
    if stem == "cifar":
        conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        maxpool: nn.Module = nn.Identity()
    elif stem == "half":  # four times as many channels for the same operations, which suits a CPU
        conv1 = nn.Conv2d(3, width, 4, stride=2, padding=1, bias=False)
        maxpool = nn.Identity()
    elif stem == "imagenet":
        conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        maxpool = nn.MaxPool2d(3, stride=2, padding=1)
    else:
        raise ConfigError(f'A ResNet has the stem "cifar", "half" or "imagenet", not "{stem}".')
    stages = {}
    inputs = outputs = width
    for stage, depth in enumerate(depths):
        outputs = width * 2**stage
        blocks = [BasicBlock(inputs, outputs, stride=1 if stage == 0 else 2)]
        blocks += [BasicBlock(outputs, outputs, stride=1) for _ in range(depth - 1)]
        stages[f"layer{stage + 1}"] = nn.Sequential(*blocks)
        inputs = outputs
    blocks[-1].last_relu = last_relu
    backbone = Backbone(
        feature_dim=outputs,
        conv1=conv1,
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(inplace=True),
        maxpool=maxpool,
        **stages,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    initialise_convolutions(backbone, initialisation)
    return backbone
