"""What a classifier is made from: a folder of photos, a finished run, or the pretrained network alone."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fscil import data
from fscil.classifier.base_gallery import encode_images, gallery_of_all, gallery_of_nearest, sources_of
from fscil.classifier.decision import Decision
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.estimating import estimate, why_not
from fscil.classifier.finetuning import Say, TimeLimit, finetune, machine
from fscil.classifier.fit_check import FitCheck, check_fit
from fscil.classifier.fit_time import deciding_seconds, encoding_seconds
from fscil.config import Config, flatten, load_recipe
from fscil.data import folder as folders
from fscil.data.images import Dataset
from fscil.errors import ConfigError, DataError, FscilWarning, TrainingError
from fscil.gallery import Gallery, Photo, new_class_name
from fscil.runtime.files import load_tensors
from fscil.runtime.text import count, duration, first_few
from fscil.training.build import backbone_of, base_images, dataset_of, protocol_of, require_whole_crop
from fscil.training.context import Context
from fscil.training.run_folder import Run

MIN_PHOTOS = 5  # a class with fewer takes no part in training
HELD_OUT = 0.2  # of the photos of a class, on which the trained network is compared with the untrained one
FROM_SCRATCH = (  # a network small enough for a CPU
    *("model.backbone=resnet18", "model.stem=imagenet", "model.width=32", "model.init=scratch"),
    *("data.resize=128", "views.size=112", "loss.scale=16", "loss.margin_warmup=0.5"),
    *("train.epochs=60", "train.lr=0.05"),
)
FINETUNE = (  # the classifier first, then all at a tenth of its rate; the best epoch by some of the training photos
    *("train.lr=0.0005", "train.freeze_batchnorm=true"),
    *("train.selection=validation", "train.validation_share=0.15"),
)


@dataclass(frozen=True)
class Training:
    """That the network is to be trained, and how."""

    minutes: float | None  # at most
    from_scratch: bool  # a small network from random weights, otherwise the pretrained one

    @classmethod
    def asked(cls, finetune: bool, minutes: float | None, from_scratch: bool) -> "Training | None":
        """None for no training, which is the default."""
        if minutes is not None and not minutes >= 0:
            raise ConfigError(f"minutes = {minutes}: must be 0 or more.")
        if minutes and not (finetune or from_scratch):
            raise ConfigError(
                f"minutes = {minutes:g} is a limit for training, and by default nothing is trained. Add finetune "
                f"(--finetune), or leave it out."
            )
        if from_scratch and minutes == 0:
            raise ConfigError("a network from scratch must be trained: leave out minutes = 0.")
        return cls(minutes, from_scratch) if (finetune or from_scratch) and minutes != 0 else None


@dataclass(frozen=True, eq=False)
class FitResult:
    """What a new classifier consists of."""

    encoder: PhotoEncoder
    gallery: Gallery
    decision: Decision
    made: dict[str, Any]  # how it was made, for the record
    check: FitCheck | None = None  # what held-out photos say


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


def folder_recipe(training: Training | None = None, settings: Sequence[str] = ()) -> Config:
    usual = () if training is None else FROM_SCRATCH if training.from_scratch else FINETUNE
    config = load_recipe("folder", [*usual, *settings])
    require_whole_crop(config, config.data.resize)
    return config


def from_pretrained(context: Context, settings: Sequence[str] = ()) -> FitResult:
    """The pretrained network and no class at all."""
    config = folder_recipe(settings=settings)
    encoder = PhotoEncoder(EncoderConfig.from_recipe(config), backbone_of(config), context.device)
    return FitResult(encoder, Gallery(encoder.dim), Decision(), {"by": "pretrained"})


def from_run(run: Run, root: Path | None, shots: int, context: Context) -> FitResult:
    """The network of a finished run, with the base classes of its data, under the paper's rule."""
    run.require_finished()
    config, recorded = run.config(), run.about().get("data")
    root = root or (Path(recorded) if recorded else None)
    encoder_config = EncoderConfig.from_recipe(config)
    sized = replace(config.data, resize=encoder_config.resize.size, interpolation=encoder_config.resize.interpolation)
    dataset = dataset_of(replace(config, data=sized), root, context.quiet)
    protocol = protocol_of(config, dataset)
    base = base_images(dataset, protocol)
    names = [dataset.class_names[label] for label in protocol.seen(0)]
    encoder = PhotoEncoder.load(encoder_config, load_tensors(run.weights)[0], context.device, str(run.weights))
    found = encode_images(encoder, base, data.load(config.data.name, root), context.quiet)
    gallery = gallery_of_nearest(found, base.labels.tolist(), names, shots)
    # Without the names of classes, which may have to be forgotten.
    settings = {key: value for key, value in flatten(config).items() if key != "protocol.order"}
    made = {"by": "run", "run": str(run.folder.resolve()), "settings": settings}
    return FitResult(encoder, gallery, Decision(), made)


