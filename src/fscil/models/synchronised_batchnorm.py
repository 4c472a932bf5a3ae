"""BatchNorm over the batches of all processes of a job, on every device; torch's own is for GPUs alone."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fscil.runtime.distributed import all_gather, all_reduce_sum


class SynchronisedBatchNorm(TorchFunctionMode):
    """In its block, BatchNorm in training normalises by mean and variance of what all processes pass through it.

    It replaces the function that BatchNorm modules call, so that modules, their names and their state stay as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        # What torch.compile traces keeps the process group, and with it threads, until the process ends.
        self._batch_norm = torch.compiler.disable(synchronised_batch_norm)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def synchronised_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As torch.nn.functional.batch_norm, (n, channels, …) -> the same, where n is over all processes."""
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    output, mean, variance, count = _Normalise.apply(input, weight, bias, eps)  # type: ignore[no-untyped-call]
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = variance * (count / (count - 1).clamp_min(1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    normalised: Tensor = output
    return normalised


class _Normalise(torch.autograd.Function):
    """The normalisation, and its gradient: both need two sums per channel over all processes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x if x.dtype == torch.float64 else x.float()
        own_variance, own_mean = torch.var_mean(wide, _all_but_channels(x), correction=0) if len(x) else _nothing(wide)
        own_count = own_mean.new_full((1,), x.numel() / x.shape[1])
        # In float64, because the spread of the means is a difference of numbers that are nearly equal.
        found = torch.stack(all_gather(torch.cat([own_mean, own_variance, own_count]).double()))
        means, variances, counts = torch.tensor_split(found, (x.shape[1], 2 * x.shape[1]), 1)
        count = counts.sum(0)
        mean = (means * counts).sum(0) / count
        variance = ((variances + (means - mean).square()) * counts).sum(0) / count
        mean, variance = mean.to(wide.dtype), variance.to(wide.dtype)
        ctx.save_for_backward(x, weight, mean, variance.add(eps).rsqrt(), count)
        output = F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)
        ctx.mark_non_differentiable(mean, variance, count)
        return output, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, count = ctx.saved_tensors
        gradient = gradients[0].to(mean.dtype)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        normalised = (x.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        along = _all_but_channels(x)
        bias_gradient, weight_gradient = gradient.sum(along), (gradient * normalised).sum(along)
        means = all_reduce_sum(torch.stack([bias_gradient, weight_gradient])) / count.to(mean.dtype)
        factor = scale if weight is None else scale * weight.to(scale.dtype)
        normalised.mul_(means[1].view(shape)).add_(means[0].view(shape))
        input_gradient = torch.sub(gradient, normalised).mul_(factor.view(shape)).to(x.dtype)
        if weight is None:
            return input_gradient, None, None, None
        return input_gradient, weight_gradient.to(weight.dtype), bias_gradient.to(weight.dtype), None


def _nothing(x: Tensor) -> tuple[Tensor, Tensor]:
    """Variance and mean of a process that has no row: they get no weight, but must be numbers."""
    return x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]
