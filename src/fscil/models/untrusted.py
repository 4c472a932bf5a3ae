"""A network whose description and weights come from somebody else: what is checked before it is built."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fscil.errors import ConfigError, FscilError, StoreError
from fscil.models.backbone import Backbone
from fscil.models.state import require_same_shapes

NAME = re.compile(r"[\w.+-]{1,64}")
MAX_NUMBER = 2**20
MAX_ACTIVATION = 2**25  # numbers in the largest tensor that one image makes on its way through the network: 128 MB


def require_harmless(backbone: str, options: Mapping[str, Any]) -> None:
    """Options are switches, numbers and names; no file of weights, and none from the network or a package.

    Raises
    ------
    ConfigError
        For any other. Whether the backbone has these options, building it tells.
    """
    for option, value in options.items():
        if option == "weights" or (option == "pretrained" and value is not False):
            raise ConfigError(
                f'{backbone}: the option "{option}" is not read from a model: its weights are in its own file.'
            )
        harmless = (
            NAME.fullmatch(value)
            if isinstance(value, str)
            else isinstance(value, bool | int | float) and math.isfinite(value) and abs(value) <= MAX_NUMBER
        )
        if not harmless:
            raise ConfigError(f'{backbone}: the option "{option[:40]}" of a model is neither a number nor a name.')


def require_fitting(build: Callable[[], Backbone], weights: Mapping[str, Tensor], size: int, source: str) -> None:
    """A StoreError if the weights are of another architecture, or an image of this size takes too much memory.

    On torch's "meta" device, which computes shapes and nothing else. A backbone of another package that does not work
    there is not checked.
    """
    try:
        with torch.device("meta"), torch.no_grad():
            backbone = build().eval()
            require_same_shapes(backbone, weights, source)
            largest = _largest_activation(backbone, torch.empty(1, 3, size, size))
    except FscilError:
        raise
    except Exception:
        return
    if largest > MAX_ACTIVATION:
        raise StoreError(
            f"{source}: its network takes {largest * 4 >> 20} MB for a single layer of one photo of {size} pixels; at "
            f"most {MAX_ACTIVATION * 4 >> 20} are allowed."
        )


def _largest_activation(network: nn.Module, images: Tensor) -> int:
    """Numbers in the largest tensor that a part of the network returns."""
    largest = images.numel()

    def look(_part: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.numel())

    hooks = [part.register_forward_hook(look) for part in network.modules()]
    try:
        network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return largest
