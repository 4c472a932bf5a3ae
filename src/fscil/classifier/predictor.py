"""A network, classes and a decision rule: predictions and features, without any change."""

import os
import threading
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from fscil.classifier.checking import Check, CheckedPhoto, compare_labels
from fscil.classifier.decision import Decision
from fscil.classifier.encoder import PhotoEncoder, with_progress
from fscil.classifier.prediction import Prediction, predictions
from fscil.data import photos
from fscil.data.photos import Source, as_list
from fscil.errors import ConfigError, DataError
from fscil.gallery import ClassInfo, Gallery, Photo

PathLike: TypeAlias = str | os.PathLike[str]
Photos: TypeAlias = Source | Sequence[Source] | NDArray[Any]  # one, or several


class Predictor:
    """The part of a `Classifier` that answers. Several threads may use it at once."""

    def __init__(self, encoder: PhotoEncoder, gallery: Gallery | None = None, decision: Decision | None = None) -> None:
        self.encoder = encoder
        self.gallery = Gallery(encoder.dim) if gallery is None else gallery
        self.decision = decision or Decision()
        self.lock = threading.RLock()  # for reading and changing the gallery

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: the classes as they are now, without the lock."""
        with self.lock:
            state = {name: value for name, value in self.__dict__.items() if name != "lock"}
            return {**state, "gallery": deepcopy(self.gallery)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = threading.RLock()

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

    def predict(self, images: Photos, top: int = 1, unknown_prior: float | None = None) -> list[Prediction]:
        """What each photo shows, and how probable that is.

        Parameters
        ----------
        images : photo or sequence of photos
            A single photo gives a list of one prediction.
        top : int
            How many of the nearest classes a prediction's ranking names.
        unknown_prior : float, optional
            How probable it is, before a photo is seen, that it shows none of the classes; by default the model's.

        Returns
        -------
        list of Prediction
            In the order of the photos.

        Raises
        ------
        DataError
            If a photo cannot be read.
        ConfigError
            If `top` is less than 1, or the prior is not between 0 and 1, or the model has no probabilities.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> [prediction.label for prediction in classifier.predict(["garden.jpg", "pond.jpg"])]
        ['robin', 'blue tit']
        >>> [name for name, score in classifier.predict("garden.jpg", top=3)[0].ranking]
        ['robin', 'wren', 'blue tit']
        """
        return self.predict_features(self.features(images), top, unknown_prior)

    def stream(
        self, images: Sequence[Source], top: int = 1, unknown_prior: float | None = None
    ) -> Iterator[Prediction | DataError]:
        """Predictions one after the other, for any number of photos.

        Parameters
        ----------
        images : sequence of photos
            A few at a time are decoded.
        top : int
            How many of the nearest classes a prediction's ranking names.
        unknown_prior : float, optional
            How probable it is, before a photo is seen, that it shows none of the classes; by default the model's.

        Yields
        ------
        Prediction or DataError
            In the order of the photos; the error of one that cannot be read.

        Raises
        ------
        ConfigError
            If `top` is less than 1, or the prior is not between 0 and 1, or the model has no probabilities.

        Examples
        --------
        >>> for answer in Classifier.load("birds.fscil").stream(["garden.jpg", "notes.txt"]):
        ...     print(answer if isinstance(answer, Exception) else answer.label)
        robin
        notes.txt: not a JPEG, PNG, WEBP, BMP or GIF image
        """
        for batch in self.encoder.batches(images):
            good = [row for row in batch if isinstance(row, Tensor)]
            found = iter(self.predict_features(torch.stack(good), top, unknown_prior) if good else ())
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

    def predict_features(self, features: Tensor, top: int = 1, unknown_prior: float | None = None) -> list[Prediction]:
        """As `predict`, from features that are computed already.

        Parameters
        ----------
        features : Tensor
            (n, d) raw features.
        top : int
            How many of the nearest classes a prediction's ranking names.
        unknown_prior : float, optional
            How probable it is, before a photo is seen, that it shows none of the classes; by default the model's.

        Returns
        -------
        list of Prediction

        Raises
        ------
        ConfigError
            If `top` is less than 1, or the prior is not between 0 and 1, or the model has no probabilities.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> features = classifier.features("garden.jpg")
        >>> classifier.predict_features(features) == classifier.predict("garden.jpg")
        True
        """
        with self.lock:
            return predictions(self.gallery, self._decision(unknown_prior), features, top)

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

    def check(self, folder: PathLike, quiet: bool = True) -> Check:
        """Measure how well it does on labelled photos, best on such that it has not seen.

        Parameters
        ----------
        folder : path
            Photos in one folder per class, or a CSV file with a header (path, label). If a folder has a test part,
            only that is used.
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
            raise DataError(
                f"{root}: no photo in a class folder, so nothing says what is right. Expected are "
                f"DIR/CLASS/PHOTO, or a CSV file with the columns path,label."
            )
        with self.lock:
            own = {photo.digest for name in self.gallery.names for photo in self.gallery.photos(name)}
        answers, skipped, learned = list[CheckedPhoto](), list[str](), 0
        made = with_progress(self.encoder.photos([path for path, _ in found]), len(found), quiet)
        for (path, label), photo in zip(found, made, strict=True):
            if isinstance(photo, DataError):
                skipped.append(str(photo))
            else:
                learned += photo.digest in own
                (answer,) = self.predict_features(photo.feature[None])
                answers.append(CheckedPhoto(path, label.strip(), answer))
        true, predicted = [each.true for each in answers], [each.answer.label for each in answers]
        states = [each.answer.state for each in answers]
        check = compare_labels(true, predicted, self.gallery.names, skipped, states)
        return replace(check, answers=tuple(answers), learned=learned)

    def _decision(self, unknown_prior: float | None) -> Decision:
        """The model's own, or with another prior for one call."""
        if unknown_prior is None:
            return self.decision
        if self.decision.probability is None:
            raise ConfigError("This model has no probabilities, so no prior can change them. Run: fscil upgrade MODEL")
        return replace(self.decision, unknown_prior=unknown_prior)
