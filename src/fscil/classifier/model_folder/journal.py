"""The journal: lines that are on disk before anybody hears of them, each with a checksum.

A line's checksum covers the one before, the first one's that of model.json: no line can be changed, taken out, moved or
brought in from another model. A torn last line was never acknowledged and does not count.
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
class Place:
    """The end of a line."""

    length: int  # bytes up to here
    digest: str  # checksum of the line


@dataclass(frozen=True)
class Found:
    records: list[dict[str, Any]]
    end: Place  # of the last whole line
    torn: bool  # whether there is more behind it


class JournalError(StoreError):
    """A journal that does not go on from where it should."""


def scan(path: Path, start: Place) -> Found:
    """Read on from a place where the journal was whole."""
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
    return Found(records, Place(start.length + at, digest), torn=at < len(content))


def append(path: Path, end: Place, record: Mapping[str, Any]) -> Place:
    """Write a line at the end, over what is torn there. All of it is on disk when this returns, or none of it."""
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
    return Place(end.length + len(line), digest)


def _link(previous: str, payload: bytes) -> str:
    return hashlib.sha256(previous.encode() + payload).hexdigest()
