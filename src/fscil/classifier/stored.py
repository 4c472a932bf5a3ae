"""A classifier bound to its folder: what it learns is on disk before the call returns, and others' news come in."""

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fscil.classifier.model import Classifier, PathLike, Photos, calibration_of, gallery_of
from fscil.classifier.model_folder import Contents, ModelFolder, Version
from fscil.errors import DataError, FscilWarning, StoreError
from fscil.gallery import Gallery, Photo, class_name
from fscil.openset import Calibration

SHORT_JOURNAL = 256  # photos that a journal may hold before it is worth a new snapshot


class StoredClassifier:
    """Read with `.classifier`, change with the methods here. Several threads may use it at once."""

    def __init__(self, folder: ModelFolder, device: str = "auto") -> None:
        contents = folder.read()
        self.folder = folder
        self.classifier = Classifier.restore(contents, device, str(folder.path))
        self._lock = threading.RLock()  # one change at a time
        self._version: Version = contents.version
        self._settled, self._pending = _photos_in(contents)

    @classmethod
    @contextmanager
    def open(cls, path: PathLike, device: str = "auto", serving: bool = False) -> Iterator["StoredClassifier"]:
        """serving: for the life of the block, no other process may change the model."""
        folder = ModelFolder(Path(path).expanduser())
        with folder.serving() if serving else nullcontext():
            yield cls(folder, device)

    def refresh(self) -> bool:
        """Take in what other processes changed; returns whether there was anything."""
        with self._lock:
            version = self.folder.version()
            if version == self._version:
                return False
            records = self.folder.records_since(self._version)
            if records is None:
                self._replace(self.folder.read())
            else:  # what came after `version` was looked at comes again next time, which does no harm
                with self.classifier.lock:
                    for record in records:
                        self.classifier.gallery.apply(record)
                self._version = version
                self._pending += sum(len(record["photos"]) for record in records)
            return True

    def enroll(self, name: str, images: Photos) -> int:
        """Learn a class, or learn it better; returns how many photos were new to it."""
        class_name(name)
        return self.enroll_prepared(name, self.classifier.photos(images))

    def enroll_prepared(self, name: str, photos: Sequence[Photo]) -> int:
        """The same with photos whose features are there already."""
        if not photos:
            raise DataError(f'"{name}": no photo to learn it from. Give at least one.')
        trial = Gallery(self.classifier.encoder.dim)  # what cannot be enrolled must not get into the journal
        trial.enroll(name, photos)
        with self._lock:
            encoder = self.classifier.encoder
            self.refresh()
            if self.classifier.encoder is not encoder:
                raise self._replaced()  # these features would be among those of another network
            gallery = self.classifier.gallery
            known = {photo.digest for photo in gallery.photos(name)} if name in gallery else set()
            fresh = [photo for photo in trial.photos(name) if photo.digest not in known]
            if not fresh:
                return 0
            self.folder.append(Gallery.record(name, fresh))
            self.refresh()
            self._shorten()
            return len(fresh)

    def forget(self, name: str) -> None:
        """Remove a class and every trace of its photos, also from the files."""
        self._change(lambda gallery, about: gallery.forget(name))

    def calibrate(
        self,
        folder: PathLike | None = None,
        false_accept: float = 0.05,
        score: str | None = None,
        quiet: bool = True,
    ) -> Calibration:
        """As Classifier.calibrate."""
        with self._lock:
            self.refresh()
            found = self.classifier.find_threshold(folder, false_accept, score, quiet)
            self._change(lambda gallery, about: about.update(calibration=asdict(found)))
        return found

    def _shorten(self) -> None:
        """A new snapshot once the journal outweighs the old one: all in all, each photo is written a few times."""
        if self._pending > max(SHORT_JOURNAL, self._settled):
            try:
                self._change(lambda gallery, about: None)
            except StoreError as error:  # a disk too full for a snapshot: what was enrolled is in the journal
                warnings.warn(
                    f"The journal could not be shortened, nothing is lost: {error}", FscilWarning, stacklevel=3
                )

    def _change(self, change: Callable[[Gallery, dict[str, Any]], None]) -> None:
        """Change what is on disk as it is now, in one step, then what is here."""
        made: list[tuple[Gallery, dict[str, Any], int]] = []

        def compacted(contents: Contents) -> tuple[dict[str, Any], dict[str, Tensor]]:
            if not self._same_network(contents):
                raise self._replaced()
            gallery, about = gallery_of(contents), contents.about
            change(gallery, about)
            snapshot = gallery.snapshot()
            made.append((gallery, about, len(snapshot["features"])))
            return about, snapshot

        with self._lock:
            version = self.folder.compact(compacted)
            gallery, about, settled = made[-1]
            with self.classifier.lock:
                self.classifier.gallery, self.classifier.calibration = gallery, calibration_of(about)
            self._version, self._settled, self._pending = version, settled, 0

    def _replace(self, contents: Contents) -> None:
        """By a model that was written anew, perhaps with another network."""
        encoder = self.classifier.encoder
        if not self._same_network(contents):
            encoder = Classifier.restore(contents, str(encoder.device), str(self.folder.path)).encoder
        gallery, calibration = gallery_of(contents), calibration_of(contents.about)
        with self.classifier.lock:
            self.classifier.encoder, self.classifier.gallery = encoder, gallery
            self.classifier.calibration, self.classifier.made = calibration, contents.about["made"]
        self._version = contents.version
        self._settled, self._pending = _photos_in(contents)

    def _same_network(self, contents: Contents) -> bool:
        encoder = self.classifier.encoder
        mine = encoder.backbone.state_dict()
        return (
            contents.about["network"] == json.loads(json.dumps(encoder.config.to_dict()))  # as a file has it
            and mine.keys() == contents.weights.keys()
            and all(torch.equal(value.cpu(), contents.weights[key]) for key, value in mine.items())
        )

    def _replaced(self) -> StoreError:
        return StoreError(f"{self.folder.path}: somebody put another network there meanwhile. Open the model again.")


def _photos_in(contents: Contents) -> tuple[int, int]:
    """How many photos are in the snapshot, and how many in the journal."""
    return len(contents.snapshot["features"]), sum(len(record["photos"]) for record in contents.records)
