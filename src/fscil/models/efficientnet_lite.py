"""EfficientNet-lite0 to lite2: without squeeze-and-excite and swish; 1280 features, 3.4 to 4.8 million parameters."""

import math
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from fscil.models.backbone import Backbone, Initialisation, initialise_convolutions

# Of lite0: expansion, channels, blocks, stride of the first block, kernel.
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
STEM_CHANNELS = 32  # as FEATURES, of all versions alike
FEATURES = 1280
CHANNEL_STEP = 8  # channels are multiples of it
VERSIONS = {"efficientnet_lite0": (1.0, 1.0), "efficientnet_lite1": (1.0, 1.1), "efficientnet_lite2": (1.1, 1.2)}


class SamePaddedConv2d(nn.Conv2d):
    """A strided convolution padded as TensorFlow does, which the published weights were trained with.

    The output has ceil(size / stride) pixels; where the padding is odd, the extra row goes below and the column right.
    """

    def forward(self, x: Tensor) -> Tensor:
        top, bottom = self._padding(x.shape[2])
        left, right = self._padding(x.shape[3])
        return super().forward(F.pad(x, (left, right, top, bottom)))

    def _padding(self, size: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[0], self.stride[0]
        last_start = (size - 1) // stride * stride
        total = max(last_start + kernel - size, 0)
        return total // 2, total - total // 2


class InvertedResidual(nn.Sequential):
    """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride): widen, filter each channel, narrow (MBConv)."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, kernel: int) -> None:
        wide = inputs * expansion
        parts: dict[str, nn.Module] = {}
        if expansion != 1:
            parts |= {
                "_expand_conv": _convolution(inputs, wide, 1),
                "_bn0": _norm(wide),
                "relu0": nn.ReLU6(inplace=True),
            }
        parts |= {
            "_depthwise_conv": _convolution(wide, wide, kernel, stride, groups=wide),
            "_bn1": _norm(wide),
            "relu1": nn.ReLU6(inplace=True),
            "_project_conv": _convolution(wide, outputs, 1),
            "_bn2": _norm(outputs),
        }
        super().__init__(OrderedDict(parts))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for part in self:
            y = part(y)
        return x + y if self.has_shortcut else y


def efficientnet_lite(version: str, initialisation: Initialisation = "kaiming") -> Backbone:
    """One of VERSIONS: lite0, wider and deeper. With random weights; underscored names are those of published ones."""
    wider, deeper = VERSIONS[version]
    blocks = []
    inputs = STEM_CHANNELS
    for stage, (expansion, channels, depth, stride, kernel) in enumerate(STAGES):
        outputs = _channels(channels * wider)
        inner = 0 < stage < len(STAGES) - 1  # the first stage and the last are never deeper
        for place in range(math.ceil(depth * deeper) if inner else depth):
            blocks.append(InvertedResidual(inputs, outputs, expansion, stride if place == 0 else 1, kernel))
            inputs = outputs
    backbone = Backbone(
        feature_dim=FEATURES,
        _conv_stem=_convolution(3, STEM_CHANNELS, 3, stride=2),
        _bn0=_norm(STEM_CHANNELS),
        relu0=nn.ReLU6(inplace=True),
        _blocks=nn.Sequential(*blocks),
        _conv_head=_convolution(inputs, FEATURES, 1),
        _bn1=_norm(FEATURES),
        relu1=nn.ReLU6(inplace=True),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    initialise_convolutions(backbone, initialisation)
    return backbone


def _channels(wanted: float) -> int:
    """The nearest multiple of CHANNEL_STEP, but never less than nine tenths of what is wanted."""
    nearest = max(CHANNEL_STEP, int(wanted + CHANNEL_STEP / 2) // CHANNEL_STEP * CHANNEL_STEP)
    return nearest if nearest >= 0.9 * wanted else nearest + CHANNEL_STEP


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    if stride == 1:
        return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return SamePaddedConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
