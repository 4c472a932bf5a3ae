"""A classifier bound to its folder: changes are on disk when a call returns, those of others come by `refresh`."""

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from fscil.classifier.decision import Decision
from fscil.classifier.doubts import doubts, warn_of
from fscil.classifier.estimating import Estimate, estimate
from fscil.classifier.model import Classifier
from fscil.classifier.model_folder import Changed, Contents, ModelFolder, Version
from fscil.classifier.predictor import PathLike, Photos
from fscil.classifier.saving import restore_gallery
from fscil.errors import ConfigError, DataError, FscilWarning, StoreError
from fscil.gallery import Gallery, Photo, class_name
from fscil.models.state import same_state
from fscil.openset import Calibration

MAX_JOURNAL = 256  # photos that a journal may hold, however small the snapshot, before a new snapshot replaces both


class StoredClassifier:
    """A model folder that several processes may use: predict with `.classifier`, change it with the methods here.

    Several threads may use it at once.

    Parameters
    ----------
    folder : ModelFolder
        Of an existing model.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".

    Raises
    ------
    StoreError
        If the folder is not a model or is damaged.

    Examples
    --------
    >>> with StoredClassifier.open("birds.fscil") as stored:
    ...     stored.enroll("red panda", ["panda1.jpg", "panda2.jpg"])
    2
    >>> Classifier.load("birds.fscil").predict("panda3.jpg")[0].label
    'red panda'
    """

    def __init__(self, folder: ModelFolder, device: str = "auto") -> None:
        contents = folder.read()
        self.folder = folder
        self.classifier = Classifier.restore(contents, device, str(folder.path))
        self._lock = threading.RLock()  # one change at a time
        self._version: Version = contents.version
        self._in_snapshot, self._in_journal = _photo_counts(contents)

    @classmethod
    @contextmanager
    def open(cls, path: PathLike, device: str = "auto", serving: bool = False) -> Iterator["StoredClassifier"]:
        """Open a model folder for a with block.

        Parameters
        ----------
        path : path
            The model folder.
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        serving : bool
            Keep other processes from changing the model until the block ends.

        Yields
        ------
        StoredClassifier

        Raises
        ------
        StoreError
            If the folder is not a model or is damaged; with `serving`, if another process serves it.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil", serving=True) as stored:
        ...     stored.classifier.predict("garden.jpg")[0].label
        'robin'
        """
        folder = ModelFolder(Path(path).expanduser())
        with folder.serving() if serving else nullcontext():
            yield cls(folder, device)

    def refresh(self) -> bool:
        """Read what other processes have changed.

        Returns
        -------
        bool
            Whether there was anything new.

        Raises
        ------
        StoreError
            If the folder can no longer be read.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as one, StoredClassifier.open("birds.fscil") as other:
        ...     other.forget("robin")
        ...     one.refresh(), one.refresh(), len(one.classifier.classes())
        (True, False, 2)
        """
        with self._lock:
            version = self.folder.version()
            if version == self._version:
                return False
            records = self.folder.records_since(self._version)
            if records is None:
                self._replace(self.folder.read())
            else:  # records that came after `version` was read are read again next time, which changes nothing
                with self.classifier.lock:
                    for record in records:
                        self.classifier.gallery.apply(record)
                self._version = version
                self._in_journal += sum(len(record["photos"]) for record in records)
            return True

    def enroll(self, name: str, images: Photos) -> int:
        """As `Classifier.enroll`; the photos are on disk when it returns.

        Parameters
        ----------
        name : str
            Of 1 to 200 characters in any script.
        images : photo or sequence of photos

        Returns
        -------
        int
            How many photos were new to the class.

        Raises
        ------
        ClassNameError, DataError
            If no class can have this name, or a photo cannot be read. Then nothing is written.
        StoreError
            If the model cannot be written, or another process serves it or has replaced its network.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.enroll("robin", "garden.jpg")
        1
        """
        class_name(name)
        found = self.classifier.photos(images)
        warn_of(self.doubts(name, found))
        return self.enroll_photos(name, found)

    def doubts(self, name: str, photos: Sequence[Photo]) -> list[str]:
        """What is doubtful about photos that are to be enrolled.

        Parameters
        ----------
        name : str
            Of a new class or an enrolled one.
        photos : sequence of Photo
            Made by `Classifier.photos` of this model.

        Returns
        -------
        list of str
            That a new class can hardly be distinguished from an enrolled one, or that a photo looks like none of the
            others of its class; usually nothing, and always under the cosine rule.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.doubts("robin", stored.classifier.photos("garden.jpg"))
        []
        """
        with self.classifier.lock:
            return doubts(self.classifier.gallery, self.classifier.decision, name, photos)

    def enroll_photos(self, name: str, photos: Sequence[Photo]) -> int:
        """As `enroll`, with photos whose features are computed already.

        Parameters
        ----------
        name : str
            Of 1 to 200 characters in any script.
        photos : sequence of Photo
            Made by `Classifier.photos` of this model.

        Returns
        -------
        int
            How many photos were new to the class.

        Raises
        ------
        ClassNameError, DataError, StoreError
            As `enroll`.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.enroll_photos("robin", stored.classifier.photos("garden.jpg"))
        1
        """
        if not photos:
            raise DataError(f'"{name}": no photo to learn it from. Give at least one.')
        trial = Gallery(self.classifier.encoder.dim)  # what cannot be enrolled must not get into the journal
        trial.enroll(name, photos)
        with self._lock:
            encoder = self.classifier.encoder
            self.refresh()
            if self.classifier.encoder is not encoder:
                raise self._other_network()  # these features must not be mixed with those of another network
            gallery = self.classifier.gallery
            known = {photo.digest for photo in gallery.photos(name)} if name in gallery else set()
            new = [photo for photo in trial.photos(name) if photo.digest not in known]
            if not new:
                return 0
            self.folder.append(Gallery.record(name, new))
            self.refresh()
            self._compact_if_long()
            return len(new)

    def forget(self, name: str) -> None:
        """Remove a class and every trace of its photos, also from the files.

        Parameters
        ----------
        name : str
            As for `Classifier.forget`.

        Raises
        ------
        UnknownClassError
            If it is not enrolled.
        StoreError
            If the model cannot be written, or another process serves it or has replaced its network.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.forget("robin")
        >>> [info.name for info in Classifier.load("birds.fscil").classes()]
        ['blue tit', 'wren']
        """
        self._change(lambda gallery, about: gallery.forget(name))

    def calibrate(
        self, folder: PathLike | None = None, false_accept: float = 0.05, score: str | None = None, quiet: bool = True
    ) -> Calibration:
        """As `Classifier.calibrate`; the threshold is on disk when it returns.

        Parameters
        ----------
        folder, false_accept, score, quiet
            As for `Classifier.calibrate`.

        Returns
        -------
        Calibration

        Raises
        ------
        ConfigError, DataError
            As `Classifier.calibrate`.
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     found = stored.calibrate("photos/no_birds")
        >>> Classifier.load("birds.fscil").calibration == found
        True
        """
        with self._lock:
            self.refresh()
            found = self.classifier.find_threshold(folder, false_accept, score, quiet)
            self._decide(lambda decision: replace(decision, calibration=found))
        return found

    def uncalibrate(self) -> None:
        """Remove the threshold that `calibrate` has set: photos are unknown where that is more probable than 1/2.

        Under the cosine rule no photo is unknown then.

        Raises
        ------
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     found = stored.calibrate("photos/no_birds")
        ...     stored.uncalibrate()
        >>> Classifier.load("birds.fscil").calibration is None
        True
        """
        self._decide(lambda decision: replace(decision, calibration=None))

    def set_unknown_prior(self, unknown_prior: float) -> None:
        """Set how probable it is, before a photo is seen, that it shows none of the classes.

        Parameters
        ----------
        unknown_prior : float
            Between 0 and 1.

        Raises
        ------
        ConfigError
            If it is not, or the model has no probabilities.
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.set_unknown_prior(0.2)
        >>> Classifier.load("birds.fscil").decision.unknown_prior
        0.2
        """

        def changed(decision: Decision) -> Decision:
            if decision.probability is None:
                raise ConfigError(
                    f"{self.folder.path} has no probabilities, so no prior can change them. Run: fscil upgrade"
                )
            return replace(decision, unknown_prior=unknown_prior)

        self._decide(changed)

    def upgrade(self) -> Estimate:
        """As `Classifier.estimate`; the decision rule is on disk when it returns.

        Returns
        -------
        Estimate
            The decision rule and how it was found.

        Raises
        ------
        DataError
            If fewer than two classes have two photos or more.
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.upgrade().made["classes"]
        3
        """
        found: list[Estimate] = []

        def change(gallery: Gallery, about: dict[str, Any]) -> Gallery:
            found.append(estimate(*gallery.features()))
            rule, decision = found[-1].rule, Decision.from_about(about)
            about.update(replace(decision, calibration=None, probability=found[-1].probability).to_about(rule))
            about["made"] = {**about["made"], "decision": found[-1].made}
            return gallery.under(rule)

        self._change(change)
        return found[-1]

    def _decide(self, change: Callable[[Decision], Decision]) -> None:
        """Change what the scores of the rule are taken for."""
        self._change(lambda gallery, about: about.update(change(Decision.from_about(about)).to_about(gallery.rule)))

    def _compact_if_long(self) -> None:
        """A new snapshot once the journal is longer than the old one: in all, each photo is written a few times."""
        if self._in_journal > max(MAX_JOURNAL, self._in_snapshot):
            try:
                self._change(lambda gallery, about: None)
            except StoreError as error:  # a disk too full for a snapshot: what was enrolled is in the journal
                warnings.warn(
                    f"The journal could not be compacted, nothing is lost: {error}", FscilWarning, stacklevel=3
                )

    def _change(self, change: Callable[[Gallery, dict[str, Any]], Gallery | None]) -> None:
        """Change gallery and description in one step: the latest state on disk first, then here.

        change: in place; where it returns another gallery, that replaces the old one and its decision rule.
        """
        changed: list[tuple[Gallery, dict[str, Any], int]] = []

        def changed_contents(contents: Contents) -> Changed:
            if not self._same_network(contents):
                raise self._other_network()
            gallery, about = restore_gallery(contents), contents.about
            other = change(gallery, about)
            gallery = gallery if other is None else other
            snapshot = gallery.snapshot()
            changed.append((gallery, about, len(snapshot["features"])))
            return Changed(about, snapshot, None if other is None else gallery.rule.state())

        with self._lock:
            version = self.folder.compact(changed_contents)
            gallery, about, photos = changed[-1]
            with self.classifier.lock:
                self.classifier.gallery, self.classifier.decision = gallery, Decision.from_about(about)
                self.classifier.made = about["made"]
            self._version, self._in_snapshot, self._in_journal = version, photos, 0

    def _replace(self, contents: Contents) -> None:
        """Take over a model that was written anew, perhaps with another network."""
        encoder = self.classifier.encoder
        if not self._same_network(contents):
            encoder = Classifier.restore(contents, str(encoder.device), str(self.folder.path)).encoder
        gallery, decision = restore_gallery(contents), Decision.from_about(contents.about)
        with self.classifier.lock:
            self.classifier.encoder, self.classifier.gallery = encoder, gallery
            self.classifier.decision, self.classifier.made = decision, contents.about["made"]
        self._version = contents.version
        self._in_snapshot, self._in_journal = _photo_counts(contents)

    def _same_network(self, contents: Contents) -> bool:
        encoder = self.classifier.encoder
        config = json.loads(json.dumps(encoder.config.to_dict()))  # as it is read from a file: lists, not tuples
        return bool(contents.about["network"] == config) and same_state(encoder.backbone, contents.weights)

    def _other_network(self) -> StoreError:
        return StoreError(f"{self.folder.path}: another process has replaced the network. Open the model again.")


def _photo_counts(contents: Contents) -> tuple[int, int]:
    """How many photos are in the snapshot, and how many in the journal."""
    return len(contents.snapshot["features"]), sum(len(record["photos"]) for record in contents.records)