def fit_folder(
    root: Path,
    config: Config,
    training: Training | None,
    context: Context,
    say: Say,
    work: Path | None,
    unknown_prior: float,
    check: bool,
) -> FitResult:
    """Encode every photo, estimate the decision rule and enroll them all; with `training`, train the network before.

    work: a run folder to stop and resume training in. check: hold out every photo once, and say how well that went.
    """
    limit = TimeLimit(training.minutes if training else None)
    original = folders.whole(root)
    names = _class_names(original)
    say(f"{root}: {len(original.train)} photos of {len(names)} classes")
    say(f"network: {config.model.backbone}, {config.views.size} pixels")
    record: dict[str, Any] = {}
    if training is None:
        encoder = _untrained(config, context, say)
        deciding = deciding_seconds(len(original.train), len(names), encoder.dim, check)
        seconds = encoding_seconds(encoder, sources_of(original.train, original)) + deciding
        say(f"time on this machine ({machine(context)}): about {duration(seconds)}")
        found = _encode(encoder, original, original, context)
    else:
        resize = EncoderConfig.from_recipe(config).resize
        folder = PhotoFolder(root, original, data.prepare(original, resize, quiet=context.quiet), names)
        found, record = _train(folder, config, training.from_scratch, limit, context, say, work, check)
    gallery = gallery_of_all(found.photos, found.labels.tolist(), names)
    photos = sum(photo is not None for photo in found.photos)
    made = {"by": "fit", "folder": str(root.resolve()), "photos": photos, **record}
    _warn_of_shared(gallery)
    result = FitResult(found.encoder, gallery, Decision(unknown_prior=unknown_prior), made)
    result = _decided(result, context.quiet, say)
    return _checked(result, context.quiet, say) if check else result


def _warn_of_shared(gallery: Gallery) -> None:
    """The same picture in two classes teaches both of them wrong."""
    first: dict[str, str] = {}
    shared = []
    for name in gallery.names:
        for photo in gallery.photos(name):
            if photo.digest in first:
                shared.append(f"{photo.source} is also {first[photo.digest]}")
            else:
                first[photo.digest] = photo.source
    if shared:
        warnings.warn(
            f"{count(len(shared), 'photo is', 'photos are')} in two classes: {first_few(shared)}. Remove the wrong "
            f"one, or teach it the right name (fscil enroll), which moves it.",
            FscilWarning,
            stacklevel=4,
        )


def _checked(result: FitResult, quiet: bool, say: Say) -> FitResult:
    """With a record of what held-out photos say."""
    if "decision" not in result.made:
        return result
    found = check_fit(result.gallery, result.decision, result.made["decision"]["constants"], quiet)
    if found is None:
        say("too few photos to hold some out: try it on others with fscil check MODEL DIR")
        return result
    for line in found.lines:
        say(line)
    if "trained on" in result.made:
        say("the network was trained on these photos: others will be named less well")
    return replace(result, made={**result.made, "check": found.record}, check=found)


def _class_names(dataset: Dataset) -> list[str]:
    names = [new_class_name(name) for name in dataset.class_names]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise DataError(f'two class folders are called "{name}", but for blanks. Rename or merge them.')
    return names


def _untrained(config: Config, context: Context, say: Say) -> PhotoEncoder:
    if config.model.init == "scratch":
        say("the network has random weights and is not trained: use this for tests only")
    return PhotoEncoder(EncoderConfig.from_recipe(config), backbone_of(config), context.device)


def _encode(encoder: PhotoEncoder, dataset: Dataset, original: Dataset, context: Context) -> Encoded:
    return Encoded(encoder, encode_images(encoder, dataset.train, original, context.quiet), dataset.train.labels)


def _decided(result: FitResult, quiet: bool, say: Say) -> FitResult:
    """Under the two-covariance rule, if there are photos enough to estimate it."""
    features, labels = result.gallery.features()
    reason = why_not(labels)
    if reason:
        say(f"{reason}: photos are compared with classes by cosine, without probabilities. Later: fscil upgrade")
        return result
    found = estimate(features, labels, quiet)
    for line in found.summary:
        say(line)
    decision = replace(result.decision, probability=found.probability)
    made = {**result.made, "decision": found.made}
    return replace(result, gallery=result.gallery.under(found.rule), decision=decision, made=made)


def _train(
    folder: PhotoFolder,
    config: Config,
    from_scratch: bool,
    limit: TimeLimit,
    context: Context,
    say: Say,
    work: Path | None,
    check: bool,
) -> tuple[Encoded, dict[str, Any]]:
    """The photos through the trained network, or through the untrained one where that is as good; and a record."""
    _announce_small(folder, say)
    images, trainable = folder.dataset.train, folder.trainable
    if len(trainable) < 2 or config.train.epochs == 0:
        if from_scratch:
            raise DataError(
                f"{folder.root}: training from scratch needs at least two classes with {MIN_PHOTOS} photos each, and "
                f"some epochs; {len(trainable)} have as many. Add photos, or start from the pretrained network."
            )
        say(f"no training: fewer than two classes have {MIN_PHOTOS} photos, or there are no epochs")
        return _encode(_untrained(config, context, say), folder.dataset, folder.original, context), {}
    held_out = np.zeros(len(images), bool) if from_scratch else _held_out(images.labels, trainable)
    base = images.select(~held_out).of_classes(trainable).relabel(trainable)
    names = [folder.names[label] for label in trainable]
    source = {"folder": str(folder.root.resolve()), "classes": names, "photos": len(base)}
    if from_scratch:
        backbone, record = finetune(config, base, limit, context, say, work, source)
        encoder = PhotoEncoder(EncoderConfig.from_recipe(config), backbone, context.device)
        return _encode(encoder, folder.dataset, folder.original, context), record
    began = time.monotonic()
    before = _encode(_untrained(config, context, say), folder.dataset, folder.original, context)
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
    trained = _encode(encoder, folder.dataset, folder.original, context)
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
