"""Weights from untrusted files: only tensors are read, and they must fit by name and shape."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fscil.errors import ConfigError
from fscil.models.backbone import Backbone
from fscil.models.efficientnet_lite import VERSIONS, efficientnet_lite
from fscil.models.resnet import Stem, resnet10, resnet18, resnet20
from fscil.runtime.files import load_tensors
from fscil.runtime.text import first_few

CLASSIFIERS = ("fc.", "_fc.", "classifier.", "head.", "linear.")
SAVE_ADVICE = "Save one with torch.save(model.state_dict(), FILE) or as .safetensors."
WRAPPERS = ("module.", "network.")  # of DataParallel, and of our own round a timm network


def load_weights(module: nn.Module, path: str | Path, label: str) -> None:
    """Fill module, called label in messages, from a .safetensors file or a state dict saved by torch.

    A classifier in the file is ignored. Anything else that is missing, unexpected or of another shape is an error.
    """
    path = Path(path).expanduser()  # no shell expands the ~ of model.weights=~/file
    expected = module.state_dict()
    found = {
        key: tensor for key, tensor in read_weights(path).items() if key in expected or not key.startswith(CLASSIFIERS)
    }
    misfits = _misfits(expected, found)
    if misfits:
        fitting = _fitting_architecture(found)
        advice = f"It fits {fitting}." if fitting else "Give a file saved from this architecture."
        raise ConfigError(f"{path}: these weights do not fit {label}: {'; '.join(misfits)}. {advice}")
    module.load_state_dict(found, strict=False)  # strict but for BatchNorm's counter, see _misfits


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, without the prefixes and wrappers that training programs add."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of weights.")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not _is_state_dict(content):
        raise ConfigError(f"{path}: not a state dict, which maps names to tensors. {SAVE_ADVICE}")
    tensors = {}
    for key, tensor in content.items():
        for wrapper in WRAPPERS:
            key = key.removeprefix(wrapper)
        tensors[key] = tensor
    return tensors


def _is_state_dict(content: Any) -> TypeGuard[Mapping[str, Tensor]]:
    return isinstance(content, Mapping) and all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            if "sha256" not in (file.metadata() or {}):
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: not a whole safetensors file ({error}). Copy or download it again.") from error
    return load_tensors(path)[0]  # written by fscil: its checksum must be right too


def _read_pickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"it wants to call {forbidden[1]}" if forbidden else "it is no plain state dict"
        raise ConfigError(
            f"{path}: refused: {what}, and a pickle that holds more than tensors may run any program. {SAVE_ADVICE}"
        ) from None
    # torch.load raises almost any exception on files that are no checkpoint, or an incomplete one.
    except Exception as error:
        raise ConfigError(
            f"{path}: not a whole PyTorch file ({type(error).__name__}: {error}). Copy or download it again."
        ) from error


def _misfits(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Why found cannot be loaded, one phrase per kind of reason; nothing if it can."""
    # Files older than BatchNorm's counter of batches, torchvision's among them, lack it; nothing here uses it.
    missing = [key for key in expected if key not in found and not key.endswith(".num_batches_tracked")]
    unexpected = [key for key in found if key not in expected]
    misshaped = [
        f"{key} is {_shape(found[key])} instead of {_shape(expected[key])}"
        for key in expected
        if key in found and found[key].shape != expected[key].shape
    ]
    reasons = {"missing": missing, "unexpected": unexpected, "of another shape": misshaped}
    return [f"{len(names)} {reason} ({first_few(names)})" for reason, names in reasons.items() if names]


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"


def _fitting_architecture(found: Mapping[str, Tensor]) -> str | None:
    """The backbone these tensors were saved from, where it is one of ours."""
    candidates: dict[str, Backbone] = {}
    with torch.device("meta"):  # shapes only: no memory, no random numbers
        candidates |= {version: efficientnet_lite(version) for version in VERSIONS}
        conv1 = found.get("conv1.weight")
        if conv1 is not None and conv1.ndim == 4:
            width = len(conv1)
            for build in (resnet18, resnet10):
                for stem in get_args(Stem):
                    candidates[f"{build.__name__}({stem=}, {width=})"] = build(stem, width)
            candidates[f"resnet20(width={width})"] = resnet20(width)
    return next((name for name, candidate in candidates.items() if not _misfits(candidate.state_dict(), found)), None)
