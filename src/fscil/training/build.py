"""What a recipe's settings mean: the backbone, the test preprocessing and the training views it asks for."""

import math
from dataclasses import asdict
from typing import Any

import torch

from fscil.augment import Views
from fscil.config import Config, ModelConfig
from fscil.errors import ConfigError
from fscil.models import Backbone, build_backbone, native_statistics
from fscil.preprocess import STATISTICS, Preprocess

SIZE_STEP = 4  # pixels by which views grow: a new size costs the first step some time


def backbone_of(config: Config, blank: bool = False) -> Backbone:
    """The network a recipe names, initialised from its seed or its weights; blank where others are to be loaded."""
    model = config.model
    options = architecture(model)
    wants_weights = model.init == "pretrained" and not model.weights and not blank
    if "pretrained" in options:
        options["pretrained"] = wants_weights
    elif wants_weights:
        raise ConfigError(
            "this recipe starts from ImageNet weights, and fscil cannot ship those of ResNet. Either give a file with "
            "--set model.weights=resnet18.pth (torchvision's names, .pth or .safetensors), or use the network whose "
            "weights come with the pretrained extra: --set model.backbone=efficientnet_lite0 (on a CPU also --set "
            "train.batch=32: the recipe's 512 images of 224 pixels take some 90 GB)"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        return build_backbone(model.backbone, weights=None if blank else model.weights or None, **options)


def architecture(model: ModelConfig) -> dict[str, Any]:
    """The options of build_backbone that decide the shapes of its weights; pretrained ones are not asked for."""
    if model.backbone in ("resnet18", "resnet10"):
        return {"stem": model.stem, "width": model.width}
    return {} if model.backbone == "resnet20" else {"pretrained": False}


def preprocess_of(config: Config) -> Preprocess:
    """How test images reach the network of this recipe."""
    if config.data.statistics == "auto":
        native = native_statistics(config.model.backbone) if config.model.init == "pretrained" else None
        mean, std = native or STATISTICS["cifar10"]
    else:
        mean, std = STATISTICS[config.data.statistics]
    return Preprocess(config.views.size, config.test.resize, config.test.interpolation, mean, std)


def views_of(config: Config, progress: float = 1.0) -> Views:
    """The views of a batch after this share of training, normalised as test images are."""
    settings = asdict(config.views)
    first, grown = settings.pop("first_size"), settings.pop("grown")
    if first is not None and progress < grown:
        missing = (config.views.size - first) * (1 - progress / grown)
        settings["size"] = max(first, config.views.size - SIZE_STEP * math.ceil(missing / SIZE_STEP))
    preprocess = preprocess_of(config)
    return Views(**settings, mean=preprocess.mean, std=preprocess.std)
