"""One side of a comparison in a process of its own, which works when asked and waits otherwise.

    sides = {side: Worker(side, "training_step", width=16, batch=128, steps=3) for side in ("ours", "baselines")}
    rounds = interleaved(sides, rounds=5)

A side is a function of speed_ours.py, speed_baselines.py or speed_accuracy.py: it prepares and warms up, and returns
what one round does. A round answers with figures, "seconds" among them. The processes branch off one that has loaded
the libraries and done nothing else; only ours then asks for our allocator setting.
"""

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from statistics import median
from types import TracebackType
from typing import Any, TypeAlias

Figures: TypeAlias = dict[str, float]

LIBRARIES = (
    "torch.utils.data",
    "torch._dynamo",
    "PIL.ImageEnhance",
    "fscil.experiments.run",
)  # dynamo: by any optimizer


@cache
def _nursery() -> ForkServerContext:
    for key in list(os.environ):
        if key.startswith("MALLOC_") or key == "GLIBC_TUNABLES":  # would be an allocator setting for the baselines
            del os.environ[key]
    context = get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    return context


class Worker:
    """A side; entering starts it and waits until it is ready, leaving ends it."""

    def __init__(self, module: str, side: str, **options: Any) -> None:
        self._side = (f"speed_{module}", side, options)

    def __enter__(self) -> "Worker":
        self._pipe, far_end = _nursery().Pipe()
        self._process = _nursery().Process(target=_serve, args=(far_end, *self._side))
        self._process.start()
        far_end.close()
        try:
            self._answer()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def round(self) -> Figures:
        self._pipe.send("round")
        return self._answer()

    def _answer(self) -> Figures:
        try:
            figures: Figures = self._pipe.recv()
        except EOFError:
            self._process.join()
            why = "was killed: is there memory enough?" if self._process.exitcode == -signal.SIGKILL else "see above."
            module, side, options = self._side
            raise RuntimeError(f"{module}.{side} with {options} failed: {why}") from None
        return figures

    def _end(self) -> None:
        """By itself where it waits for a next round, soon where it is in the middle of one."""
        self._pipe.close()
        for stop in (self._process.terminate, self._process.kill):
            self._process.join(timeout=3)
            if self._process.is_alive():
                stop()
        self._process.join()


def _serve(pipe: Connection, module: str, side: str, options: dict[str, Any]) -> None:
    os.setsid()  # Ctrl-C is for the process that asks, which then ends this one
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # so that what it has started is cleared away
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):  # nobody asks any more
        work = getattr(import_module(module), side)(**options)
        pipe.send({})
        while pipe.recv():
            pipe.send(work())


def interleaved(sides: Mapping[str, Worker], rounds: int) -> dict[str, list[Figures]]:
    """A round of each in turn, and again: what else the machine does falls on all sides alike."""
    with ExitStack() as stack:
        ready = {name: stack.enter_context(worker) for name, worker in sides.items()}
        found: dict[str, list[Figures]] = {name: [] for name in ready}
        for _ in range(rounds):
            for name, worker in ready.items():
                found[name].append(worker.round())
    return found


def middle(rounds: list[Figures], name: str = "seconds") -> float:
    return median(each[name] for each in rounds)
