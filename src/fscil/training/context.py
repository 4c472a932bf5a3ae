"""What trainings, methods and encoders share: the device, and whether progress is shown."""

from dataclasses import dataclass

import torch

from fscil.errors import TrainingError


@dataclass(frozen=True)
class Context:
    """The device to compute on, and whether progress is shown."""

    device: torch.device
    quiet: bool = False

    @classmethod
    def on(cls, name: str = "auto", quiet: bool = False) -> "Context":
        """By the name of a device: auto, cpu, cuda or cuda:N."""
        return cls(pick_device(name), quiet)


def pick_device(name: str = "auto") -> torch.device:
    """ "auto" takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
