"""What the processes of a torchrun job tell each other. Alone, every function returns what it was given.

All processes must call these in the same order. Numbers and texts travel by gloo on the hosts, tensors on a GPU by
NCCL.
"""

import gc
import importlib
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fscil.errors import FscilError, OtherProcessError, TrainingError
from fscil.runtime import torchrun

T = TypeVar("T")

WAIT = timedelta(hours=1)  # for the slowest: one process of a machine may decode a data set while the others wait
LOST = ("onnection closed by peer", "onnection reset", "roken pipe", "onnection refused", "imed out", "NCCL")

_joined = False  # not torch's own state: the processes of another program that uses fscil do not share its work


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """In this block the processes of the job share their work; a lost one is a TrainingError of the others."""
    global _joined
    if torchrun.world_size() == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        _connect("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        _joined = True
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(sign in str(error) for sign in LOST):
            _ignore_sigterm()
            raise TrainingError(
                "another process of this job has ended or cannot be reached, so this one cannot go on. Why it ended "
                "stands above, if it could say so. Nothing before the last checkpoint is lost: torchrun --max-restarts "
                "continues from it by itself, and so does the same command with --resume."
            ) from error
        raise
    else:
        gc.collect()  # whatever still holds the group would keep its threads alive
        dist.destroy_process_group()  # not after a failure: it would wait for processes that are gone
    finally:
        _joined = False


def _connect(backend: str) -> None:
    """By torchrun's store, under the number of the attempt: the addresses of the one before may still be in there."""
    # The functions of this module have the group of all processes as a default value, as it is when the module is first
    # imported, which DistributedDataParallel does. Imported before there is a group, it keeps none: one that outlives
    # destroy_process_group still has threads when the interpreter ends, and torch then may abort a process that has
    # done its work ("terminate called without an active exception").
    importlib.import_module("torch.distributed.nn.functional")
    store, own, count = next(rendezvous("env://", timeout=WAIT))
    store = PrefixStore(f"fscil/{torchrun.attempt()}", store)
    dist.init_process_group(backend, store=store, rank=own, world_size=count, timeout=WAIT)


def _ignore_sigterm() -> None:
    """torchrun ends the processes that are left by it; this one ends anyway, and must be able to say why."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def world_size() -> int:
    return dist.get_world_size() if _joined else 1


def rank() -> int:
    return dist.get_rank() if _joined else 0


def share(total: int) -> slice:
    """The rows of `total` that are this process's: each has one owner, and no two shares differ by more than one."""
    own, count = rank(), world_size()
    return slice(total * own // count, total * (own + 1) // count)


def all_reduce_max(*values: float) -> list[float]:
    """Of each value the largest that a process has. Of a truth value: 1.0 if it is true in any process."""
    if not _joined:
        return [*values]
    found = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.tolist()


def all_reduce_mean(value: Tensor) -> Tensor:
    """The mean of all processes' tensors."""
    return all_reduce_sum(value) / world_size() if _joined else value


def all_reduce_sum(value: Tensor) -> Tensor:
    """The sum of all processes' tensors."""
    if not _joined:
        return value
    total = value.contiguous().clone()
    dist.all_reduce(total)
    return total


def all_gather(value: Tensor) -> list[Tensor]:
    """The tensors of all processes, in the order of their numbers; they must have one shape."""
    if not _joined:
        return [value]
    found = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(world_size())]
    dist.all_gather(found, value.contiguous())
    return found


def gather_rows(own: Tensor, total: int) -> Tensor:
    """(V, k, …) with this process's share of rows -> (V, total, …) with those of all.

    A gradient finds its way back to the process that owns a row: it is the sum of those that all processes have for it.
    """
    gathered: Tensor = _GatherRows.apply(own, total) if _joined else own  # type: ignore[no-untyped-call]
    return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, total: int) -> Tensor:
        return _gathered(own, total)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return all_reduce_sum(gradient)[:, share(gradient.shape[1])], None


def _gathered(own: Tensor, total: int) -> Tensor:
    most = -(-total // world_size())
    padded = own.new_zeros((own.shape[0], most, *own.shape[2:]))
    padded[:, : own.shape[1]] = own
    counts = [total * (place + 1) // world_size() - total * place // world_size() for place in range(world_size())]
    return torch.cat([part[:, :count] for part, count in zip(all_gather(padded), counts, strict=True)], 1)


def broadcast_from_main(tensors: Iterable[Tensor]) -> None:
    """Give each of these tensors the values that it has in process 0."""
    for tensor in tensors if _joined else ():
        values = tensor.detach().contiguous()
        dist.broadcast(values, 0)
        tensor.detach().copy_(values)


def computed_by_main(make: Callable[[], T]) -> T:
    """What the function returns in process 0, the only one that calls it; where it fails, it fails in all."""
    made: list[Any] = [None]
    with raise_in_all():
        if rank() == 0:
            made[0] = make()
    if _joined:
        dist.broadcast_object_list(made, 0)
    result: T = made[0]
    return result


def local_main_first(make: Callable[[], T]) -> T:
    """What the function returns; the first process of each machine calls it before the others, who find its files."""
    made: list[T] = []
    for first in (True, False):
        with raise_in_all():
            if (torchrun.local_rank() == 0 or not _joined) == first:
                made.append(make())
    return made[0]


@contextmanager
def raise_in_all() -> Iterator[None]:
    """What fails in this block in one process fails in all: process 0 says why, the others end without a word.

    Nothing in the block may wait for another process.
    """
    if not _joined:
        yield
        return
    problem: FscilError | None = None
    try:
        yield
    except FscilError as error:
        problem = error
    found: list[str | None] = [None] * world_size()
    dist.all_gather_object(found, None if problem is None else f"process {rank()} on {socket.gethostname()}: {problem}")
    if problem is not None and rank() == 0:
        raise problem
    if failed := [text for text in found if text]:
        raise TrainingError(failed[0]) if rank() == 0 else OtherProcessError(failed[0])
