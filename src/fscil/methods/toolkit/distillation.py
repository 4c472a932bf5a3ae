"""What a network knew before a session: a frozen copy of it, and a loss that holds new answers to the old ones."""

from copy import deepcopy

from torch import Tensor, nn
from torch.nn import functional as F


def frozen(*parts: nn.Module) -> nn.Sequential:
    """Copies of these, one behind the other, that learn no more."""
    return nn.Sequential(*deepcopy(parts)).requires_grad_(False).eval()


def distillation(scores: Tensor, taught: Tensor, temperature: float = 2.0) -> Tensor:
    """(n, k) logits, now and before -> mean divergence of their softened softmaxes (Hinton et al., 2015).

    Times the squared temperature, so that the gradient is of the same size at every temperature.
    """
    now, before = F.log_softmax(scores / temperature, 1), F.log_softmax(taught / temperature, 1)
    return temperature**2 * F.kl_div(now, before, reduction="batchmean", log_target=True)
