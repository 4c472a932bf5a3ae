"""model.json: which files make up a model, and what it is."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from fscil.classifier.model_folder.journal import Position
from fscil.errors import StoreError
from fscil.runtime import locks
from fscil.runtime.files import read_json
from fscil.runtime.validation import as_type, require_plain

SCHEMA = 3  # of a model with negative examples
WITHOUT_NEGATIVES = 2  # older versions read such a model too
WITHOUT_DECISION = 1  # and this one decides by cosine
MANIFEST = "model.json"
OWN_FILES = re.compile(
    r"model\.json|(weights|decision)-[0-9a-f]{8}\.safetensors|gallery-[0-9]+\.safetensors|journal-[0-9]+\.jsonl"
    r"|\.lock|\.server|\.server\.json|\.[^/\\]+\.part"
)

Kind = Literal["weights", "gallery", "decision"]


@dataclass(frozen=True)
class Version:
    """The state of a model on disk: two are equal if and only if nothing has changed in between."""

    generation: int
    checksum: str  # of model.json
    end: Position  # of the journal


@dataclass(frozen=True)
class FileEntry:
    """One file of a generation."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Manifest:
    """One generation of a model."""

    generation: Annotated[int, Meta(ge=1)]
    about: dict[str, Any]
    files: dict[Kind, FileEntry]
    journal: Annotated[str, Meta(pattern=r"^journal-[0-9]{1,19}\.jsonl$")]
    sha256: str  # of all of the above: what the journal's checksums begin with

    @property
    def names(self) -> set[str]:
        return {MANIFEST, *locks.FILES, self.journal, *(file.name for file in self.files.values())}

    def version(self, end: Position) -> Version:
        return Version(self.generation, self.sha256, end)

    @property
    def network(self) -> str:
        return network_of(self.about, self.files["weights"].sha256)

    @property
    def start(self) -> Position:
        return Position(0, self.sha256)


def read_manifest(folder: Path) -> Manifest:
    """The model.json of a folder, checked. Raises a StoreError if it is none or of a newer version."""
    path = folder / MANIFEST
    try:
        content = read_json(path)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise StoreError(
                f"{folder} is not a model: it has no {MANIFEST}. Make one with: fscil fit DIR -o {folder}"
            ) from None
        raise
    if not isinstance(content, dict):
        content = {}
    schema = content.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise StoreError(f"{path}: written by a newer fscil (schema {str(schema)[:20]}). Upgrade fscil to read it.")
    require_plain(content, path)
    rest = {key: value for key, value in content.items() if key != "sha256"}
    if content.get("sha256") != checksum(rest):
        raise StoreError(
            f"{path}: its checksum is wrong: the file was damaged or changed, or is of another program. "
            f"Restore it from a copy."
        )
    found = as_type(content, Manifest, path)
    named = all(file.name.startswith(f"{kind}-") for kind, file in found.files.items())
    if not (named and {"weights", "gallery"} <= found.files.keys() and all(map(OWN_FILES.fullmatch, found.names))):
        raise StoreError(f"{path}: names files that are not a model's. Do not trust its source.")
    return found


def network_of(about: Mapping[str, Any], weights: str) -> str:
    """Tells one network from another. about: of the model; weights: the checksum of their file."""
    return checksum([about.get("network"), weights])


def checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
