"""The folder of a model: what is in it, and how one generation of files replaces another."""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fscil.classifier.model_folder import journal
from fscil.classifier.model_folder.journal import JournalError, Position
from fscil.errors import FscilWarning, StoreError
from fscil.runtime import locks
from fscil.runtime.files import cannot_write, load_tensors, pack_tensors, read_json, write_bytes, write_json

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

SCHEMA = 2
WITHOUT_DECISION = 1  # the schema of a model that decides by cosine: older versions read it too
MANIFEST = "model.json"
OWN_FILES = re.compile(
    r"model\.json|(weights|decision)-[0-9a-f]{8}\.safetensors|gallery-\d+\.safetensors|journal-\d+\.jsonl"
    r"|\.lock|\.server|\.server\.json|\.[^/\\]+\.part"
)


@dataclass(frozen=True)
class Version:
    """The state of a model on disk: two are equal if and only if nothing has changed in between."""

    generation: int
    checksum: str  # of model.json
    end: Position  # of the journal


@dataclass(frozen=True, eq=False)
class Contents:
    """All that a model folder holds, as one generation of files."""

    weights: dict[str, "Tensor"]
    about: dict[str, Any]  # description of the model
    snapshot: dict[str, "Tensor"]  # of the gallery
    records: list[dict[str, Any]]  # in the order in which they were appended
    version: Version
    decision: dict[str, "Tensor"]  # what the decision rule consists of; empty for the cosine rule


@dataclass(frozen=True, eq=False)
class Changed:
    """What a change of a model writes."""

    about: Mapping[str, Any]
    snapshot: Mapping[str, "Tensor"]
    decision: Mapping[str, "Tensor"] | None = None  # None: as it was


