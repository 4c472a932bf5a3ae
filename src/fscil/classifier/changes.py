"""What changes a classifier without training: its classes, its decision rule, and when a photo is unknown."""

from dataclasses import replace
from pathlib import Path

from fscil.classifier.calibration import calibrate_gallery, check_request, labelled_photos, require_same_rule
from fscil.classifier.decision import Thresholds
from fscil.classifier.doubts import doubts, warn_of
from fscil.classifier.estimating import Estimate, Estimated, estimate
from fscil.classifier.predictor import PathLike, Photos
from fscil.classifier.saving import SavedPredictor
from fscil.errors import DataError
from fscil.gallery import new_class_name
from fscil.openset import Calibration


class ChangeablePredictor(SavedPredictor):
    """The part of a `Classifier` that learns and forgets classes, and sets the threshold for "unknown"."""

    # Learning

    def enroll(self, name: str, images: Photos) -> int:
        """Learn a class, or improve one, from one photo or more. No training: its mean is updated.

        A photo that another class has moves from there to this one. An FscilWarning tells where a new class can hardly
        be distinguished from one that is enrolled, or where a photo looks like none of the others of its class.

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
        new_class_name(name)  # before the network is used in vain
        found = self.photos(images)
        if not found:
            raise DataError(f'"{name}": no photo to learn it from. Give at least one.')
        with self.lock:
            warn_of(doubts(self.gallery, self.decision, name, found))
            return self.gallery.move(name, found)

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

    def rename(self, name: str, to: str) -> None:
        """Give a class another name; it keeps its photos.

        Parameters
        ----------
        name : str
            An enrolled class.
        to : str
            A name that no class has, of 1 to 200 characters in any script.

        Raises
        ------
        UnknownClassError
            If it is not enrolled.
        ClassNameError
            If no class can have the new name, or another one has it.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.rename("robin", "European robin")
        >>> [info.name for info in classifier.classes()]
        ['blue tit', 'European robin', 'wren']
        """
        with self.lock:
            self.gallery.rename(name, to)

    def remove_photo(self, name: str, digest: str) -> None:
        """Remove one photo of a class, with every trace of it; with the last one, the class.

        Parameters
        ----------
        name : str
            An enrolled class.
        digest : str
            Of the photo, as in `Photo.digest`.

        Raises
        ------
        UnknownClassError
            If there is no such class, or it has no such photo.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.remove_photo("robin", classifier.gallery.photos("robin")[0].digest)
        >>> classifier.gallery.info("robin").photos
        4
        """
        with self.lock:
            self.gallery.remove_photo(name, digest)

    def reject(self, name: str, images: Photos) -> int:
        """Remember that photos do not show a class: negative examples ("not this").

        From then on a photo that fits such an example better than the class, or equals it, is answered as if the class
        were not enrolled. To enroll the photo in the class, or to forget the class, forgets the example.

        Parameters
        ----------
        name : str
            An enrolled class.
        images : photo or sequence of photos
            That show something else.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        UnknownClassError
            If the class is not enrolled.
        DataError
            If a photo cannot be read, or the class has learned it. Then nothing is remembered.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.predict("garden.jpg")[0].label
        'robin'
        >>> classifier.reject("robin", "garden.jpg")
        1
        >>> classifier.predict("garden.jpg")[0].label == "robin"
        False
        >>> [photo.source for photo in classifier.gallery.negatives("robin")]
        ['garden.jpg']
        """
        found = self.photos(images)
        with self.lock:
            return self.gallery.reject(name, found)

    def remove_negative(self, name: str, digest: str) -> None:
        """Forget one negative example of a class.

        Parameters
        ----------
        name : str
            An enrolled class.
        digest : str
            Of the example, as in `Photo.digest`.

        Raises
        ------
        UnknownClassError
            If there is no such class, or it has no such example.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.reject("robin", "garden.jpg")
        1
        >>> classifier.remove_negative("robin", classifier.gallery.negatives("robin")[0].digest)
        >>> classifier.predict("garden.jpg")[0].label
        'robin'
        """
        with self.lock:
            self.gallery.remove_negative(name, digest)

    def estimate(self) -> Estimate:
        """Estimate from the photos of the gallery how photos of one class differ, and decide by that from now on.

        A threshold for "unknown" is removed, because it was for other scores.

        Returns
        -------
        Estimate
            The decision rule and how it was found.

        Raises
        ------
        DataError
            If fewer than two classes have two photos or more.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.estimate().made["classes"]
        3
        """
        with self.lock:
            found = estimate(*self.gallery.features())
            self.gallery = self.gallery.under(found.rule)
            self.decision = replace(self.decision, calibration=None, probability=found.probability)
            self.made = {**self.made, "decision": found.made}
        return found

    # Unknown photos

    @property
    def calibration(self) -> Calibration | None:
        """The threshold that `calibrate` has set, if any; to set it to None removes it."""
        return self.decision.calibration

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        with self.lock:
            self.decision = replace(self.decision, calibration=calibration)

    @property
    def thresholds(self) -> Thresholds:
        """Where known ends and unknown begins, in the probabilities that a `Prediction` has. It can be set.

        Setting it removes a threshold that `calibrate` has set; reading it shows that one as a probability too.
        """
        return self.decision.effective_thresholds(len(self.gallery))

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        with self.lock:
            self.decision = self.decision.with_thresholds(thresholds.known, thresholds.unknown)

    def calibrate(
        self, folder: PathLike | None = None, false_accept: float = 0.05, score: str | None = None, quiet: bool = True
    ) -> Calibration:
        """Set the threshold below which a photo is called unknown.

        Without one, that is where "unknown" has a probability above 1/2; under the cosine rule, never.

        Parameters
        ----------
        folder : path, optional
            Photos of things that are not enrolled, in class folders or in none. Photos in folders named like an
            enrolled class measure how often a known one is rejected; where there are none, the model's own photos do,
            each held out once. Without a folder, each class is left out in turn.
        false_accept : float
            Share of unknown photos that may be taken for a class, from 0 to below 1.
        score : str, optional
            Under the cosine rule a key of `fscil.openset.SCORES`, by default "contrast"; otherwise "log_ratio".
        quiet : bool
            Show no progress.

        Returns
        -------
        Calibration
            The threshold and what it was set from.

        Raises
        ------
        ConfigError
            If there is no such score, the share is out of range, or the decision rule was replaced meanwhile.
        DataError
            If no class is enrolled, or the folder has no photo of anything else.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> found = classifier.calibrate("photos/no_birds", false_accept=0.05)
        >>> found.unknowns
        8
        >>> classifier.predict("car.jpg")[0].label is None
        True
        """
        rule = self.gallery.rule
        found = self.find_threshold(folder, false_accept, score, quiet)
        with self.lock:
            require_same_rule(rule, self.gallery.rule)
            self.calibration = found
        return found

    def find_threshold(
        self, folder: PathLike | None, false_accept: float, score: str | None, quiet: bool
    ) -> Calibration:
        """What `calibrate` would set, without setting it; with the same parameters."""
        with self.lock:
            gallery, estimated = self.gallery, Estimated.of(self.made)
        check_request(gallery, false_accept, score)
        labelled = labelled_photos(self.encoder, Path(folder).expanduser(), gallery, quiet) if folder else None
        with self.lock:
            return calibrate_gallery(gallery, labelled, false_accept, score, estimated, quiet)
