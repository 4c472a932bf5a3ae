"""Angular penalty losses: cross-entropy on cosines, with a margin by which the true class must win."""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fscil.runtime.registry import Registry


def angular_penalty(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 0.4) -> Tensor:
    """The angular penalty loss of ALICE (equation 4), which is CosFace: the margin is subtracted from the true cosine.

    Parameters
    ----------
    cosine
        (batch, classes) cosines of features and class vectors, in [-1, 1].
    target
        (batch,) true classes.
    scale
        Factor of the cosines before the softmax.
    margin
        Subtracted from the cosine of the true class.

    Returns
    -------
    Tensor
        The mean loss over the batch, a scalar.

    Examples
    --------
    >>> cosine, target = torch.tensor([[0.8, 0.6]]), torch.tensor([0])
    >>> angular_penalty(cosine, target, scale=10.0, margin=0.0)
    tensor(0.1269)
    >>> angular_penalty(cosine, target, scale=10.0, margin=0.4)  # 0.8 - 0.4 is less than 0.6
    tensor(2.1269)
    """
    handicap = cosine.new_full((len(target), 1), -margin)
    return F.cross_entropy(scale * cosine.scatter_add(1, target[:, None], handicap), target)


def arcface(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 0.4) -> Tensor:
    """The margin is added to the angle: cos(theta + m). Beyond pi - m, where that would rise, a line continues it."""
    own = cosine.gather(1, target[:, None])
    sine = (1 - own.square()).clamp_min(1e-12).sqrt()
    shifted = own * math.cos(margin) - sine * math.sin(margin)
    penalised = torch.where(own > -math.cos(margin), shifted, own - margin * math.sin(margin))
    return F.cross_entropy(scale * cosine.scatter(1, target[:, None], penalised), target)


def sphereface(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 2.0) -> Tensor:
    """The angle is multiplied by the margin: psi(theta) = (-1)^k cos(m theta) - 2k, k = floor(m theta / pi)."""
    own = cosine.gather(1, target[:, None]).clamp(-1 + 1e-6, 1 - 1e-6)
    angle = margin * own.acos()
    fold = (angle.detach() / math.pi).floor()
    penalised = (1 - 2 * (fold % 2)) * angle.cos() - 2 * fold
    return F.cross_entropy(scale * cosine.scatter(1, target[:, None], penalised), target)


def softmax(cosine: Tensor, target: Tensor, scale: float = 30.0, margin: float = 0.0) -> Tensor:
    """Cross-entropy of scaled scores; equation 3 is scale 1. The margin is ignored: it is part of the signature."""
    return F.cross_entropy(scale * cosine, target)


# cosine (batch, classes), target (batch,), scale, margin -> the mean loss
Loss: TypeAlias = Callable[[Tensor, Tensor, float, float], Tensor]

LOSSES: Registry[Loss] = Registry(
    "loss",
    "fscil.losses",
    {"cosface": angular_penalty, "arcface": arcface, "sphereface": sphereface, "softmax": softmax},
)
