"""One training by all processes of a torchrun job: averaged gradients, and the state that process 0 has restored."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fscil.models.synchronised_batchnorm import SynchronisedBatchNorm
from fscil.runtime.distributed import broadcast_from_main, computed_by_main, world_size
from fscil.training.base_network import BaseNetwork

Next: TypeAlias = Callable[[Iterator[Tensor]], Tensor | None]


class _NextPart(nn.Module):
    """A module whose forward pass computes the next part of a step's loss, whatever of the network that needs.

    DistributedDataParallel averages the gradients of a module that is called; a step calls the network, or parts of it.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, parts: Iterator[Tensor]) -> Tensor | None:
        return next(parts, None)


def next_part(network: nn.Module) -> Next:
    """Computes the next part of a step's loss; passing that backward averages gradients over the processes.

    An objective's parts need not use all parameters; those that none has used get no gradient, as in one process.
    """
    if world_size() == 1:
        return lambda parts: next(parts, None)
    # Buffers are equal already: BatchNorm's statistics are those of all processes.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has a new name for this, which 2.6 does not know
        parallel = DistributedDataParallel(
            _NextPart(network),
            broadcast_buffers=False,
            find_unused_parameters=isinstance(network, BaseNetwork) and network.objective is not None,
        )
    return lambda parts: parallel(parts)


def batchnorm_of_all() -> AbstractContextManager[object]:
    """In this block BatchNorm normalises by the batches of all processes."""
    return SynchronisedBatchNorm() if world_size() > 1 else nullcontext()


def copy_training_from_main(
    network: nn.Module, optimizer: torch.optim.Optimizer, step: int, seconds: float
) -> tuple[int, float]:
    """Give every process the weights and the optimiser's state of process 0; returns its numbers."""
    if world_size() == 1:
        return step, seconds
    parameters = list(network.parameters())
    step, seconds, described = computed_by_main(
        lambda: (step, seconds, [_shapes(optimizer.state[one]) for one in parameters])
    )
    broadcast_from_main(network.state_dict().values())
    for parameter, shapes in zip(parameters, described, strict=True):
        state = optimizer.state[parameter]
        for key, (shape, dtype, device) in shapes.items():
            if key not in state:  # in the parameter's own memory layout, where it has its shape
                like = torch.zeros_like(parameter, dtype=dtype) if shape == parameter.shape else None
                state[key] = torch.zeros(shape, dtype=dtype, device=device) if like is None else like
            broadcast_from_main([state[key]])
    return step, seconds


def _shapes(state: Mapping[str, object]) -> dict[str, tuple[tuple[int, ...], torch.dtype, str]]:
    """Of the tensors in an optimiser's state of one parameter."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return {key: (tuple(value.shape), value.dtype, value.device.type) for key, value in tensors.items()}
