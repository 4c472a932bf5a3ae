"""The classifier for people with photos: fit, enroll, forget, predict, say "unknown", save and load."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from fscil import __version__
from fscil.classifier.calibration import calibration, labelled_features, with_progress
from fscil.classifier.checking import Check, judge
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.model_folder import Contents, ModelFolder, Version
from fscil.data import photos
from fscil.data.images import Resize
from fscil.data.photos import Source, as_list
from fscil.errors import ConfigError, DataError, StoreError
from fscil.gallery import ClassInfo, Gallery, Photo, class_name
from fscil.models import Backbone
from fscil.openset import DEFAULT_SCORE, SCORES, Calibration, Evidence
from fscil.preprocess import Preprocess
from fscil.runtime.memory import rows_per_chunk
from fscil.training.context import pick_device

if TYPE_CHECKING:
    from fscil.classifier.finetuning import Say
    from fscil.classifier.fitting import Fitted

PathLike: TypeAlias = str | os.PathLike[str]
Photos: TypeAlias = Source | Sequence[Source] | NDArray[Any]  # one, or several


@dataclass(frozen=True)
class Prediction:
    """What a photo shows; scores are cosines to the means of the classes."""

    label: str | None  # None: unknown
    score: float  # of the nearest class
    runner_up: str | None
    margin: float  # by which the nearest class leads; with one class its score
    ranking: tuple[tuple[str, float], ...] = ()  # the nearest classes, as many as were asked for


class Classifier:
    """A frozen network and a gallery of classes. Several threads may use it at once."""

    def __init__(
        self,
        encoder: PhotoEncoder,
        gallery: Gallery | None = None,
        calibration: Calibration | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> None:
        self.encoder = encoder
        self.gallery = Gallery(encoder.dim) if gallery is None else gallery
        self.calibration = calibration
        self.made = dict(made or {})
        self.lock = threading.RLock()  # held by whoever looks at the gallery or changes it
        self._origin: tuple[Path, Version] | None = None  # the folder it was loaded from or saved to

    # Making one

    @classmethod
    def fit(
        cls,
        folder: PathLike,
        *,
        shots: int = 5,
        minutes: float | None = None,
        from_scratch: bool = False,
        settings: Sequence[str] = (),
        device: str = "auto",
        quiet: bool = False,
        say: "Say | None" = None,
        work: PathLike | None = None,
    ) -> "Classifier":
        """Fine-tune the pretrained network on a folder of class folders, and keep each class's `shots` nearest photos.

        Classes with fewer than 5 photos are enrolled afterwards. minutes bounds the training (0: none), settings change
        the recipe "folder", work is a folder in which training can be stopped and resumed.
        """
        from fscil.classifier.fitting import fit, recipe

        _check_shots(shots)
        if minutes is not None and not minutes >= 0:
            raise ConfigError(f"minutes = {minutes}: must be 0 or more.")
        return cls._of(
            fit(
                Path(folder).expanduser(),
                recipe(from_scratch, settings),
                shots,
                minutes,
                pick_device(device),
                say or _speaker(quiet),
                quiet,
                Path(work) if work else None,
            )
        )

    @classmethod
    def pretrained(cls, device: str = "auto") -> "Classifier":
        """The pretrained network as it is, with no class yet."""
        from fscil.classifier.fitting import pretrained

        return cls._of(pretrained(pick_device(device)))

    @classmethod
    def from_run(
        cls, run: PathLike, data: PathLike | None = None, shots: int = 5, device: str = "auto", quiet: bool = False
    ) -> "Classifier":
        """The network of a finished `fscil train` run, and its base classes."""
        from fscil.classifier.fitting import from_run
        from fscil.training.run_folder import Run

        _check_shots(shots)
        root = Path(data).expanduser() if data else None
        return cls._of(from_run(Run.open(Path(run)), root, shots, pick_device(device), quiet))

    @classmethod
    def _of(cls, fitted: "Fitted") -> "Classifier":
        return cls(fitted.encoder, fitted.gallery, made={**fitted.made, "fscil": __version__})

    # What it is made of

    @property
    def backbone(self) -> Backbone:
        return self.encoder.backbone

    @property
    def resize(self) -> Resize:
        """How a photo is stored once decoded."""
        return self.encoder.config.resize

    @property
    def preprocess(self) -> Preprocess:
        """What then happens to it."""
        return self.encoder.config.preprocess

    # Learning

    def features(self, images: Photos) -> Tensor:
        """(n, d) raw features."""
        return self.encoder.features(as_list(images))

    def photos(self, images: Photos) -> list[Photo]:
        """What the gallery keeps of each photo; the first that cannot be read raises its error."""
        found: list[Photo] = []
        for photo in self.encoder.photos(as_list(images)):
            if isinstance(photo, DataError):
                raise photo
            found.append(photo)
        return found

    def enroll(self, name: str, images: Photos) -> int:
        """Learn a class, or learn it better, from one photo or several; returns how many were new to it."""
        class_name(name)  # before the network works for nothing
        found = self.photos(images)
        if not found:
            raise DataError(f'"{name}": no photo to learn it from. Give at least one.')
        with self.lock:
            return self.gallery.enroll(name, found)

    def forget(self, name: str) -> None:
        """Remove a class and every trace of its photos."""
        with self.lock:
            self.gallery.forget(name)

    def classes(self) -> list[ClassInfo]:
        with self.lock:
            return self.gallery.classes()

    # Answering

    def predict(self, images: Photos, top: int = 1) -> list[Prediction]:
        """What each photo shows, with the `top` nearest classes in its ranking."""
        return self.answer(self.features(images), top)

    def stream(self, images: Sequence[Source], top: int = 1) -> Iterator[Prediction | DataError]:
        """The same for any number of photos, as answers come; for one that cannot be read, what is wrong with it."""
        for batch in self.encoder.batches(images):
            good = [row for row in batch if isinstance(row, Tensor)]
            found = iter(self.answer(torch.stack(good), top) if good else ())
            for row in batch:
                yield row if isinstance(row, DataError) else next(found)

    def answer(self, features: Tensor, top: int = 1) -> list[Prediction]:
        """(n, d) raw features -> what each shows."""
        if top < 1:
            raise ConfigError(f"top = {top}: must be at least 1.")
        with self.lock:
            names = self.gallery.names
            if not names:
                return [Prediction(None, 0.0, None, 0.0)] * len(features)
            found: list[Prediction] = []
            for part in torch.split(features, rows_per_chunk(len(names))):
                cosines = self.gallery.scores(part)
                nearest = cosines.topk(min(max(top, 2), len(names)), dim=1)
                rows = zip(
                    self._accepted(cosines).tolist(), nearest.values.tolist(), nearest.indices.tolist(), strict=True
                )
                found += [
                    _prediction(known, values, [names[each] for each in which], top) for known, values, which in rows
                ]
        return found

    def _accepted(self, cosines: Tensor) -> Tensor:
        """(n, C) -> (n,) whether it is believed to be one of the classes at all."""
        if self.calibration is None:
            return torch.ones(len(cosines), dtype=torch.bool)
        return SCORES[self.calibration.score](Evidence(cosines)) >= self.calibration.threshold

    # Unknowns

    def calibrate(
        self,
        folder: PathLike | None = None,
        false_accept: float = 0.05,
        score: str | None = None,
        quiet: bool = True,
    ) -> Calibration:
        """From now on call a photo unknown where at most this share of unknown photos would pass for a class.

        A folder holds photos of classes that are not enrolled; those in folders named like an enrolled class measure
        how often a known one is turned away. Without a folder, each class is left out in turn.
        """
        self.calibration = self.find_threshold(folder, false_accept, score, quiet)
        return self.calibration

    def find_threshold(
        self, folder: PathLike | None, false_accept: float, score: str | None, quiet: bool
    ) -> Calibration:
        """What `calibrate` sets."""
        photos_of_folder = labelled_features(self.encoder, Path(folder).expanduser(), quiet) if folder else None
        with self.lock:
            return calibration(self.gallery, photos_of_folder, false_accept, score or DEFAULT_SCORE)

    def check(self, folder: PathLike, quiet: bool = True) -> Check:
        """How well it does on a folder of class folders (on its test part, if it has one)."""
        root = Path(folder).expanduser()
        found = [(path, label) for path, label in photos.labelled(root, "test") if label is not None]
        if not found:
            raise DataError(f"{root}: no photo in a class folder, so nothing says what is right.")
        answers = with_progress(self.stream([path for path, _ in found]), len(found), quiet)
        truth, said, skipped = [], [], []
        for (_, label), answer in zip(found, answers, strict=True):
            if isinstance(answer, DataError):
                skipped.append(str(answer))
            else:
                truth.append(label.strip())
                said.append(answer.label)
        return judge(truth, said, self.gallery.names, skipped)

    # To disk and back

    def about(self) -> dict[str, Any]:
        """What a model folder tells beside weights and gallery."""
        return {
            "network": self.encoder.config.to_dict(),
            "calibration": asdict(self.calibration) if self.calibration else None,
            "made": self.made,
        }

    def save(self, path: PathLike, force: bool = False) -> None:
        """Into a model folder. One that is there is replaced only if it is what this came from, or by force."""
        folder = ModelFolder(Path(path).expanduser())
        place = folder.path.resolve()
        expected = self._origin[1] if self._origin and self._origin[0] == place else None
        if folder.exists() and not force and expected is None:
            raise StoreError(f"{path} already holds another model. Save with force=True to replace it.")
        if folder.exists() and not force and folder.version() != expected:
            raise StoreError(
                f"{path}: the model has changed since it was loaded, for instance by an enrollment in another program. "
                f"Load it again, or save with force=True to lose that change."
            )
        with self.lock:
            weights = self.encoder.backbone.state_dict()
            version = folder.create(weights, self.about(), self.gallery.snapshot(), None if force else expected)
        self._origin = (place, version)

    @classmethod
    def load(cls, path: PathLike, device: str = "auto") -> "Classifier":
        folder = ModelFolder(Path(path).expanduser())
        contents = folder.read()
        found = cls.restore(contents, device, str(path))
        found._origin = (folder.path.resolve(), contents.version)
        return found

    @classmethod
    def restore(cls, contents: Contents, device: str = "auto", source: str = "the model") -> "Classifier":
        """From what a model folder holds."""
        about = contents.about
        config = EncoderConfig.from_dict(about["network"])
        encoder = PhotoEncoder.load(config, contents.weights, pick_device(device), source)
        return cls(encoder, gallery_of(contents), calibration_of(about), about["made"])


def gallery_of(contents: Contents) -> Gallery:
    """The snapshot and what was enrolled since."""
    gallery = Gallery.from_snapshot(contents.snapshot)
    for record in contents.records:
        gallery.apply(record)
    return gallery


def calibration_of(about: Mapping[str, Any]) -> Calibration | None:
    return Calibration(**about["calibration"]) if about["calibration"] else None


def _prediction(known: bool, values: Sequence[float], names: Sequence[str], top: int) -> Prediction:
    """Of the nearest classes, nearest first: one, or at least two."""
    if len(names) == 1:
        runner_up, margin = None, values[0]
    else:
        runner_up, margin = names[1], values[0] - values[1]
    ranking = tuple(zip(names, values, strict=True))[:top]
    return Prediction(names[0] if known else None, values[0], runner_up, margin, ranking)


def _check_shots(shots: int) -> None:
    if shots < 1:
        raise ConfigError(f"shots = {shots}: must be at least 1.")


def _speaker(quiet: bool) -> "Say":
    return (lambda text: None) if quiet else print
