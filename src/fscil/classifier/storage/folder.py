"""A model folder as a storage: new photos go to its journal, all other changes write a new snapshot."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from fscil.classifier.model_folder import Changed, Contents, ModelFolder
from fscil.classifier.model_folder import Version as FolderVersion
from fscil.classifier.storage.contents import gallery_of
from fscil.classifier.storage.interface import Changes, Described, Network, Record, Version
from fscil.errors import FscilWarning, StoreError
from fscil.gallery import Gallery, apply_record

MAX_JOURNAL = 256  # photos that a journal may hold, however small the snapshot, before a new snapshot replaces both


class FolderStorage:
    """One process serves it; others may read it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.folder = ModelFolder(path)
        self._in_snapshot = self._in_journal = 0  # photos
        # The last change that was made here by a new snapshot: versions before and after. A journal tells of no such.
        self._rewritten: tuple[Version, Version, list[Record]] | None = None

    @property
    def place(self) -> str:
        return str(self.folder.path)

    @property
    def identity(self) -> Path:
        return self.folder.path.resolve()

    def exists(self) -> bool:
        return self.folder.exists()

    def create(
        self,
        weights: Mapping[str, Tensor],
        about: Mapping[str, Any],
        snapshot: Mapping[str, Tensor],
        expected: Version | None = None,
        decision: Mapping[str, Tensor] | None = None,
    ) -> Version:
        assert expected is None or isinstance(expected, FolderVersion)
        return self.folder.create(weights, about, snapshot, expected, decision)

    def read(self) -> Contents:
        with suppress(StoreError):  # where nobody may write, or somebody does just now, it stays
            self.folder.remove_leftovers()
        contents = self.folder.read()
        self._in_snapshot = len(contents.snapshot.get("features", ()))
        self._in_journal = _photo_count(contents.records)
        return contents

    def version(self) -> Version:
        return self.folder.version()

    def changes_since(self, version: Version) -> Changes | None:
        now, start, records = self.folder.version(), version, list[Record]()
        if now == version:
            return Changes([], now)
        if self._rewritten and self._rewritten[0] == version:
            _, start, records = self._rewritten
        assert isinstance(start, FolderVersion)
        appended = self.folder.records_since(start)
        if appended is None:
            return None
        self._in_journal += _photo_count(appended)
        # Enrollments that came after `now` was read are read again next time, which changes nothing.
        return Changes([*records, *appended], now)

    def write(self, record: Record, network: Network) -> None:
        if record["do"] in ("enroll", "reject"):
            self._compact_if_long(network)
            self.folder.append(record, network)
        else:
            self._rewrite(lambda gallery: apply_record(gallery, record), network, [record])

    def describe(self, change: Callable[[Contents], Described], network: Network) -> None:
        def changed(contents: Contents) -> Changed:
            described = change(contents)
            return Changed(described.about, gallery_of(contents).snapshot(), described.decision)

        self.folder.compact(changed, network)

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self.folder.serving():
            yield

    @contextmanager
    def following(self, refresh: Callable[[], object]) -> Iterator[None]:
        yield  # while it is served, nobody else can change it

    def outdated(self) -> StoreError | None:
        return None

    def close(self) -> None:
        pass

    def _compact_if_long(self, network: Network) -> None:
        """A new snapshot once the journal is longer than the old one: in all, each photo is written a few times."""
        if self._in_journal > max(MAX_JOURNAL, self._in_snapshot):
            try:
                self._rewrite(lambda gallery: None, network, [])
            except StoreError as error:  # a disk too full for a snapshot may have room for a line
                warnings.warn(
                    f"The journal could not be compacted, nothing is lost: {error}", FscilWarning, stacklevel=4
                )

    def _rewrite(self, change: Callable[[Gallery], object], network: Network, records: list[Record]) -> None:
        """A new snapshot, of the latest gallery after a change in place."""
        before: list[Version] = []

        def changed(contents: Contents) -> Changed:
            before.append(contents.version)
            gallery = gallery_of(contents)
            change(gallery)
            snapshot = gallery.snapshot()
            self._in_snapshot, self._in_journal = len(snapshot["features"]), 0
            return Changed(contents.about, snapshot)

        after = self.folder.compact(changed, network)
        self._rewritten = before[-1], after, records


def _photo_count(records: list[dict[str, Any]]) -> int:
    """Not checked yet: whether they are enrollments, the gallery says."""
    return sum(len(photos) for photos in (record.get("photos") for record in records) if isinstance(photos, list))
