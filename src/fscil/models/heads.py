"""Heads on top of a backbone during training: a projection, and a cosine classifier."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Projection(nn.Sequential):
    """Features (n, in_features) -> (n, out), a two-layer MLP; discarded after base training.

    The linear layers have no bias: the BatchNorm behind each would subtract it again.
    """

    def __init__(self, in_features: int, hidden: int = 2048, out: int = 2048) -> None:
        super().__init__(
            nn.Linear(in_features, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, out, bias=False),
            nn.BatchNorm1d(out, affine=False),
        )


class CosineHead(nn.Linear):
    """Features (n, in_features) -> cosines (n, classes) with one weight vector per class."""

    def __init__(self, in_features: int, classes: int) -> None:
        super().__init__(in_features, classes, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # half precision is too coarse for a scaled cosine
            return F.linear(F.normalize(features.float()), F.normalize(self.weight))
