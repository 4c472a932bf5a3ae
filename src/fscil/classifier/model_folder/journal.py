"""The journal: a write-ahead log of JSON records, one line each, on disk before they are acknowledged.

The checksums are a hash chain: that of a line covers the one before, that of the first line model.json's. So no line
can be changed, removed, moved or copied from another model. A torn last line was never acknowledged and is ignored.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fscil.errors import StoreError
from fscil.runtime.files import cannot_write


@dataclass(frozen=True)
class Position:
    """The end of a line."""

    length: int  # bytes up to here
    digest: str  # checksum of the line


@dataclass(frozen=True)
class Scan:
    """What was read of a journal."""

    records: list[dict[str, Any]]
    end: Position  # of the last complete line
    torn: bool  # whether an incomplete line follows


class JournalError(StoreError):
    """A journal that does not continue from the position given."""


def scan(path: Path, start: Position) -> Scan:
    """Read on from the end of a valid line."""
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < start.length:
                raise JournalError(f"{path}: is shorter than it was. Restore the model from a copy.")
            file.seek(start.length)
            content = file.read()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}). Restore the model from a copy.") from error
    records, at, digest = [], 0, start.digest
    while (end := content.find(b"\n", at)) >= 0:
        line = content[at:end]
        claimed, _, payload = line.partition(b" ")
        if claimed != _link(digest, payload).encode():
            if b"\0" in line and end + 1 == len(content):
                break  # after a power cut parts of the last line may be zeros
            raise JournalError(
                f"{path}: the line at byte {start.length + at} has a wrong checksum: the file was damaged or changed. "
                f"Restore the model from a copy; or cut the file off at that byte, and enroll again what came after."
            )
        records.append(json.loads(payload))
        at, digest = end + 1, claimed.decode()
    return Scan(records, Position(start.length + at, digest), torn=at < len(content))


def append(path: Path, end: Position, record: Mapping[str, Any]) -> Position:
    """Write a line at the end, over a torn one. All of it is on disk when this returns; after an error, none of it."""
    payload = json.dumps(record, allow_nan=False).encode()
    digest = _link(end.digest, payload)
    line = f"{digest} ".encode() + payload + b"\n"
    try:
        with path.open("r+b", buffering=0) as file:
            file.truncate(end.length)
            file.seek(end.length)
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):
                    file.truncate(end.length)
                raise
    except OSError as error:
        raise cannot_write(path, error) from error
    return Position(end.length + len(line), digest)


def _link(previous: str, payload: bytes) -> str:
    return hashlib.sha256(previous.encode() + payload).hexdigest()
