"""Checkpoints of a training in its run folder, weights and momentum, and the state with the best validation score."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fscil.errors import StoreError
from fscil.models.state import load_state, of_prefix
from fscil.training.run_folder import Run


@dataclass(frozen=True)
class Best:
    """The state with the highest validation score so far."""

    score: float
    state: dict[str, Tensor]


class Checkpoints:
    """The checkpoints of one training. Without a run folder only the best state is kept, in memory."""

    def __init__(self, run: Run | None, images: str, minutes: float) -> None:
        """images: a fingerprint of the training images. minutes: between two checkpoints."""
        self._run, self._images, self._interval = run, images, 60 * minutes
        self._saved = time.monotonic()
        self._best: Best | None = None

    @property
    def due(self) -> bool:
        return self._run is not None and time.monotonic() - self._saved > self._interval

    def save(self, network: nn.Module, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
        if not self._run:
            return
        tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
        for name, parameter in network.named_parameters():
            for key, value in optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    tensors[f"{_stored_as(key)}.{name}"] = value
        self._run.save("checkpoint", tensors, {"step": step, "seconds": seconds, "images": self._images})
        self._saved = time.monotonic()

    def restore(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
        """Load what was saved, if anything; returns the steps already done and the seconds they took."""
        if not self._run:
            return 0, 0.0
        found = self._run.load("checkpoint")
        if found is None:
            self._run.rewind(0)
            return 0, 0.0
        tensors, about = found
        if about.get("images", self._images) != self._images:
            raise StoreError(
                f"{self._run.folder}: the training images are not those this run began with. Restore them, or start "
                f"anew with another --out."
            )
        load_state(network, of_prefix("network", tensors), f"the checkpoint in {self._run.folder}")
        _restore_optimizer(network, optimizer, tensors)
        best = self._run.load("best")
        self._best = Best(best[1]["score"], best[0]) if best else None
        self._run.rewind(about["step"])
        return int(about["step"]), float(about["seconds"])

    def keep_if_best(self, network: nn.Module, score: float, step: int) -> None:
        """Keep the network's state if its validation score is higher than all before."""
        if self._best and score <= self._best.score:
            return
        state = {name: value.detach().clone() for name, value in network.state_dict().items()}
        if self._run:
            self._run.save("best", state, {"score": score, "step": step})
        self._best = Best(score, state)

    def load_best(self, network: nn.Module) -> None:
        """Give the network the best state, where there were validation scores."""
        if self._best:
            network.load_state_dict(self._best.state)


def _stored_as(key: str) -> str:
    """The prefix of a part of an optimiser's state. Earlier versions knew momentum alone."""
    return "momentum" if key == "momentum_buffer" else f"optimizer:{key}"


def _restore_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """In the parameters' own memory layout, so that the arithmetic continues to the same bits."""
    parameters = dict(network.named_parameters())
    for stored, value in tensors.items():
        kind, _, name = stored.partition(".")
        if name not in parameters or not kind.startswith(("momentum", "optimizer:")):
            continue
        key = "momentum_buffer" if kind == "momentum" else kind.removeprefix("optimizer:")
        like = parameters[name]
        if value.shape == like.shape:
            value = torch.empty_like(like, dtype=value.dtype).copy_(value)
        optimizer.state[like][key] = value
