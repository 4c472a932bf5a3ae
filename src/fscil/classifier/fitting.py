"""What a classifier is made from: a folder of photos, a finished run, or the pretrained network alone."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fscil import data
from fscil.classifier.base_gallery import encode_images, gallery_of_all, gallery_of_nearest, sources_of
from fscil.classifier.decision import Decision
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.estimating import estimate, why_not
from fscil.classifier.finetuning import Say, TimeLimit, machine
from fscil.classifier.fit_check import FitCheck, check_fit
from fscil.classifier.fit_time import deciding_seconds, encoding_seconds
from fscil.classifier.folder_network import PhotoFolder, encode, train_on_folder, untrained_encoder
from fscil.config import Config, flatten, load_recipe
from fscil.data import folder as folders
from fscil.data.images import Dataset
from fscil.errors import ConfigError, DataError, FscilWarning
from fscil.gallery import Gallery, new_class_name
from fscil.runtime.files import load_tensors
from fscil.runtime.text import count, duration, first_few
from fscil.training.build import backbone_of, base_images, dataset_of, protocol_of, require_whole_crop
from fscil.training.context import Context
from fscil.training.run_folder import Run

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
        encoder = untrained_encoder(config, context, say)
        deciding = deciding_seconds(len(original.train), len(names), encoder.dim, check)
        seconds = encoding_seconds(encoder, sources_of(original.train, original)) + deciding
        say(f"time on this machine ({machine(context)}): about {duration(seconds)}")
        found = encode(encoder, original, original, context)
    else:
        resize = EncoderConfig.from_recipe(config).resize
        folder = PhotoFolder(root, original, data.prepare(original, resize, quiet=context.quiet), names)
        found, record = train_on_folder(folder, config, training.from_scratch, limit, context, say, work, check)
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
