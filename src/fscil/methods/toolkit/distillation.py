"""Knowledge distillation: a frozen copy of a network as the teacher, and the loss between its scores and new ones."""

from copy import deepcopy

from torch import Tensor, nn
from torch.nn import functional as F


def frozen(*parts: nn.Module) -> nn.Sequential:
    """Copies of these modules, in sequence, in eval mode and without gradients."""
    return nn.Sequential(*deepcopy(parts)).requires_grad_(False).eval()


def distillation(scores: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """(n, k) logits of student and teacher -> mean KL divergence of their softened softmaxes (Hinton et al., 2015).

    Times the squared temperature, so that the gradient is of the same size at every temperature.
    """
    student, target = F.log_softmax(scores / temperature, 1), F.log_softmax(teacher / temperature, 1)
    return temperature**2 * F.kl_div(student, target, reduction="batchmean", log_target=True)
