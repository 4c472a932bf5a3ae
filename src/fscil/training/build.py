"""What a recipe builds: data set, sessions, backbone, test preprocessing and training views."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from fscil import data
from fscil.augment import Views
from fscil.config import Config, ModelConfig
from fscil.data import Dataset, Images, Resize
from fscil.errors import ConfigError
from fscil.models import Backbone, backbone_options, build_backbone, native_statistics
from fscil.preprocess import STATISTICS, Preprocess, SeveralCrops
from fscil.protocol import Protocol, fit_protocol
from fscil.runtime.seeding import seeded
from fscil.runtime.text import did_you_mean

LOOKED_AT = 24  # images whose size is taken for that of all
LEAST_OF_SIDE = 0.6  # of a test image's short side that must be in its crop; the paper's recipes have 0.87 and more
SIZE_STEP = 4  # pixels by which views grow: the first step of a new size is slow


def dataset_of(config: Config, root: Path | None, quiet: bool = False) -> Dataset:
    """The recipe's data set, decoded and stored at the recipe's size."""
    options = {"test_share": config.data.test_share} if config.data.name == "folder" else {}
    dataset = data.load(config.data.name, root, **options)
    return data.prepare(dataset, Resize(config.data.resize, config.data.interpolation), quiet=quiet)


def protocol_of(config: Config, dataset: Dataset) -> Protocol:
    """The recipe's sessions over this data set's classes."""
    wanted = config.protocol
    number = {normalize("NFC", name): label for label, name in enumerate(dataset.class_names)}
    order: list[int] = []
    for name in wanted.order:
        label = number.get(normalize("NFC", name))
        if label is None:
            near = did_you_mean(name, dataset.class_names)
            raise ConfigError(
                f'protocol.order: {dataset.name} has no class "{name}".{near} All names: fscil data '
                f"{dataset.name} {'' if dataset.name == 'glyphs' else '--root DIR '}--classes"
            )
        if label in order:
            raise ConfigError(f'protocol.order names "{name}" twice: sessions must not overlap. Name each class once.')
        order.append(label)
    count = len(order) or len(number)
    sizes = (wanted.base_classes, wanted.way, wanted.sessions, wanted.shots[0])
    return fit_protocol(count, *sizes, order or None, wanted.ways)


def base_images(dataset: Dataset, protocol: Protocol) -> Images:
    """All training images of the base classes, labelled in order of arrival."""
    return dataset.train.select(protocol.samples(dataset.train.labels, 0)).relabel(protocol.seen(0))


def backbone_of(config: Config, blank: bool = False) -> Backbone:
    """The recipe's backbone, initialised from its seed or its weights; blank: without them, for others to be loaded."""
    model = config.model
    options = architecture(model)
    wants_weights = model.init == "pretrained" and not model.weights and not blank
    if "pretrained" in options:
        options["pretrained"] = wants_weights
    elif wants_weights:
        raise ConfigError(
            f"this recipe starts from ImageNet weights, and fscil has none for {model.backbone}. Either give a file "
            "with --set model.weights=resnet18.pth (torchvision's names, .pth or .safetensors), or use the network "
            "whose weights come with the pretrained extra: --set model.backbone=efficientnet_lite0 (on a CPU also "
            "--set train.batch=32: the recipe's 512 images of 224 pixels take some 90 GB)"
        )
    if "initialisation" in backbone_options(model.backbone):  # networks of timm and plugins initialise themselves
        options["initialisation"] = model.initialisation
    with seeded(config.train.seed):
        return build_backbone(model.backbone, weights=None if blank else model.weights or None, **options)


def architecture(model: ModelConfig) -> dict[str, Any]:
    """The options of build_backbone that determine the network, and no pretrained weights."""
    options: dict[str, Any] = {"stem": model.stem, "width": model.width, "pretrained": False}
    if model.backbone == "resnet20":  # always of its published width
        options = {}
    known = backbone_options(model.backbone)
    options = {name: value for name, value in options.items() if name in known}
    if not model.last_relu:  # left out otherwise: models written by earlier versions do not have it
        if "last_relu" not in known:
            raise ConfigError(f"model.last_relu = false: {model.backbone} has no such option; the ResNets have.")
        options["last_relu"] = False
    return options


def preprocess_of(config: Config) -> Preprocess:
    """The preprocessing of test images."""
    if config.data.statistics == "auto":
        native = native_statistics(config.model.backbone) if config.model.init == "pretrained" else None
        mean, std = native or STATISTICS["cifar10"]
    else:
        mean, std = STATISTICS[config.data.statistics]
    return Preprocess(config.views.size, config.test.resize, config.test.interpolation, mean, std)


def require_whole_test_images(config: Config, images: Images) -> None:
    """Raise where the crop of test images, which is as large as the views, has lost most of the image.

    As when views.size is changed alone: test images stay as large as they were, and the crop shrinks.
    """
    places = np.unique(np.linspace(0, len(images) - 1, LOOKED_AT).astype(np.int64))
    require_whole_crop(config, int(np.median(images.batch(places)[1].min(axis=1))))


def require_whole_crop(config: Config, stored: int | tuple[int, int] | None) -> None:
    """The same for images that are stored at this size: their short side, or height and width; None: not known."""
    short = config.test.resize or (min(stored) if isinstance(stored, tuple) else stored)
    size = config.views.size
    if short is not None and size < LEAST_OF_SIDE * short:
        raise ConfigError(
            f"views.size = {size}: of test images of {short} pixels only the central {size} x {size} would be seen. "
            f"Give the size to which they are resized before that as well: --set test.resize={size * 8 // 7}"
        )


def evaluation_crops_of(config: Config) -> SeveralCrops:
    """The crops of a test image, and of an image that a class is learned from, whose features are averaged."""
    test = config.test
    if test.crops > 2 and (test.resize or 0) <= config.views.size:
        raise ConfigError(
            f"test.crops = {test.crops} takes crops from the corners, but images are not enlarged before they are "
            f"cropped to {config.views.size} pixels. Set test.resize to more than that, or test.crops to 1 or 2."
        )
    return SeveralCrops(preprocess_of(config), test.crops)


def views_of(config: Config, progress: float = 1.0) -> Views:
    """The training views at this fraction of training, normalised as test images are."""
    settings = asdict(config.views)
    first, grown, kind = settings.pop("first_size"), settings.pop("grown"), settings.pop("kind")
    if first is not None and progress < grown:
        smaller = (config.views.size - first) * (1 - progress / grown)
        settings["size"] = max(first, config.views.size - SIZE_STEP * math.ceil(smaller / SIZE_STEP))
    preprocess = preprocess_of(config)
    crops = preprocess if kind == "crops" else None
    return Views(**settings, crops=crops, mean=preprocess.mean, std=preprocess.std)
