"""The classifier for people with photos: fit, enroll, forget, predict, say "unknown", save and load."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from fscil import __version__
from fscil.classifier.calibration import calibrate_gallery, labelled_features
from fscil.classifier.checking import Check, compare_labels
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder, with_progress
from fscil.classifier.model_folder import Contents, ModelFolder, Version
from fscil.classifier.prediction import Prediction, predictions
from fscil.data import photos
from fscil.data.photos import Source, as_list
from fscil.errors import ConfigError, DataError, StoreError
from fscil.gallery import ClassInfo, Gallery, Photo, class_name
from fscil.openset import DEFAULT_SCORE, Calibration
from fscil.training.context import Context, pick_device

if TYPE_CHECKING:
    from fscil.classifier.finetuning import Say
    from fscil.classifier.fitting import FitResult

PathLike: TypeAlias = str | os.PathLike[str]
Photos: TypeAlias = Source | Sequence[Source] | NDArray[Any]  # one, or several


class Classifier:
    """A frozen network and a gallery of classes. Several threads may use it at once.

    Make one with `fit`, `pretrained`, `from_run` or `load`. Wherever photos are expected, give one or a list of them:
    paths, the contents of files as bytes, Pillow images, or uint8 arrays of shape (height, width, 3).

    Parameters
    ----------
    encoder : PhotoEncoder
        Computes the feature of a photo.
    gallery : Gallery, optional
        The classes; by default none.
    calibration : Calibration, optional
        When to call a photo unknown; by default never.
    made : mapping, optional
        How the classifier was made, for the record.

    Examples
    --------
    >>> classifier = Classifier.load("birds.fscil")
    >>> classifier.enroll("red panda", ["panda1.jpg", "panda2.jpg"])
    2
    >>> classifier.predict("panda3.jpg")[0].label
    'red panda'
    """

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
        self.lock = threading.RLock()  # for reading and changing the gallery
        self._saved: tuple[Path, Version] | None = None  # the folder it was loaded from or saved to

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
        """Fine-tune the pretrained network on a folder of class folders, and enroll its classes.

        Classes with fewer than 5 photos are not trained on, but enrolled afterwards.

        Parameters
        ----------
        folder : path
            Photos in one folder per class: folder/class/photo. If it has a train part, only that is used.
        shots : int
            A trained class is the mean of this many photos, those nearest to the mean of all.
        minutes : float, optional
            Train no longer than this, on fewer photos if need be; 0 uses the pretrained network as it is.
        from_scratch : bool
            Train a small network from random weights, instead of the pretrained one.
        settings : sequence of str
            Changes of the recipe "folder", such as "train.lr=0.01".
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        quiet : bool
            Show no progress.
        say : callable, optional
            Is given each message, such as how long training will take; by default print, or nothing if quiet.
        work : path, optional
            A folder for checkpoints: a training that was stopped is continued by the same call.

        Returns
        -------
        Classifier

        Raises
        ------
        ConfigError
            If an argument or a setting is invalid.
        DataError
            If the folder has no photos in class folders, or too few to train from scratch.
        StoreError
            If `work` holds a training that was started with other arguments.

        Examples
        --------
        >>> classifier = Classifier.fit("photos/birds", minutes=0, quiet=True)  # minutes=20 trains for up to that long
        >>> [info.name for info in classifier.classes()]
        ['blue tit', 'robin', 'wren']
        """
        from fscil.classifier.fitting import fit_folder, folder_recipe

        _check_shots(shots)
        if minutes is not None and not minutes >= 0:
            raise ConfigError(f"minutes = {minutes}: must be 0 or more.")
        root, context = Path(folder).expanduser(), Context.on(device, quiet)
        recipe = folder_recipe(from_scratch, settings)
        return cls._from(
            fit_folder(root, recipe, shots, minutes, context, say or _default_say(quiet), Path(work) if work else None)
        )

    @classmethod
    def pretrained(cls, device: str = "auto") -> "Classifier":
        """The pretrained network as it is, with no class yet.

        Parameters
        ----------
        device : str
            "auto", "cpu", "cuda" or "cuda:N".

        Returns
        -------
        Classifier

        Raises
        ------
        ConfigError
            If the pretrained extra is not installed.

        Examples
        --------
        >>> classifier = Classifier.pretrained()
        >>> classifier.enroll("robin", "garden.jpg")
        1
        """
        from fscil.classifier.fitting import from_pretrained

        return cls._from(from_pretrained(Context.on(device)))

    @classmethod
    def from_run(
        cls, run: PathLike, data: PathLike | None = None, shots: int = 5, device: str = "auto", quiet: bool = False
    ) -> "Classifier":
        """The network of a finished `fscil train` run, and its base classes.

        Parameters
        ----------
        run : path
            The run folder.
        data : path, optional
            The folder of its data set; by default where it was when the run was trained.
        shots : int
            A class is the mean of this many photos, those nearest to the mean of all.
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        quiet : bool
            Show no progress.

        Returns
        -------
        Classifier

        Raises
        ------
        ConfigError
            If `shots` is less than 1.
        StoreError
            If the folder is not a run, or its training is not finished.
        DataError
            If its data set is not there.

        Examples
        --------
        >>> classifier = Classifier.from_run("runs/birds", shots=3, quiet=True)
        >>> [(info.name, info.photos) for info in classifier.classes()]
        [('blue tit', 3), ('robin', 3)]
        """
        from fscil.classifier.fitting import from_run
        from fscil.training.run_folder import Run

        _check_shots(shots)
        root = Path(data).expanduser() if data else None
        return cls._from(from_run(Run.open(Path(run)), root, shots, Context.on(device, quiet)))

    @classmethod
    def _from(cls, result: "FitResult") -> "Classifier":
        return cls(result.encoder, result.gallery, made={**result.made, "fscil": __version__})

    # Learning

    def enroll(self, name: str, images: Photos) -> int:
        """Learn a class, or improve one, from one photo or more. No training: its mean is updated.

        Parameters
        ----------
        name : str
            Of 1 to 200 characters in any script.
        images : photo or sequence of photos
            They join those that the class has already; the same picture counts once.

        Returns
        -------
        int
            How many photos were new to the class.

        Raises
        ------
        ClassNameError
            If no class can have this name.
        DataError
            If a photo cannot be read, or there is none. Then nothing is learned.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.enroll("red panda", ["panda1.jpg", "panda2.jpg"])
        2
        >>> classifier.enroll("red panda", "panda1.jpg")
        0
        """
        class_name(name)  # before the network is used in vain
        found = self.photos(images)
        if not found:
            raise DataError(f'"{name}": no photo to learn it from. Give at least one.')
        with self.lock:
            return self.gallery.enroll(name, found)

    def forget(self, name: str) -> None:
        """Remove a class and every trace of its photos.

        Parameters
        ----------
        name : str
            An enrolled class.

        Raises
        ------
        UnknownClassError
            If it is not enrolled.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.forget("robin")
        >>> [info.name for info in classifier.classes()]
        ['blue tit', 'wren']
        """
        with self.lock:
            self.gallery.forget(name)

    def classes(self) -> list[ClassInfo]:
        """The enrolled classes, in the order they were enrolled in.

        Returns
        -------
        list of ClassInfo
            With name, number of photos, origin ("base" or "enrolled"), times of the first and last photo, and sources.

        Examples
        --------
        >>> for info in Classifier.load("birds.fscil").classes():
        ...     print(info.name, info.photos, info.origin)
        blue tit 5 base
        robin 5 base
        wren 2 enrolled
        """
        with self.lock:
            return self.gallery.classes()

    # Predicting

    def predict(self, images: Photos, top: int = 1) -> list[Prediction]:
        """What each photo shows.

        Parameters
        ----------
        images : photo or sequence of photos
            A single photo gives a list of one prediction.
        top : int
            How many of the nearest classes a prediction's ranking names.

        Returns
        -------
        list of Prediction
            In the order of the photos.

        Raises
        ------
        DataError
            If a photo cannot be read.
        ConfigError
            If `top` is less than 1.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> [prediction.label for prediction in classifier.predict(["garden.jpg", "pond.jpg"])]
        ['robin', 'blue tit']
        >>> [name for name, score in classifier.predict("garden.jpg", top=3)[0].ranking]
        ['robin', 'wren', 'blue tit']
        """
        return self.predict_features(self.features(images), top)

    def stream(self, images: Sequence[Source], top: int = 1) -> Iterator[Prediction | DataError]:
        """Predictions one after the other, for any number of photos.

        Parameters
        ----------
        images : sequence of photos
            A few at a time are decoded.
        top : int
            How many of the nearest classes a prediction's ranking names.

        Yields
        ------
        Prediction or DataError
            In the order of the photos; the error of one that cannot be read.

        Raises
        ------
        ConfigError
            If `top` is less than 1.

        Examples
        --------
        >>> for answer in Classifier.load("birds.fscil").stream(["garden.jpg", "notes.txt"]):
        ...     print(answer if isinstance(answer, Exception) else answer.label)
        robin
        notes.txt: not a JPEG, PNG, WEBP, BMP or GIF image
        """
        for batch in self.encoder.batches(images):
            good = [row for row in batch if isinstance(row, Tensor)]
            found = iter(self.predict_features(torch.stack(good), top) if good else ())
            for row in batch:
                yield row if isinstance(row, DataError) else next(found)

    def features(self, images: Photos) -> Tensor:
        """What the network computes from photos.

        Parameters
        ----------
        images : photo or sequence of photos

        Returns
        -------
        Tensor
            (n, d) raw features, float32, on the host.

        Raises
        ------
        DataError
            If a photo cannot be read.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.features(["garden.jpg", "pond.jpg"]).shape == (2, classifier.encoder.dim)
        True
        """
        return self.encoder.features(as_list(images))

    def predict_features(self, features: Tensor, top: int = 1) -> list[Prediction]:
        """As `predict`, from features that are computed already.

        Parameters
        ----------
        features : Tensor
            (n, d) raw features.
        top : int
            How many of the nearest classes a prediction's ranking names.

        Returns
        -------
        list of Prediction

        Raises
        ------
        ConfigError
            If `top` is less than 1.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> features = classifier.features("garden.jpg")
        >>> classifier.predict_features(features) == classifier.predict("garden.jpg")
        True
        """
        with self.lock:
            return predictions(self.gallery, self.calibration, features, top)

    def photos(self, images: Photos) -> list[Photo]:
        """What the gallery keeps of photos.

        Parameters
        ----------
        images : photo or sequence of photos

        Returns
        -------
        list of Photo
            With digest, feature, source, time and thumbnail.

        Raises
        ------
        DataError
            If a photo cannot be read.

        Examples
        --------
        >>> [photo] = Classifier.load("birds.fscil").photos("garden.jpg")
        >>> photo.source
        'garden.jpg'
        """
        found: list[Photo] = []
        for photo in self.encoder.photos(as_list(images)):
            if isinstance(photo, DataError):
                raise photo
            found.append(photo)
        return found

    # Unknown photos

    def calibrate(
        self, folder: PathLike | None = None, false_accept: float = 0.05, score: str | None = None, quiet: bool = True
    ) -> Calibration:
        """Set the threshold below which a photo is called unknown.

        Parameters
        ----------
        folder : path, optional
            Photos of things that are not enrolled, in class folders or in none. Photos in folders named like an
            enrolled class measure how often a known one is rejected. Without a folder, each class is left out in turn.
        false_accept : float
            Share of unknown photos that may be taken for a class, from 0 to below 1.
        score : str, optional
            A key of `fscil.openset.SCORES`; by default "contrast".
        quiet : bool
            Show no progress.

        Returns
        -------
        Calibration
            The threshold and what it was set from.

        Raises
        ------
        ConfigError
            If there is no such score or the share is out of range.
        DataError
            If no class is enrolled, or the folder has no photo of anything else.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.predict("car.jpg")[0].label
        'blue tit'
        >>> found = classifier.calibrate("photos/no_birds", false_accept=0.05)
        >>> found.unknowns
        8
        >>> classifier.predict("car.jpg")[0].label is None
        True
        """
        self.calibration = self.find_threshold(folder, false_accept, score, quiet)
        return self.calibration

    def find_threshold(
        self, folder: PathLike | None, false_accept: float, score: str | None, quiet: bool
    ) -> Calibration:
        """What `calibrate` would set, without setting it; with the same parameters."""
        labelled = labelled_features(self.encoder, Path(folder).expanduser(), quiet) if folder else None
        with self.lock:
            return calibrate_gallery(self.gallery, labelled, false_accept, score or DEFAULT_SCORE)

    def check(self, folder: PathLike, quiet: bool = True) -> Check:
        """Measure how well it does on labelled photos, best on such that it has not seen.

        Parameters
        ----------
        folder : path
            Photos in one folder per class. If it has a test part, only that is used.
        quiet : bool
            Show no progress.

        Returns
        -------
        Check
            Accuracy in all and per class, most confused pairs, share of unknown.

        Raises
        ------
        DataError
            If the folder has no photo in a class folder.

        Examples
        --------
        >>> Classifier.load("birds.fscil").check("photos/held_out").accuracy
        1.0
        """
        root = Path(folder).expanduser()
        found = [(path, label) for path, label in photos.labelled(root, "test") if label is not None]
        if not found:
            raise DataError(f"{root}: no photo in a class folder, so nothing says what is right.")
        answers = with_progress(self.stream([path for path, _ in found]), len(found), quiet)
        true, predicted, skipped = [], [], []
        for (_, label), answer in zip(found, answers, strict=True):
            if isinstance(answer, DataError):
                skipped.append(str(answer))
            else:
                true.append(label.strip())
                predicted.append(answer.label)
        return compare_labels(true, predicted, self.gallery.names, skipped)

    # To disk and back

    def save(self, path: PathLike, force: bool = False) -> None:
        """Write a model folder.

        Parameters
        ----------
        path : path
            A new folder, or the model this one was loaded from, if nobody has changed it since.
        force : bool
            Replace any model that is there.

        Raises
        ------
        StoreError
            If another model or something else is there, the model has changed since, or the disk is full. Then what
            was there is untouched.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.forget("robin")
        >>> classifier.save("fewer_birds.fscil")
        """
        folder = ModelFolder(Path(path).expanduser())
        place = folder.path.resolve()
        expected = self._saved[1] if self._saved and self._saved[0] == place else None
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
        self._saved = (place, version)

    @classmethod
    def load(cls, path: PathLike, device: str = "auto") -> "Classifier":
        """Read a model folder.

        Parameters
        ----------
        path : path
            Written by `save`, `fscil fit` or a `StoredClassifier`.
        device : str
            "auto", "cpu", "cuda" or "cuda:N".

        Returns
        -------
        Classifier

        Raises
        ------
        StoreError
            If it is no model folder, is damaged, or was written by a newer version.

        Examples
        --------
        >>> len(Classifier.load("birds.fscil").classes())
        3
        """
        folder = ModelFolder(Path(path).expanduser())
        contents = folder.read()
        found = cls.restore(contents, device, str(path))
        found._saved = (folder.path.resolve(), contents.version)
        return found

    @classmethod
    def restore(cls, contents: Contents, device: str = "auto", source: str = "the model") -> "Classifier":
        """From what a model folder holds. source: what an error calls it."""
        about = contents.about
        config = EncoderConfig.from_dict(about["network"])
        encoder = PhotoEncoder.load(config, contents.weights, pick_device(device), source)
        return cls(encoder, restore_gallery(contents), restore_calibration(about), about["made"])

    def about(self) -> dict[str, Any]:
        """What model.json holds of it: all but weights and gallery."""
        return {
            "network": self.encoder.config.to_dict(),
            "calibration": asdict(self.calibration) if self.calibration else None,
            "made": self.made,
        }


def restore_gallery(contents: Contents) -> Gallery:
    """The snapshot and what was enrolled since."""
    gallery = Gallery.from_snapshot(contents.snapshot)
    for record in contents.records:
        gallery.apply(record)
    return gallery


def restore_calibration(about: Mapping[str, Any]) -> Calibration | None:
    return Calibration(**about["calibration"]) if about["calibration"] else None


def _check_shots(shots: int) -> None:
    if shots < 1:
        raise ConfigError(f"shots = {shots}: must be at least 1.")


def _default_say(quiet: bool) -> "Say":
    return (lambda text: None) if quiet else print
