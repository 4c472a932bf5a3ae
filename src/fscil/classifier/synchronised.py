"""A classifier and the storage it was read from: changes of either come to the other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Self

from fscil.classifier.decision import Decision
from fscil.classifier.model import Classifier
from fscil.classifier.model_folder import Contents
from fscil.classifier.predictor import PathLike
from fscil.classifier.saving import restore_gallery
from fscil.classifier.storage import Storage, storage_at
from fscil.classifier.storage.interface import Described, Record
from fscil.errors import FscilError, UnavailableError
from fscil.gallery import apply_record


class SynchronisedClassifier:
    """The part of a `StoredClassifier` that opens a model, and reads what others have changed."""

    def __init__(self, storage: Storage, device: str = "auto") -> None:
        contents = storage.read()
        self.storage = storage
        self.classifier = Classifier.restore(contents, device, storage.place)
        self._lock = threading.RLock()  # one change at a time
        self._version, self._network = contents.version, contents.network

    @classmethod
    @contextmanager
    def open(cls, path: PathLike, device: str = "auto", serving: bool = False) -> Iterator[Self]:
        """Open a model for a with block.

        Parameters
        ----------
        path : path or URL
            The model folder, or the address of a database: postgresql://…
        device : str
            "auto", "cpu", "cuda" or "cuda:N".
        serving : bool
            Keep other processes from changing a model folder until the block ends. What they change in a database is
            read as soon as it is there.

        Yields
        ------
        StoredClassifier

        Raises
        ------
        StoreError
            If there is no model or it is damaged; with `serving`, if another process serves the folder.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil", serving=True) as stored:
        ...     stored.classifier.predict("garden.jpg")[0].label
        'robin'
        """
        with closing(storage_at(path)) as storage, storage.serving() if serving else nullcontext():
            stored = cls(storage, device)
            with storage.following(stored.refresh) if serving else nullcontext():
                yield stored

    @property
    def network(self) -> str:
        """Tells its network from another."""
        return self._network

    def refresh(self) -> bool:
        """Read what other processes have changed.

        Returns
        -------
        bool
            Whether there was anything new.

        Raises
        ------
        StoreError
            If the model can no longer be read.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as one, StoredClassifier.open("birds.fscil") as other:
        ...     other.forget("robin")
        ...     one.refresh(), one.refresh(), len(one.classifier.classes())
        (True, False, 2)
        """
        with self._lock:
            changes = self.storage.changes_since(self._version)
            if changes is None:
                self._replace(self.storage.read())
                return True
            with self.classifier.lock:
                for record in changes.records:
                    apply_record(self.classifier.gallery, record)
            found, self._version = self._version != changes.version, changes.version
            return found

    def require_current(self) -> None:
        """For a server, before it answers.

        Raises
        ------
        UnavailableError
            If the database was out of reach for so long that others may have changed much since.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil", serving=True) as stored:
        ...     stored.require_current()
        """
        error = self.storage.outdated()
        if error:
            raise error

    def _write(self, record: Record) -> None:
        """Change the gallery in the storage, then here."""
        with self._changing():
            self.storage.write(record, self._network)

    def _describe(self, change: Callable[[Contents], Described]) -> None:
        """Change description and decision rule in the storage, then here."""
        with self._changing():
            self.storage.describe(change, self._network)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One change of the storage, which is read afterwards; also where it failed, as it may have been written before
        that: a class is forgotten although a file of before cannot be removed.
        """
        with self._lock:
            try:
                yield
            except UnavailableError:
                raise  # to read it would wait as long again, in vain
            except FscilError:
                with suppress(FscilError):
                    self.refresh()
                raise
            self.refresh()

    def _replace(self, contents: Contents) -> None:
        """Take over a model that was written anew, perhaps with another network."""
        encoder = self.classifier.encoder
        if contents.network != self._network:
            encoder = Classifier.restore(contents, str(encoder.device), self.storage.place).encoder
        gallery, decision = restore_gallery(contents), Decision.from_about(contents.about)
        with self.classifier.lock:
            self.classifier.encoder, self.classifier.gallery = encoder, gallery
            self.classifier.decision, self.classifier.made = decision, contents.about["made"]
        self._version, self._network = contents.version, contents.network
