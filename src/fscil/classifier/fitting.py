"""From a folder of photos, or a finished run, to a network and a gallery of base classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fscil import data
from fscil.classifier.calibration import with_progress
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.finetuning import Say, finetune
from fscil.config import Config, flatten, load_recipe
from fscil.data import folder as folders
from fscil.data import photos
from fscil.data.images import Dataset, FilePixels, Images
from fscil.data.photos import Source
from fscil.errors import DataError
from fscil.gallery import Gallery, Photo, balanced_indices, class_name
from fscil.runtime.files import load_tensors
from fscil.runtime.text import first_few
from fscil.training.build import backbone_of, base_images, dataset_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

FEWEST = 5  # photos with which a class takes part in training
FROM_SCRATCH = (  # a network small enough for a CPU
    *("model.backbone=resnet18", "model.stem=imagenet", "model.width=32", "model.init=scratch"),
    *("data.resize=128", "views.size=112", "loss.scale=16", "loss.margin_warmup=0.5"),
    *("train.epochs=60", "train.lr=0.05"),
)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a classifier is made of."""

    encoder: PhotoEncoder
    gallery: Gallery
    made: dict[str, Any]  # how, for the record


def recipe(from_scratch: bool = False, settings: Sequence[str] = ()) -> Config:
    return load_recipe("folder", [*(FROM_SCRATCH if from_scratch else ()), *settings])


def pretrained(device: torch.device) -> Fitted:
    """The pretrained network and no class at all."""
    config = recipe()
    encoder = PhotoEncoder(EncoderConfig.of(config), backbone_of(config), device)
    return Fitted(encoder, Gallery(encoder.dim), {"by": "pretrained"})


def from_run(run: Run, root: Path | None, shots: int, device: torch.device, quiet: bool) -> Fitted:
    """The network of a finished run, with the base classes of its data."""
    run.require_finished()
    config, recorded = run.config(), run.about().get("data")
    root = root or (Path(recorded) if recorded else None)
    encoder_config = EncoderConfig.of(config)
    stored = encoder_config.resize
    sized = replace(config.data, resize=stored.size, interpolation=stored.interpolation)
    dataset = dataset_of(replace(config, data=sized), root, quiet)
    protocol = protocol_of(config, dataset)
    base = base_images(dataset, protocol)
    names = [dataset.class_names[label] for label in protocol.seen(0)]
    encoder = PhotoEncoder.load(encoder_config, load_tensors(run.weights)[0], device, str(run.weights))
    gallery = _gallery(encoder, base, names, _originals(data.load(config.data.name, root)), shots, quiet, fewest=1)
    settings = flatten(config)
    settings.pop("protocol.order", None)  # names of classes, which may have to be forgotten
    return Fitted(encoder, gallery, {"by": "run", "run": str(run.folder.resolve()), "settings": settings})


def fit(
    root: Path,
    config: Config,
    shots: int,
    minutes: float | None,
    device: torch.device,
    say: Say,
    quiet: bool,
    work: Path | None,
) -> Fitted:
    """Train on the classes with enough photos, then describe them all. work: a run folder to stop and resume in."""
    raw = folders.whole(root)
    names = _names(raw)
    encoder_config = EncoderConfig.of(config)
    dataset = data.prepare(raw, encoder_config.resize, quiet=quiet)
    counts = [dataset.train.counts.get(label, 0) for label in range(len(names))]
    trained = [label for label, count in enumerate(counts) if count >= FEWEST]
    say(f"{root}: {len(dataset.train)} photos of {len(names)} classes")
    _say_few(say, [(name, count) for name, count in zip(names, counts, strict=True) if count < FEWEST])
    made: dict[str, Any] = {"by": "fit", "folder": str(root.resolve()), "photos": len(dataset.train)}
    if len(trained) < 2 or config.train.epochs == 0 or minutes == 0:
        if config.model.init == "scratch":
            raise DataError(
                f"{root}: training from nothing needs at least two classes with {FEWEST} photos each, and some time; "
                f"{len(trained)} have as many. Add photos, or start from the pretrained network."
            )
        few_classes = f"fewer than two classes have {FEWEST} photos: " if len(trained) < 2 else ""
        say(f"{few_classes}no training, the pretrained network is used as it is")
        backbone = backbone_of(config)
    else:
        base = dataset.train.of_classes(trained).relabel(trained)
        asked = {"folder": str(root.resolve()), "classes": [names[label] for label in trained], "photos": len(base)}
        backbone, record = finetune(config, base, minutes, Context(device, quiet), say, work, asked)
        made |= record
    encoder = PhotoEncoder(encoder_config, backbone, device)
    return Fitted(encoder, _gallery(encoder, dataset.train, names, _originals(raw), shots, quiet, FEWEST), made)


def _names(dataset: Dataset) -> list[str]:
    """As the gallery will call the classes: better to find a name that cannot be before training than after."""
    names = [class_name(name) for name in dataset.class_names]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DataError(f'two class folders are called "{name}", but for blanks. Rename or join them.')
    return names


def _say_few(say: Say, small: Sequence[tuple[str, int]]) -> None:
    if small:
        listed = first_few([f"{name} ({count})" for name, count in small], 12)
        say(
            f"{len(small)} classes have fewer than {FEWEST} photos: they take no part in training and are enrolled "
            f"afterwards from all they have: {listed}"
        )


def _originals(raw: Dataset) -> Callable[[Images, int], Source]:
    """What a prepared image was made of: a digest is of the full picture."""
    store = raw.train.pixels

    def original(images: Images, position: int) -> Source:
        if isinstance(store, FilePixels):
            return store.root / images.name(position)
        return np.asarray(images.pixels.read(images.rows[[position]])[0])

    return original


def _gallery(
    encoder: PhotoEncoder,
    images: Images,
    names: Sequence[str],
    original: Callable[[Images, int], Source],
    shots: int,
    quiet: bool,
    fewest: int,
) -> Gallery:
    """A class with enough photos is the mean of the `shots` nearest to its mean, any other of all it has."""
    sources = [original(images, position) for position in range(len(images))]
    found: list[Photo] = []
    for position, photo in enumerate(with_progress(encoder.photos(sources), len(sources), quiet)):
        if isinstance(photo, DataError):
            raise photo
        found.append(replace(photo, source=photos.name_of(images.name(position))))
    gallery = Gallery(encoder.dim)
    for label, name in enumerate(names):
        own = [found[position] for position in np.flatnonzero(images.labels == label)]
        if len(own) >= fewest:
            features = torch.stack([photo.feature for photo in own])
            nearest = [own[place] for place in balanced_indices(features, min(shots, len(own))).tolist()]
            gallery.enroll(name, nearest, "base")
        else:
            gallery.enroll(name, own, "enrolled")
    return gallery