@dataclass(frozen=True)
class _Manifest:
    """model.json: the files of one generation."""

    generation: int
    about: dict[str, Any]
    files: dict[str, dict[str, Any]]  # weights, gallery and, if there is one, decision -> name, size, sha256
    journal: str
    checksum: str

    @property
    def names(self) -> set[str]:
        return {MANIFEST, *locks.FILES, self.journal, *(file["name"] for file in self.files.values())}

    def version(self, end: Position) -> Version:
        return Version(self.generation, self.checksum, end)

    @property
    def start(self) -> Position:
        return Position(0, self.checksum)


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

        def read_records(manifest: _Manifest) -> list[dict[str, Any]] | None:
            if manifest.version(version.end) != version:
                return None
            try:
                return journal.scan(self.path / manifest.journal, version.end).records
            except JournalError:
                return None

        return self._consistently(read_records)

    # Writing

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
            files = {"weights": self._write_tensors("weights", weights)}
            if decision:
                files["decision"] = self._write_tensors("decision", decision)
            return self._commit(generation, files, about, snapshot)

    def append(self, record: Mapping[str, Any]) -> Version:
        """Append one record to the journal; it is on disk when this returns."""
        with self._locked() as manifest:
            end = self._end(manifest)
            self._remove_leftovers(manifest)
            self._checked = manifest.version(journal.append(self.path / manifest.journal, end, record))
            return self._checked

    def compact(self, change: Callable[[Contents], Changed]) -> Version:
        """Replace description, snapshot and decision by what `change` returns for the contents; empty the journal.

        Other writers wait meanwhile, so `change` must not write to this model itself.
        """
        with self._locked() as manifest:
            changed = change(self._read(manifest))
            files = {kind: file for kind, file in manifest.files.items() if kind in ("weights", "decision")}
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

    def _consistently(self, read: Callable[[_Manifest], T]) -> T:
        """Read one generation; again if meanwhile the next one replaced it and its files were removed."""
        while True:
            manifest = self._manifest()
            try:
                return read(manifest)
            except StoreError:
                if self._manifest() == manifest:
                    raise

    @contextmanager
    def _locked(self) -> Iterator[_Manifest]:
        self._manifest()  # leaves no lock in a folder that is not a model
        with locks.writing(self.path):
            yield self._manifest()

    def _manifest(self) -> _Manifest:
        path = self.path / MANIFEST
        try:
            content = read_json(path)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                raise StoreError(
                    f"{self.path} is not a model: it has no {MANIFEST}. Make one with: fscil fit DIR -o {self.path}"
                ) from None
            raise
        if not isinstance(content, dict):
            content = {}
        schema = content.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise StoreError(f"{path}: written by a newer fscil (schema {schema}). Upgrade fscil to read it.")
        checksum = content.pop("sha256", None)
        if checksum != _checksum(content):
            raise StoreError(
                f"{path}: its checksum is wrong: the file was damaged or changed, or is of another program. "
                f"Restore it from a copy."
            )
        found = _Manifest(content["generation"], content["about"], content["files"], content["journal"], checksum)
        if not all(OWN_FILES.fullmatch(name) for name in found.names):
            raise StoreError(f"{path}: names files that are not a model's. Do not trust its source.")
        return found

    def _read(self, manifest: _Manifest) -> Contents:
        weights, snapshot, decision = (
            load_tensors(self.path / file["name"], file["sha256"])[0] if file else {}
            for file in (manifest.files.get(kind) for kind in ("weights", "gallery", "decision"))
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
        return Contents(weights, manifest.about, snapshot, found.records, version, decision)

    def _end(self, manifest: _Manifest) -> Position:
        """Of the last complete line of the journal."""
        path, checked = self.path / manifest.journal, self._checked
        start = checked.end if checked and checked.checksum == manifest.checksum else manifest.start
        try:
            end = journal.scan(path, start).end
        except JournalError:  # an older copy of the journal may have been restored, which is valid from its start
            end = journal.scan(path, manifest.start).end
        self._checked = manifest.version(end)
        return end

    def _write_tensors(self, kind: str, tensors: Mapping[str, "Tensor"]) -> dict[str, Any]:
        """Under a name that tells the content, so that a file in use is never written over by another."""
        content = pack_tensors(tensors)
        return self._write_file(f"{kind}-{hashlib.sha256(content).hexdigest()[:8]}.safetensors", content)

    def _write_file(self, name: str, content: bytes) -> dict[str, Any]:
        write_bytes(self.path / name, content)
        return {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def _commit(
        self,
        generation: int,
        files: Mapping[str, dict[str, Any]],
        about: Mapping[str, Any],
        snapshot: Mapping[str, "Tensor"],
    ) -> Version:
        """Write the files of a generation, then the model.json that names them, then remove those of the last.

        files: weights and decision, which are there already.
        """
        content = {
            "schema": SCHEMA if "decision" in files else WITHOUT_DECISION,
            "generation": generation,
            "about": json.loads(json.dumps(about, allow_nan=False)),  # as it will be read: lists, not tuples
            "files": {
                **files,
                "gallery": self._write_file(f"gallery-{generation}.safetensors", pack_tensors(snapshot)),
            },
            "journal": f"journal-{generation}.jsonl",
        }
        write_bytes(self.path / f"journal-{generation}.jsonl", b"")
        write_json(self.path / MANIFEST, {**content, "sha256": _checksum(content)})
        manifest = self._manifest()
        self._remove_leftovers(manifest)
        self._checked = manifest.version(manifest.start)
        return self._checked

    def _remove_leftovers(self, manifest: _Manifest) -> None:
        """Of earlier generations, and of writers that were killed."""
        for path in self.path.iterdir():
            if OWN_FILES.fullmatch(path.name) and path.name not in manifest.names:
                with suppress(OSError):  # where it is still being read, the next writer removes it
                    path.unlink(missing_ok=True)


def _warn_torn(path: Path, complete: int) -> None:
    warnings.warn(
        f"{path}: the last line is torn, because a writer was stopped before it was done, and is left out. "
        f"The {complete} records before it are complete.",
        FscilWarning,
        stacklevel=5,
    )


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
