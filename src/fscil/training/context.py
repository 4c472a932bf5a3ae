"""What trainings, methods and encoders share: the device, and whether progress is shown."""

from dataclasses import dataclass

import torch

from fscil.errors import TrainingError
from fscil.runtime import torchrun


@dataclass(frozen=True)
class Context:
    """The device to compute on, and whether progress is shown."""

    device: torch.device
    quiet: bool = False

    @classmethod
    def on(cls, name: str = "auto", quiet: bool = False) -> "Context":
        """By the name of a device: auto, cpu, cuda or cuda:N. Of the processes of a job one shows progress."""
        return cls(pick_device(name), quiet or not torchrun.is_main())


def pick_device(name: str = "auto") -> torch.device:
    """ "auto" takes CUDA where there is one; of several processes of a machine each takes a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and torch.cuda.is_available() and torchrun.world_size() > 1:
        return _own_gpu(name)
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise TrainingError(f"--device {name}: this machine has no usable CUDA device. Use --device cpu.")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, NotImplementedError, AssertionError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise TrainingError(f"--device {name}: no such device. Use auto, cpu or cuda.")
    return device


def _own_gpu(name: str) -> torch.device:
    place, count = torchrun.local_rank(), torch.cuda.device_count()
    if ":" in name:
        raise TrainingError(f"--device {name}: torchrun started several processes, and each has its own. Use cuda.")
    if place >= count:
        raise TrainingError(
            f"torchrun started process {place + 1} on a machine with {count} GPUs. Use --nproc-per-node {count}, or "
            f"--device cpu."
        )
    return torch.device("cuda", place)
