"""The type of all backbones: named modules in sequence, from images to one feature vector each."""

from collections import OrderedDict

from torch import nn


class Backbone(nn.Sequential):
    """Normalised images (n, 3, h, w) -> features (n, feature_dim). Its parts are named as in published weights."""

    def __init__(self, feature_dim: int, **parts: nn.Module) -> None:
        super().__init__(OrderedDict(parts))
        self.feature_dim = feature_dim


def initialise_convolutions(module: nn.Module) -> None:
    """He et al.'s normal initialisation by fan-out; BatchNorm is initialised as the identity by torch."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


def parameter_count(module: nn.Module) -> int:
    """How many numbers it learns (BatchNorm's running statistics are not among them)."""
    return sum(parameter.numel() for parameter in module.parameters())
