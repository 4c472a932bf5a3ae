"""The type of all backbones: named modules in sequence, from images to one feature vector each."""

from collections import OrderedDict
from typing import Literal, TypeAlias

from torch import nn

from fscil.errors import ConfigError

Initialisation: TypeAlias = Literal["kaiming", "torch"]


class Backbone(nn.Sequential):
    """Normalised images (n, 3, h, w) -> features (n, feature_dim). Its parts are named as in published weights."""

    def __init__(self, feature_dim: int, **parts: nn.Module) -> None:
        super().__init__(OrderedDict(parts))
        self.feature_dim = feature_dim


def initialise_convolutions(module: nn.Module, kind: Initialisation) -> None:
    """kaiming: He et al.'s normal initialisation by fan-out; torch: as torch has initialised them.

    BatchNorm is initialised as the identity by torch.
    """
    if kind == "torch":
        return
    if kind != "kaiming":
        raise ConfigError(f'Convolutions are initialised by "kaiming" or "torch", not "{kind}".')
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


def last_block(backbone: Backbone) -> list[nn.Parameter]:
    """The parameters from the last residual block on; all of them where the network is not made of stages.

    Stages are the children of type nn.Sequential, in this package's networks as in most of timm's.
    """
    children = list(getattr(backbone, "network", backbone).children())
    stages = [place for place, child in enumerate(children) if isinstance(child, nn.Sequential) and len(child)]
    if not stages:
        return list(backbone.parameters())
    last = children[stages[-1]]
    assert isinstance(last, nn.Sequential)
    parts = [last[-1], *children[stages[-1] + 1 :]]
    return [parameter for part in parts for parameter in part.parameters()]


def parameter_count(module: nn.Module) -> int:
    """How many numbers it learns (BatchNorm's running statistics are not among them)."""
    return sum(parameter.numel() for parameter in module.parameters())
