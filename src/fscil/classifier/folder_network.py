"""The network for a folder of photos: as it is, or trained on them where held-out photos show that this helps."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fscil.classifier.base_gallery import encode_images, gallery_of_all
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.estimating import estimate
from fscil.classifier.finetuning import Say, TimeLimit, finetune
from fscil.classifier.fit_time import deciding_seconds
from fscil.config import Config
from fscil.data.images import Dataset
from fscil.errors import DataError, TrainingError
from fscil.gallery import Photo
from fscil.runtime.text import count, first_few
from fscil.training.build import backbone_of
from fscil.training.context import Context

MIN_PHOTOS = 5  # a class with fewer takes no part in training
HELD_OUT = 0.2  # of the photos of a class, on which the trained network is compared with the untrained one


@dataclass(frozen=True, eq=False)
class PhotoFolder:
    """A folder of class folders to train on."""

    root: Path
    original: Dataset  # the files as they are
    dataset: Dataset  # decoded, and resized as the encoder does
    names: list[str]  # of the classes, as the gallery spells them

    @property
    def counts(self) -> list[int]:
        """Readable photos of each class."""
        return [self.dataset.train.counts.get(label, 0) for label in range(len(self.names))]

    @property
    def trainable(self) -> list[int]:
        """Labels of the classes that take part in training."""
        return [label for label, photos in enumerate(self.counts) if photos >= MIN_PHOTOS]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A network and what it makes of the photos."""

    encoder: PhotoEncoder
    photos: list[Photo | None]
    labels: NDArray[np.int64]  # of the photos


def untrained_encoder(config: Config, context: Context, say: Say) -> PhotoEncoder:
    """The network as the recipe has it: pretrained, or of random weights."""
    if config.model.init == "scratch":
        say("the network has random weights and is not trained: use this for tests only")
    return PhotoEncoder(EncoderConfig.from_recipe(config), backbone_of(config), context.device)


def encode(encoder: PhotoEncoder, dataset: Dataset, original: Dataset, context: Context) -> Encoded:
    """original: the data set that `dataset` was decoded and resized from, or `dataset` itself."""
    return Encoded(encoder, encode_images(encoder, dataset.train, original, context.quiet), dataset.train.labels)


def train_on_folder(
    folder: PhotoFolder,
    config: Config,
    from_scratch: bool,
    limit: TimeLimit,
    context: Context,
    say: Say,
    work: Path | None,
    check: bool,
) -> tuple[Encoded, dict[str, Any]]:
    """The photos through the trained network, or through the untrained one where that is as good; and a record.

    One from scratch is used in any case, and no photos are held out for it. work, check: as in `fitting.fit_folder`.
    """
    _announce_small(folder, say)
    images, trainable = folder.dataset.train, folder.trainable
    if len(trainable) < 2 or config.train.epochs == 0:
        if from_scratch:
            raise DataError(
                f"{folder.root}: training from scratch needs at least two classes with {MIN_PHOTOS} photos each, and "
                f"some epochs; {len(trainable)} have as many. Add photos, or start from the pretrained network."
            )
        say(f"no training: fewer than two classes have {MIN_PHOTOS} photos, or there are no epochs")
        return encode(untrained_encoder(config, context, say), folder.dataset, folder.original, context), {}
    held_out = np.zeros(len(images), bool) if from_scratch else _held_out(images.labels, trainable)
    base = images.select(~held_out).of_classes(trainable).relabel(trainable)
    names = [folder.names[label] for label in trainable]
    source = {"folder": str(folder.root.resolve()), "classes": names, "photos": len(base)}
    if from_scratch:
        backbone, record = finetune(config, base, limit, context, say, work, source)
        encoder = PhotoEncoder(EncoderConfig.from_recipe(config), backbone, context.device)
        return encode(encoder, folder.dataset, folder.original, context), record
    began = time.monotonic()
    before = encode(untrained_encoder(config, context, say), folder.dataset, folder.original, context)
    encoding = time.monotonic() - began
    deciding = deciding_seconds(len(images), len(folder.names), before.encoder.dim, check)
    limit = replace(limit, encoding=encoding, deciding=deciding)
    if limit.seconds_to_train <= 0:
        say(f"no training: {limit.minutes:g} min are too short for it, as all photos must pass the network again")
        return before, {}
    try:
        backbone, record = finetune(config, base, limit, context, say, work, source, head_first=True)
    except TrainingError as error:
        say(f"{error} The network stays as it was.")
        return before, {"failed": str(error)}
    encoder = PhotoEncoder(EncoderConfig.from_recipe(config), backbone, context.device)
    trained = encode(encoder, folder.dataset, folder.original, context)
    comparison = _compare(before, trained, held_out, folder.names)
    say(comparison.text)
    return (trained if comparison.better else before), {**record, "comparison": comparison.record}


