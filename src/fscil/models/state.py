"""State dicts: loading with an error that says what does not fit, and several modules in one dict by prefix."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fscil.errors import StoreError

PLAIN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool})


def load_state(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """load_state_dict, with an error that says what does not fit or is not finite."""
    require_same_shapes(module, state, source)
    for name, value in state.items():
        if value.dtype not in PLAIN or not value.isfinite().all():
            raise StoreError(f"{source}: {name} has numbers that are not finite or of another type. Restore it.")
    module.load_state_dict(state)


def require_same_shapes(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """A StoreError that names the first tensor that does not fit."""
    own = module.state_dict()
    wrong = [
        name
        for name in {**own, **state}
        if name not in own or name not in state or own[name].shape != state[name].shape
    ]
    if wrong:
        first = wrong[0]
        shapes = [tuple(each[first].shape) if first in each else "absent" for each in (state, own)]
        raise StoreError(
            f"{source} is of another architecture: {len(wrong)} tensors differ (first: {first}, {shapes[0]} there, "
            f"{shapes[1]} here). Use the model settings it was made with."
        )


def with_prefix(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """The state of a module under `prefix.name`, copied to the host."""
    return {f"{prefix}.{name}": value.detach().cpu().clone() for name, value in module.state_dict().items()}


def of_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state under `prefix.`, with the prefix removed."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def same_state(module: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """Whether a module holds exactly these values."""
    own = module.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[name].cpu(), state[name].cpu()) for name in own)
