"""The classifier for people with photos: fit, enroll, forget, predict, say "unknown", save and load."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fscil import __version__
from fscil.classifier.calibration import calibrate_gallery, labelled_features
from fscil.classifier.decision import Decision
from fscil.classifier.doubts import doubts, warn_of
from fscil.classifier.estimating import Estimate, estimate
from fscil.classifier.predictor import PathLike, Photos
from fscil.classifier.saving import SavedPredictor
from fscil.errors import ConfigError, DataError
from fscil.gallery import class_name
from fscil.openset import Calibration
from fscil.training.context import Context

if TYPE_CHECKING:
    from fscil.classifier.finetuning import Say
    from fscil.classifier.fitting import FitResult


class Classifier(SavedPredictor):
    """A frozen network, a gallery of classes and a decision rule. Several threads may use it at once.

    Make one with `fit`, `pretrained`, `from_run` or `load`. Wherever photos are expected, give one or a list of them:
    paths, the contents of files as bytes, Pillow images, or uint8 arrays of shape (height, width, 3).

    Parameters
    ----------
    encoder : PhotoEncoder
        Computes the feature of a photo.
    gallery : Gallery, optional
        The classes and the rule by which photos are compared with them; by default none, and the cosine rule.
    decision : Decision, optional
        When to call a photo unknown, and probabilities; by default never, and none.
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

    # Making one

    @classmethod
    def fit(
        cls,
        folder: PathLike,
        *,
        finetune: bool = False,
        minutes: float | None = None,
        from_scratch: bool = False,
        unknown_prior: float | None = None,
        settings: Sequence[str] = (),
        device: str = "auto",
        quiet: bool = False,
        say: "Say | None" = None,
        work: PathLike | None = None,
    ) -> "Classifier":
        """Enroll all photos of a folder of class folders, and estimate how photos of one class differ from each other.

        No training: every photo passes the pretrained network once. With fewer than two classes of two photos or more
        nothing can be estimated, and photos are compared with class means by cosine.

        Parameters
        ----------
        folder : path
            Photos in one folder per class: folder/class/photo. If it has a train part, only that is used.
        finetune : bool
            Train the network on the classes with at least 5 photos, except for a fifth of their photos. The result is
            used only if it does better on those.
        minutes : float, optional
            Train no longer than this, on fewer photos if need be; 0: no training.
        from_scratch : bool
            Train a small network from random weights, instead of the pretrained one. Its result is always used.
        unknown_prior : float, optional
            How probable it is, before a photo is seen, that it shows none of the classes.
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
        >>> classifier = Classifier.fit("photos/birds", quiet=True)  # finetune=True, minutes=20 also trains
        >>> [info.name for info in classifier.classes()]
        ['blue tit', 'robin', 'wren']
        """
        from fscil.classifier.fitting import Training, fit_folder, folder_recipe

        training = Training.asked(finetune, minutes, from_scratch)
        decision = Decision() if unknown_prior is None else Decision(unknown_prior=unknown_prior)
        context = Context.on(device, quiet)
        recipe = folder_recipe(training, settings)
        root, workplace = Path(folder).expanduser(), Path(work) if work else None
        made = cls._from(fit_folder(root, recipe, training, context, say or _default_say(quiet), workplace))
        made.decision = replace(made.decision, unknown_prior=decision.unknown_prior)
        return made

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
        return cls(result.encoder, result.gallery, result.decision, {**result.made, "fscil": __version__})

    # Learning

    def enroll(self, name: str, images: Photos) -> int:
        """Learn a class, or improve one, from one photo or more. No training: its mean is updated.

        An FscilWarning tells where a new class can hardly be distinguished from one that is enrolled, or where a photo
        looks like none of the others of its class.

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
            warn_of(doubts(self.gallery, self.decision, name, found))
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
        self.decision = replace(self.decision, calibration=calibration)

    def calibrate(
        self, folder: PathLike | None = None, false_accept: float = 0.05, score: str | None = None, quiet: bool = True
    ) -> Calibration:
        """Set the threshold below which a photo is called unknown.

        Without one, that is where "unknown" has a probability above 1/2; under the cosine rule, never.

        Parameters
        ----------
        folder : path, optional
            Photos of things that are not enrolled, in class folders or in none. Photos in folders named like an
            enrolled class measure how often a known one is rejected. Without a folder, each class is left out in turn.
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
            If there is no such score or the share is out of range.
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
        self.calibration = self.find_threshold(folder, false_accept, score, quiet)
        return self.calibration

    def find_threshold(
        self, folder: PathLike | None, false_accept: float, score: str | None, quiet: bool
    ) -> Calibration:
        """What `calibrate` would set, without setting it; with the same parameters."""
        labelled = labelled_features(self.encoder, Path(folder).expanduser(), quiet) if folder else None
        with self.lock:
            return calibrate_gallery(self.gallery, labelled, false_accept, score)


def _check_shots(shots: int) -> None:
    if shots < 1:
        raise ConfigError(f"shots = {shots}: must be at least 1.")


def _default_say(quiet: bool) -> "Say":
    return (lambda text: None) if quiet else print
