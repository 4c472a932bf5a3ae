"""A classifier bound to its storage: changes survive a crash when a call returns, those of others come by `refresh`."""

from collections.abc import Sequence
from contextlib import suppress

from fscil.classifier.doubts import Doubt, doubts, warn_of
from fscil.classifier.model_folder import other_network
from fscil.classifier.predictor import Photos
from fscil.classifier.stored_decision import StoredDecision
from fscil.errors import DataError, UnknownClassError
from fscil.gallery import Gallery, Photo, class_name, new_class_name


class StoredClassifier(StoredDecision):
    """A stored model that several processes may use: predict with `.classifier`, change it with the methods here.

    Several threads may use it at once.

    Parameters
    ----------
    storage : Storage
        Of an existing model.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".

    Raises
    ------
    StoreError
        If there is no model or it is damaged.

    Examples
    --------
    >>> with StoredClassifier.open("birds.fscil") as stored:
    ...     stored.enroll("red panda", ["panda1.jpg", "panda2.jpg"])
    2
    >>> Classifier.load("birds.fscil").predict("panda3.jpg")[0].label
    'red panda'
    """

    def enroll(self, name: str, images: Photos) -> int:
        """As `Classifier.enroll`; the photos are stored when it returns.

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
        new_class_name(name)
        found = self.classifier.photos(images)
        warn_of(self.doubts(name, found))
        return self.enroll_photos(name, found)

    def doubts(self, name: str, photos: Sequence[Photo]) -> list[Doubt]:
        """What is doubtful about photos that are to be enrolled.

        Parameters
        ----------
        name : str
            Of a new class or an enrolled one.
        photos : sequence of Photo
            Made by `Classifier.photos` of this model.

        Returns
        -------
        list of Doubt
            That a new class can hardly be distinguished from an enrolled one, that a photo looks like none of the
            others of its class, or that it is nearly the same as one of them; usually nothing.

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
        trial = Gallery(self.classifier.encoder.dim)  # what cannot be enrolled must not be stored
        trial.enroll(new_class_name(name), photos)
        with self._lock:
            self._refresh_same_network()
            gallery = self.classifier.gallery
            known = {photo.digest for photo in gallery.photos(name)} if name in gallery else set()
            new = [photo for photo in trial.photos(name) if photo.digest not in known]
            if new:
                self._write(Gallery.record(name, new))
            # After that, so that a crash in between loses nothing: the same call again goes on here.
            moved = self.classifier.gallery.elsewhere(name, (photo.digest for photo in photos))
            for other, digests in moved.items():
                with suppress(UnknownClassError):  # another process was faster
                    self._write({"do": "discard", "name": other, "digests": digests})
            return len(new)

    def _refresh_same_network(self) -> None:
        """Before features are stored: they must not be mixed with those of another network."""
        network = self._network
        self.refresh()
        if self._network != network:
            raise other_network(self.storage.place)

    def forget(self, name: str) -> None:
        """Remove a class and every trace of its photos, also from the files, or the rows of the database.

        Parameters
        ----------
        name : str
            As for `Classifier.forget`.

        Raises
        ------
        UnknownClassError
            If it is not enrolled; nothing of an attempt that was killed is left then either.
        StoreError
            If the model cannot be written, a file that may hold its photos cannot be removed, or another process
            serves the model or has replaced its network.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.forget("robin")
        >>> [info.name for info in Classifier.load("birds.fscil").classes()]
        ['blue tit', 'wren']
        """
        self._write({"do": "forget", "name": class_name(name)})

    def rename(self, name: str, to: str) -> None:
        """As `Classifier.rename`; the name is stored when it returns.

        Parameters
        ----------
        name, to : str
            As for `Classifier.rename`.

        Raises
        ------
        UnknownClassError, ClassNameError
            As `Classifier.rename`.
        StoreError
            As for `forget`.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.rename("robin", "European robin")
        >>> [info.name for info in Classifier.load("birds.fscil").classes()]
        ['blue tit', 'European robin', 'wren']
        """
        self._write({"do": "rename", "name": class_name(name), "to": new_class_name(to)})

    def remove_photo(self, name: str, digest: str) -> None:
        """As `Classifier.remove_photo`, also from the files, or the rows of the database.

        Parameters
        ----------
        name, digest : str
            As for `Classifier.remove_photo`.

        Raises
        ------
        UnknownClassError
            As `Classifier.remove_photo`.
        StoreError
            As for `forget`.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     first = stored.classifier.gallery.photos("robin")[0]
        ...     stored.remove_photo("robin", first.digest)
        ...     stored.classifier.gallery.info("robin").photos
        4
        """
        self._write({"do": "remove", "name": class_name(name), "digest": digest})

    def reject(self, name: str, images: Photos) -> int:
        """As `Classifier.reject`; the negative examples are stored when it returns.

        Parameters
        ----------
        name, images
            As for `Classifier.reject`.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        UnknownClassError, DataError
            As `Classifier.reject`.
        StoreError
            As for `forget`.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.reject("robin", "garden.jpg")
        1
        >>> Classifier.load("birds.fscil").predict("garden.jpg")[0].label == "robin"
        False
        """
        return self.reject_photos(name, self.classifier.photos(images))

    def reject_photos(self, name: str, photos: Sequence[Photo]) -> int:
        """As `reject`, with photos whose features are computed already.

        Parameters
        ----------
        name : str
            An enrolled class.
        photos : sequence of Photo
            Made by `Classifier.photos` of this model.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        UnknownClassError, DataError, StoreError
            As `reject`.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.reject_photos("robin", stored.classifier.photos("garden.jpg"))
        1
        """
        with self._lock:
            self._refresh_same_network()
            new = self.classifier.gallery.new_negatives(name, photos)
            if new:
                self._write(Gallery.record(name, new, "reject"))
            return len(new)

    def remove_negative(self, name: str, digest: str) -> None:
        """As `Classifier.remove_negative`, also from the files, or the rows of the database.

        Parameters
        ----------
        name, digest : str
            As for `Classifier.remove_negative`.

        Raises
        ------
        UnknownClassError
            As `Classifier.remove_negative`.
        StoreError
            As for `forget`.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.reject("robin", "garden.jpg")
        ...     stored.remove_negative("robin", stored.classifier.gallery.negatives("robin")[0].digest)
        1
        >>> Classifier.load("birds.fscil").gallery.negatives("robin")
        ()
        """
        self._write({"do": "remove_negative", "name": class_name(name), "digest": digest})
