"""The folder of a model: what is in it, and how one generation of files replaces another."""

import hashlib
import json
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fscil.classifier.model_folder import journal
from fscil.classifier.model_folder.journal import JournalError, Position
from fscil.classifier.model_folder.manifest import (
    MANIFEST,
    OWN_FILES,
    SCHEMA,
    WITHOUT_DECISION,
    WITHOUT_NEGATIVES,
    FileEntry,
    Kind,
    Manifest,
    Version,
    checksum,
    read_manifest,
)
from fscil.errors import FscilWarning, StoreError
from fscil.gallery.snapshot import NEGATIVE
from fscil.runtime import locks
from fscil.runtime.files import cannot_write, flush_folder, load_tensors, pack_tensors, write_bytes, write_json

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

KINDS: tuple[Kind, ...] = ("weights", "gallery", "decision")
KEPT: tuple[Kind, ...] = ("weights", "decision")  # by a new snapshot


@dataclass(frozen=True, eq=False)
class Contents:
    """All that a model folder holds, as one generation of files."""

    weights: dict[str, "Tensor"]
    about: dict[str, Any]  # description of the model
    snapshot: dict[str, "Tensor"]  # of the gallery
    records: list[dict[str, Any]]  # in the order in which they were appended
    version: Hashable  # two are equal if and only if nothing has changed in between
    decision: dict[str, "Tensor"]  # what the decision rule consists of; empty for the cosine rule
    network: str  # tells one network from another: checksums of its description and its weights


@dataclass(frozen=True, eq=False)
class Changed:
    """What a change of a model writes."""

    about: Mapping[str, Any]
    snapshot: Mapping[str, "Tensor"]
    decision: Mapping[str, "Tensor"] | None = None  # None: as it was


