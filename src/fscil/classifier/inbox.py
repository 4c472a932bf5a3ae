"""Photos that a service did not know, kept until somebody names or forgets them.

They are in the folder "review" of the model folder, one JSON file each: what a gallery would keep of the photo, so that
to name it is to enroll it. No answer is kept, so that no name of a class outlives the class; `fscil.classifier.review`
asks the model anew. There are never more than so many photos and bytes: the oldest go first. Only the process that
serves the model writes here; others may while nobody serves it.
"""

import json
import re
import stat
import threading
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fscil.errors import FscilWarning, StoreError
from fscil.gallery import Photo
from fscil.runtime.files import cannot_write, flush_folder, read_checked_json, with_checksum, write_bytes
from fscil.runtime.validation import converted

FOLDER = "review"
AT_MOST = 500  # photos, unless asked otherwise
MOST = 2000  # of which all pairs can be compared in moments
MAX_BYTES = 2**26  # of all files together
OWN_FILES = re.compile(r"[0-9]{12}\.json")
LEFTOVERS = re.compile(r"\.[0-9]{12}\.json\..*\.part")  # of a process that was killed while it wrote


@dataclass(frozen=True)
class _Stored:
    network: str
    photo: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Kept:
    photo: Photo
    path: Path
    size: int  # bytes


class Inbox:
    """The kept photos of one model, each picture once, oldest first. Several threads may use it at once.

    network: tells the network whose features they are; photos of another one are left out, and `settle` removes them.
    """

    def __init__(self, model: Path, network: str, at_most: int = AT_MOST, max_bytes: int = MAX_BYTES) -> None:
        self.folder = model / FOLDER
        self.at_most, self.max_bytes = at_most, max_bytes
        self._network = network
        self._lock = threading.RLock()
        self._kept: dict[str, _Kept] = {}  # by digest
        self._last = 0  # number of a file
        self._read()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """Of all files together."""
        with self._lock:
            return sum(kept.size for kept in self._kept.values())

    def photos(self) -> list[Photo]:
        with self._lock:
            return [kept.photo for kept in self._kept.values()]

    def get(self, digest: str) -> Photo | None:
        with self._lock:
            kept = self._kept.get(digest)
        return kept.photo if kept else None

    def add(self, photos: Iterable[Photo]) -> int:
        """Keep photos that are not there yet; they are on disk when this returns. Returns how many were new."""
        added = 0
        with self._lock:
            for photo in photos:
                if photo.digest not in self._kept:
                    added += self._add(photo)
        return added

    def remove(self, digests: Iterable[str]) -> int:
        """Forget those of these photos that are there: no trace of them is left on disk. Returns how many."""
        with self._lock:
            gone = [self._kept[digest] for digest in dict.fromkeys(digests) if digest in self._kept]
            self._unlink([kept.path for kept in gone])
            for kept in gone:
                del self._kept[kept.photo.digest]
            return len(gone)

    def clear(self) -> int:
        """Forget all, damaged and unfinished files too, and the folder. Returns how many photos there were."""
        with self._lock:
            count = len(self._kept)
            self._unlink([path for path in self._files() if self._is_own(path)])
            self._kept.clear()
            with suppress(OSError):  # somebody else's file is in it
                self.folder.rmdir()
            return count

    def settle(self, enrolled: Iterable[str] = ()) -> None:
        """Remove what an earlier process has left: unfinished and damaged files, photos of another network, more than
        may be kept, and photos that are `enrolled` by now.
        """
        with self._lock:
            there = {kept.path for kept in self._kept.values()}
            self._unlink([path for path in self._files() if self._is_own(path) and path not in there])
            self.remove(enrolled)
            self._drop_oldest(room=0, size=0)

    # Inside

    def _files(self) -> list[Path]:
        """In order; none where there is no folder."""
        try:
            if not stat.S_ISDIR(self.folder.lstat().st_mode):
                raise StoreError(f"{self.folder}: is a link or no folder. Remove it, then do this again.")
            return sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be read ({error.strerror or error}).") from error

    @staticmethod
    def _is_own(path: Path) -> bool:
        return bool(OWN_FILES.fullmatch(path.name) or LEFTOVERS.fullmatch(path.name))

    def _read(self) -> None:
        for path in self._files():
            if not OWN_FILES.fullmatch(path.name):
                continue
            self._last = int(path.stem)
            try:
                found = converted(read_checked_json(path), _Stored, path)
                if found.network == self._network:
                    photo = Photo.from_json(found.photo)
                    self._kept.setdefault(photo.digest, _Kept(photo, path, path.lstat().st_size))
            except (StoreError, OSError) as error:
                warnings.warn(f"A kept photo is left out: {error}", FscilWarning, stacklevel=3)

    def _add(self, photo: Photo) -> bool:
        content = json.dumps(with_checksum({"network": self._network, "photo": photo.to_json()})).encode()
        if len(content) > self.max_bytes or not self.at_most:
            return False
        self._drop_oldest(room=1, size=len(content))  # before, so that there are never too many
        self._make_folder()
        self._last += 1
        path = self.folder / f"{self._last:012d}.json"
        write_bytes(path, content)
        self._kept[photo.digest] = _Kept(photo, path, len(content))
        return True

    def _drop_oldest(self, room: int, size: int) -> None:
        """Until there is room for so many more of so many bytes."""
        bytes_left, kept = self.max_bytes - size - self.bytes, list(self._kept.values())
        drop = max(0, len(kept) + room - self.at_most)
        bytes_left += sum(each.size for each in kept[:drop])
        while bytes_left < 0 and drop < len(kept):
            bytes_left += kept[drop].size
            drop += 1
        self.remove([each.photo.digest for each in kept[:drop]])

    def _make_folder(self) -> None:
        """For the owner alone: the photos may be of anybody who used the service."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error

    def _unlink(self, paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(
                    f"{path}: cannot be removed ({error.strerror or error}), and holds a photo that was to be "
                    f"forgotten. Make it possible, then do this again."
                ) from error
        if paths:
            flush_folder(self.folder)
