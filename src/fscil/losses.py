"""Angular penalty losses: cross-entropy on cosines, with a margin the true class must win by."""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fscil.runtime.registry import Registry


def angular_penalty(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 0.4) -> Tensor:
    """CosFace (equation 4). cosine: (batch, classes) in [-1, 1]; target: (batch,). Returns the mean loss."""
    handicap = cosine.new_full((len(target), 1), -margin)
    return F.cross_entropy(scale * cosine.scatter_add(1, target[:, None], handicap), target)


def arcface(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 0.4) -> Tensor:
    """The margin is added to the angle: cos(theta + m). Beyond pi - m, where that would rise, it goes on downhill."""
    own = cosine.gather(1, target[:, None])
    sine = (1 - own.square()).clamp_min(1e-12).sqrt()
    turned = own * math.cos(margin) - sine * math.sin(margin)
    penalised = torch.where(own > -math.cos(margin), turned, own - margin * math.sin(margin))
    return F.cross_entropy(scale * cosine.scatter(1, target[:, None], penalised), target)


def sphereface(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 2.0) -> Tensor:
    """The angle is multiplied by the margin: psi(theta) = (-1)^k cos(m theta) - 2k, k = floor(m theta / pi)."""
    own = cosine.gather(1, target[:, None]).clamp(-1 + 1e-6, 1 - 1e-6)
    angle = margin * own.acos()
    fold = (angle.detach() / math.pi).floor()
    penalised = (1 - 2 * (fold % 2)) * angle.cos() - 2 * fold
    return F.cross_entropy(scale * cosine.scatter(1, target[:, None], penalised), target)


def softmax(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 0.0) -> Tensor:
    """Plain cross-entropy of scaled scores; equation 3 is scale 1. The margin only matches the others' signature."""
    return F.cross_entropy(scale * cosine, target)


# cosine (batch, classes), target (batch,), scale, margin -> the mean loss
Loss: TypeAlias = Callable[[Tensor, Tensor, float, float], Tensor]

LOSSES: Registry[Loss] = Registry(
    "loss",
    "fscil.losses",
    {"cosface": angular_penalty, "arcface": arcface, "sphereface": sphereface, "softmax": softmax},
)