class ModelFolder:
    """One model folder. Readers take no lock, writers wait for each other, a server excludes writers elsewhere."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._checked: Version | None = None  # up to here the journal is valid and need not be read again

    def exists(self) -> bool:
        return (self.path / MANIFEST).is_file()

    def foreign_file(self) -> Path | None:
        """A file that is not of a model, where there is no model: then none may be written here."""
        if self.exists() or not self.path.exists():
            return None
        return next((each for each in self.path.iterdir() if not OWN_FILES.fullmatch(each.name)), None)

    # Reading, also while another process writes

    def read(self) -> Contents:
        """Everything, checked. A torn last line was never acknowledged: it is dropped, with a warning."""
        return self._consistently(self._read)

    def version(self) -> Version:
        """Cheap: reads model.json and what was appended to the journal since the last call."""
        return self._consistently(lambda manifest: manifest.version(self._end(manifest)))

    def records_since(self, version: Version) -> list[dict[str, Any]] | None:
        """What was appended after this version; None if the model was replaced or compacted since: then `read` it."""

        def read_records(manifest: Manifest) -> list[dict[str, Any]] | None:
            if manifest.version(version.end) != version:
                return None
            try:
                return journal.scan(self.path / manifest.journal, version.end).records
            except JournalError:
                return None

        return self._consistently(read_records)

    # Writing

    def remove_leftovers(self) -> None:
        """Remove what a writer that was killed has left: it may hold photos of a class that was forgotten.

        Raises a StoreError where that is impossible, also because another process writes or serves the model just now.
        """
        if self._leftovers(self._manifest()):
            with self._locked(None, wait=False) as manifest:
                self._remove_leftovers(manifest)

    def create(
        self,
        weights: Mapping[str, "Tensor"],
        about: Mapping[str, Any],
        snapshot: Mapping[str, "Tensor"],
        expected: Version | None = None,
        decision: Mapping[str, "Tensor"] | None = None,
    ) -> Version:
        """Write a new model, or replace one; with `expected`, only if it is still at that version.

        decision: what the decision rule consists of; nothing for the cosine rule.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            foreign = self.foreign_file()
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if foreign:
            raise StoreError(f"{self.path} holds something else ({foreign.name}). Choose another folder.")
        with locks.writing(self.path):
            generation = 1
            if self.exists():
                old = self._manifest()
                generation = old.generation + 1
                if expected and old.version(self._end(old)) != expected:
                    raise StoreError(f"{self.path}: the model has changed since it was read. Read it again first.")
            files: dict[Kind, FileEntry] = {"weights": self._write_tensors("weights", weights)}
            if decision:
                files["decision"] = self._write_tensors("decision", decision)
            return self._commit(generation, files, about, snapshot)

    def append(self, record: Mapping[str, Any], network: str | None = None) -> Version:
        """Append one record to the journal; it is on disk when this returns.

        network: what the model must have; by default any.
        """
        with self._locked(network) as manifest:
            end = self._end(manifest)
            with suppress(StoreError):  # the next compaction says so
                self._remove_leftovers(manifest)
            self._checked = manifest.version(journal.append(self.path / manifest.journal, end, record))
            return self._checked

    def compact(self, change: Callable[[Contents], Changed], network: str | None = None) -> Version:
        """Replace description, snapshot and decision by what `change` returns for the contents; empty the journal.

        Other writers wait meanwhile, so `change` must not write to this model itself. network: as for `append`. No file
        of an earlier state is left when this returns; where one cannot be removed, a StoreError says so.
        """
        with self._locked(network) as manifest:
            self._remove_leftovers(manifest)  # also where `change` finds nothing to do and raises
            changed = change(self._read(manifest))
            files = {kind: file for kind, file in manifest.files.items() if kind in KEPT}
            if changed.decision is not None:
                files["decision"] = self._write_tensors("decision", changed.decision)
            return self._commit(manifest.generation + 1, files, changed.about, changed.snapshot)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Until the block ends, writers of other processes get an error; those of this process may write."""
        self._manifest()
        with locks.serving(self.path):
            yield

    # Inside

    def _consistently(self, read: Callable[[Manifest], T]) -> T:
        """Read one generation; again if meanwhile the next one replaced it and its files were removed."""
        while True:
            manifest = self._manifest()
            try:
                return read(manifest)
            except StoreError:
                if self._manifest() == manifest:
                    raise

    @contextmanager
    def _locked(self, network: str | None, wait: bool = True) -> Iterator[Manifest]:
        self._manifest()  # leaves no lock in a folder that is not a model
        with locks.writing(self.path, wait):
            manifest = self._manifest()
            if network is not None and manifest.network != network:
                raise other_network(str(self.path))
            yield manifest

    def _manifest(self) -> Manifest:
        return read_manifest(self.path)

    def _read(self, manifest: Manifest) -> Contents:
        weights, snapshot, decision = (
            load_tensors(self.path / file.name, file.sha256)[0] if file else {}
            for file in map(manifest.files.get, KINDS)
        )
        path = self.path / manifest.journal
        found = journal.scan(path, manifest.start)
        if found.torn:
            with locks.no_writer(self.path) as alone:  # otherwise the line may be being written just now
                if alone:
                    found = journal.scan(path, manifest.start)
                    if found.torn:
                        _warn_torn(path, len(found.records))
        version = self._checked = manifest.version(found.end)
        return Contents(weights, manifest.about, snapshot, found.records, version, decision, manifest.network)

    def _end(self, manifest: Manifest) -> Position:
        """Of the last complete line of the journal."""
        path, checked = self.path / manifest.journal, self._checked
        start = checked.end if checked and checked.checksum == manifest.sha256 else manifest.start
        try:
            end = journal.scan(path, start).end
        except JournalError:  # an older copy of the journal may have been restored, which is valid from its start
            end = journal.scan(path, manifest.start).end
        self._checked = manifest.version(end)
        return end

    def _write_tensors(self, kind: Kind, tensors: Mapping[str, "Tensor"]) -> FileEntry:
        """Under a name that tells the content, so that a file in use is never written over by another."""
        content = pack_tensors(tensors)
        return self._write_file(f"{kind}-{hashlib.sha256(content).hexdigest()[:8]}.safetensors", content)

    def _write_file(self, name: str, content: bytes) -> FileEntry:
        write_bytes(self.path / name, content)
        return FileEntry(name, len(content), hashlib.sha256(content).hexdigest())

    def _commit(
        self,
        generation: int,
        files: Mapping[Kind, FileEntry],
        about: Mapping[str, Any],
        snapshot: Mapping[str, "Tensor"],
    ) -> Version:
        """Write the files of a generation, then the model.json that names them, then remove those of the last.

        files: weights and decision, which are there already.
        """
        gallery = self._write_file(f"gallery-{generation}.safetensors", pack_tensors(snapshot))
        content = {
            "schema": _schema(files, snapshot),
            "generation": generation,
            "about": json.loads(json.dumps(about, allow_nan=False)),  # as it will be read: lists, not tuples
            "files": {kind: asdict(file) for kind, file in {**files, "gallery": gallery}.items()},
            "journal": f"journal-{generation}.jsonl",
        }
        write_bytes(self.path / f"journal-{generation}.jsonl", b"")
        write_json(self.path / MANIFEST, {**content, "sha256": checksum(content)})
        manifest = self._manifest()
        self._checked = manifest.version(manifest.start)
        self._remove_leftovers(manifest)
        return self._checked

    def _leftovers(self, manifest: Manifest) -> list[Path]:
        """Of earlier generations, and of writers that were killed."""
        try:
            found = list(self.path.iterdir())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return [path for path in found if OWN_FILES.fullmatch(path.name) and path.name not in manifest.names]

    def _remove_leftovers(self, manifest: Manifest) -> None:
        leftovers, problems = self._leftovers(manifest), []
        for path in leftovers:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                problems.append(f"{path}: cannot be removed ({error.strerror or error})")
        if leftovers:
            flush_folder(self.path)
        if problems:
            raise StoreError(f"{problems[0]}, and may hold what was forgotten. Make it possible, then do this again.")


def _schema(files: Mapping[Kind, FileEntry], snapshot: Mapping[str, "Tensor"]) -> int:
    """The smallest one that says all there is."""
    if any(name.startswith(NEGATIVE) for name in snapshot):
        return SCHEMA
    return WITHOUT_NEGATIVES if "decision" in files else WITHOUT_DECISION


def other_network(place: str) -> StoreError:
    return StoreError(f"{place}: another process has replaced the network. Open the model again.")


def _warn_torn(path: Path, complete: int) -> None:
    warnings.warn(
        f"{path}: the last line is torn, because a writer was stopped before it was done, and is left out. "
        f"The {complete} records before it are complete.",
        FscilWarning,
        stacklevel=5,
    )
