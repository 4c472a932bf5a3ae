"""What a service keeps of photos that it did not know, and what people say about them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from starlette.exceptions import HTTPException

from fscil.classifier import Prediction, StoredClassifier
from fscil.classifier.inbox import MOST, Inbox
from fscil.classifier.review import Waiting, review_groups, review_queue
from fscil.classifier.storage import is_database
from fscil.errors import ConfigError, StoreError
from fscil.gallery import Photo, class_name

log = logging.getLogger("fscil.serve")


class Review:
    """The kept photos of a model, and its negative examples. Several threads may read; one at a time may change.

    inbox: None where none can be kept, as in a database. keeping: whether photos are added to it.
    """

    def __init__(self, stored: StoredClassifier, inbox: Inbox | None = None, keeping: bool = False) -> None:
        self.keeping = keeping and inbox is not None
        self._stored, self._inbox = stored, inbox
        if inbox is not None:
            with stored.classifier.lock:
                gallery = stored.classifier.gallery
                inbox.settle({photo.digest for name in gallery.names for photo in gallery.photos(name)})

    @property
    def total(self) -> int:
        """How many photos are kept."""
        return len(self._inbox) if self._inbox is not None else 0

    @property
    def folder(self) -> Path | None:
        """Where they are."""
        return self._inbox.folder if self._inbox is not None else None

    @property
    def at_most(self) -> int:
        """Kept photos."""
        return self._inbox.at_most if self._inbox is not None else 0

    # Reading

    def queue(self) -> list[Waiting]:
        """Least certain answers first."""
        return review_queue(self._stored.classifier, self._kept())

    def groups(self) -> list[list[Photo]]:
        """That look alike, largest first."""
        return review_groups(self._stored.classifier, self._kept())

    def photos(self, digests: Sequence[str]) -> list[Photo]:
        """Kept ones; 404 for another."""
        found = [self._inbox.get(digest) if self._inbox is not None else None for digest in dict.fromkeys(digests)]
        if None in found:
            raise HTTPException(404, "There is no such photo in the review. It was named, forgotten or dropped.")
        return [photo for photo in found if photo]

    def negatives(self, name: str | None) -> list[tuple[str, Photo]]:
        """Of one class, or of all, with what each does not show."""
        with self._stored.classifier.lock:
            gallery = self._stored.classifier.gallery
            names = gallery.names if name is None else [class_name(name)]
            return [(each, photo) for each in names for photo in gallery.negatives(each)]

    def negative(self, name: str, digest: str) -> Photo:
        """404 if there is no such one."""
        found = [photo for _, photo in self.negatives(name) if photo.digest == digest]
        if not found:
            raise HTTPException(404, f'"{class_name(name)}" has no such negative example.')
        return found[0]

    # Changing, in the thread that writes

    def keep(self, photos: Sequence[Photo], answers: Sequence[Prediction]) -> None:
        """Those that were neither known nor learned from. A prediction does not fail because nothing could be kept."""
        new = [
            photo
            for photo, answer in zip(photos, answers, strict=True)
            if answer.state != "known" and not self._is_enrolled(photo, answer)
        ]
        if self.keeping and self._inbox is not None and new:
            try:
                self._inbox.add(new)
            except StoreError as error:
                log.warning("A photo that was not known could not be kept: %s", error)

    def reject(self, name: str, digests: Sequence[str]) -> tuple[int, int]:
        """They do not show this class. How many were new, and how many negative examples it has now."""
        return self.reject_photos(name, self.photos(digests))

    def reject_photos(self, name: str, photos: Sequence[Photo]) -> tuple[int, int]:
        """The same with photos that need not be kept."""
        added = self._stored.reject_photos(name, photos)
        return added, len(self.negatives(name))

    def remove_negative(self, name: str, digest: str) -> None:
        self._stored.remove_negative(name, digest)

    def forget(self, digests: Sequence[str]) -> int:
        """Those of these photos that are kept; returns how many."""
        return self._inbox.remove(digests) if self._inbox is not None else 0

    def clear(self) -> int:
        return self._inbox.clear() if self._inbox is not None else 0

    def _is_enrolled(self, photo: Photo, answer: Prediction) -> bool:
        """In one of the nearest classes: a photo is near the mean that it is a part of, and galleries may be large."""
        with self._stored.classifier.lock:
            gallery = self._stored.classifier.gallery
            near = [name for name, _ in answer.ranking if name in gallery]
            return any(photo.digest == each.digest for name in near for each in gallery.photos(name))

    def _kept(self) -> list[Photo]:
        return self._inbox.photos() if self._inbox is not None else []


def open_review(
    stored: StoredClassifier, model: Path | str, keep_unknown: int | None = None, read_only: bool = False
) -> Review:
    """Of the model in this folder; keep_unknown: add photos to it, at most so many.

    What was kept before stays in review also where nothing is added to it. Raises a ConfigError where nothing can be.
    """
    if keep_unknown is not None and (read_only or is_database(model)):
        why = "is a database, which keeps classes alone" if is_database(model) else "is read-only"
        raise ConfigError(f"{stored.storage.place} {why}: it keeps no photos. Serve it without --keep-unknown.")
    if read_only or is_database(model):
        return Review(stored)
    inbox = Inbox(Path(model).expanduser(), stored.network, MOST if keep_unknown is None else keep_unknown)
    return Review(stored, inbox, keeping=keep_unknown is not None)
