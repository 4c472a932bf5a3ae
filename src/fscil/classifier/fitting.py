"""What a classifier is made from: a folder of photos, a finished run, or the pretrained network alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fscil import data
from fscil.classifier.base_gallery import base_gallery
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.finetuning import Say, finetune
from fscil.config import Config, flatten, load_recipe
from fscil.data import folder as folders
from fscil.data.images import Dataset
from fscil.errors import DataError
from fscil.gallery import Gallery, class_name
from fscil.models import Backbone
from fscil.runtime.files import load_tensors
from fscil.runtime.text import count, first_few
from fscil.training.build import backbone_of, base_images, dataset_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

MIN_PHOTOS = 5  # a class with fewer takes no part in training
FROM_SCRATCH = (  # a network small enough for a CPU
    *("model.backbone=resnet18", "model.stem=imagenet", "model.width=32", "model.init=scratch"),
    *("data.resize=128", "views.size=112", "loss.scale=16", "loss.margin_warmup=0.5"),
    *("train.epochs=60", "train.lr=0.05"),
)


@dataclass(frozen=True, eq=False)
class FitResult:
    """What a new classifier consists of."""

    encoder: PhotoEncoder
    gallery: Gallery
    made: dict[str, Any]  # how it was made, for the record


@dataclass(frozen=True, eq=False)
class PhotoFolder:
    """A folder of class folders to fit on."""

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


def folder_recipe(from_scratch: bool = False, settings: Sequence[str] = ()) -> Config:
    return load_recipe("folder", [*(FROM_SCRATCH if from_scratch else ()), *settings])


def from_pretrained(context: Context) -> FitResult:
    """The pretrained network and no class at all."""
    config = folder_recipe()
    encoder = PhotoEncoder(EncoderConfig.from_recipe(config), backbone_of(config), context.device)
    return FitResult(encoder, Gallery(encoder.dim), {"by": "pretrained"})


def from_run(run: Run, root: Path | None, shots: int, context: Context) -> FitResult:
    """The network of a finished run, with the base classes of its data."""
    run.require_finished()
    config, recorded = run.config(), run.about().get("data")
    root = root or (Path(recorded) if recorded else None)
    encoder_config = EncoderConfig.from_recipe(config)
    resize = encoder_config.resize
    sized = replace(config.data, resize=resize.size, interpolation=resize.interpolation)
    dataset = dataset_of(replace(config, data=sized), root, context.quiet)
    protocol = protocol_of(config, dataset)
    base = base_images(dataset, protocol)
    names = [dataset.class_names[label] for label in protocol.seen(0)]
    encoder = PhotoEncoder.load(encoder_config, load_tensors(run.weights)[0], context.device, str(run.weights))
    original = data.load(config.data.name, root)
    gallery = base_gallery(encoder, base, names, original, shots, min_photos=1, quiet=context.quiet)
    settings = flatten(config)
    settings.pop("protocol.order", None)  # names of classes, which may have to be forgotten
    return FitResult(encoder, gallery, {"by": "run", "run": str(run.folder.resolve()), "settings": settings})


def fit_folder(
    root: Path, config: Config, shots: int, minutes: float | None, context: Context, say: Say, work: Path | None
) -> FitResult:
    """Train on the classes with enough photos, then enroll all of them. work: a run folder to stop and resume in."""
    folder = _read_folder(root, config, context.quiet)
    _announce(folder, say)
    backbone, record = _backbone(folder, config, minutes, context, say, work)
    encoder = PhotoEncoder(EncoderConfig.from_recipe(config), backbone, context.device)
    images = folder.dataset.train
    gallery = base_gallery(encoder, images, folder.names, folder.original, shots, MIN_PHOTOS, context.quiet)
    made = {"by": "fit", "folder": str(root.resolve()), "photos": len(images), **record}
    return FitResult(encoder, gallery, made)


def _read_folder(root: Path, config: Config, quiet: bool) -> PhotoFolder:
    original = folders.whole(root)
    names = _class_names(original)  # an invalid name is better found before all photos are decoded
    resize = EncoderConfig.from_recipe(config).resize
    return PhotoFolder(root, original, data.prepare(original, resize, quiet=quiet), names)


def _class_names(dataset: Dataset) -> list[str]:
    names = [class_name(name) for name in dataset.class_names]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise DataError(f'two class folders are called "{name}", but for blanks. Rename or merge them.')
    return names


def _announce(folder: PhotoFolder, say: Say) -> None:
    say(f"{folder.root}: {len(folder.dataset.train)} photos of {len(folder.names)} classes")
    pairs = zip(folder.names, folder.counts, strict=True)
    small = [f"{name} ({photos})" for name, photos in pairs if photos < MIN_PHOTOS]
    if small:
        say(
            f"{count(len(small), 'class has', 'classes have')} fewer than {MIN_PHOTOS} photos, not trained on but "
            f"enrolled afterwards: {first_few(small, 12)}"
        )


def _backbone(
    folder: PhotoFolder, config: Config, minutes: float | None, context: Context, say: Say, work: Path | None
) -> tuple[Backbone, dict[str, Any]]:
    """Trained, or as it is where there is too little to train on or no time; and a record of the training."""
    trainable = folder.trainable
    if len(trainable) >= 2 and config.train.epochs > 0 and minutes != 0:
        base = folder.dataset.train.of_classes(trainable).relabel(trainable)
        names = [folder.names[label] for label in trainable]
        source = {"folder": str(folder.root.resolve()), "classes": names, "photos": len(base)}
        return finetune(config, base, minutes, context, say, work, source)
    if config.model.init == "scratch":
        raise DataError(
            f"{folder.root}: training from scratch needs at least two classes with {MIN_PHOTOS} photos each, and some "
            f"time; {len(trainable)} have as many. Add photos, or start from the pretrained network."
        )
    reason = f"fewer than two classes have {MIN_PHOTOS} photos: " if len(trainable) < 2 else ""
    say(f"{reason}no training, the pretrained network is used as it is")
    return backbone_of(config), {}