def _announce_small(folder: PhotoFolder, say: Say) -> None:
    pairs = zip(folder.names, folder.counts, strict=True)
    small = [f"{name} ({photos})" for name, photos in pairs if photos < MIN_PHOTOS]
    if small:
        say(
            f"{count(len(small), 'class has', 'classes have')} fewer than {MIN_PHOTOS} photos, not trained on but "
            f"enrolled afterwards: {first_few(small, 12)}"
        )


def _held_out(labels: NDArray[np.int64], classes: Sequence[int]) -> NDArray[np.bool_]:
    """(n,) a share of the photos of each of these classes, always the same ones."""
    chosen = np.zeros(len(labels), bool)
    random = np.random.default_rng(0)
    for label in classes:
        members = random.permutation(np.flatnonzero(labels == label))
        chosen[members[: max(1, round(HELD_OUT * len(members)))]] = True
    return chosen


@dataclass(frozen=True)
class Comparison:
    """Held-out photos named by the untrained and by the trained network, under the same kind of decision rule."""

    photos: int
    before: int  # of them named rightly without training
    after: int
    differing: int  # that one of the two names rightly and the other does not

    @property
    def better(self) -> bool:
        """By more than a standard error of the difference, so that chance rarely decides."""
        return bool(self.after - self.before > self.differing**0.5)

    @property
    def record(self) -> dict[str, Any]:
        return {"held-out photos": self.photos, "before": self.before, "after": self.after, "kept": self.better}

    @property
    def text(self) -> str:
        verdict = "the trained network is used" if self.better else "training did not help, the network stays as it was"
        return (
            f"of {count(self.photos, 'held-out photo')} {self.before} are named rightly without training and "
            f"{self.after} with it: {verdict}"
        )


def _compare(before: Encoded, after: Encoded, held_out: NDArray[np.bool_], names: Sequence[str]) -> Comparison:
    right = [_named_rightly(each, held_out, names) for each in (before, after)]
    first, second = (int(each.sum()) for each in right)
    return Comparison(len(right[0]), first, second, int((right[0] != right[1]).sum()))


def _named_rightly(encoded: Encoded, held_out: NDArray[np.bool_], names: Sequence[str]) -> NDArray[np.bool_]:
    """Of the readable held-out photos, by a model of the others."""
    pairs = list(zip(encoded.photos, encoded.labels.tolist(), held_out.tolist(), strict=True))
    others = [(photo, label) for photo, label, held in pairs if not held]
    asked = [(photo, label) for photo, label, held in pairs if held and photo]
    gallery = gallery_of_all([photo for photo, _ in others], [label for _, label in others], names)
    gallery = gallery.under(estimate(*gallery.features()).rule)
    nearest = gallery.scores(torch.stack([photo.feature for photo, _ in asked])).argmax(1).tolist()
    return np.array([gallery.names[place] == names[label] for place, (_, label) in zip(nearest, asked, strict=True)])
