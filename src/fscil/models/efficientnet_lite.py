"""EfficientNet-lite0: an EfficientNet without squeeze-and-excite and swish; 1280 features, 3.4 million parameters."""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from fscil.models.backbone import Backbone, initialise_convolutions

# Expansion, channels, blocks, stride of the first block, kernel.
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
STEM_CHANNELS = 32
FEATURES = 1280


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


def efficientnet_lite0() -> Backbone:
    """With random weights; the underscored names are those of the published ones."""
    blocks = []
    inputs = STEM_CHANNELS
    for expansion, outputs, depth, stride, kernel in STAGES:
        for place in range(depth):
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
    initialise_convolutions(backbone)
    return backbone


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    if stride == 1:
        return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return SamePaddedConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
