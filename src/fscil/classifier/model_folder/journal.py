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
from typing import Any, BinaryIO

from fscil.errors import StoreError
from fscil.runtime.files import cannot_write
from fscil.runtime.regular_files import open_regular, require_regular
from fscil.runtime.validation import require_plain

MAX_LINE = 2**30  # bytes


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
        with open_regular(path, None, follow_links=False) as file:
            if file.seek(0, os.SEEK_END) < start.length:
                raise JournalError(f"{path}: is shorter than it was. Restore the model from a copy.")
            file.seek(start.length)
            return _scan(path, file, start)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read ({error.strerror or error}). Restore the model from a copy."
        ) from error


def _scan(path: Path, file: BinaryIO, start: Position) -> Scan:
    records: list[dict[str, Any]] = []
    at, digest = start.length, start.digest
    while line := file.readline(MAX_LINE + 1):
        if not line.endswith(b"\n"):
            if len(line) > MAX_LINE:
                raise JournalError(f"{path}: the line at byte {at} is too long. Restore the model from a copy.")
            return Scan(records, Position(at, digest), torn=True)
        claimed, _, payload = line[:-1].partition(b" ")
        if claimed != _link(digest, payload).encode():
            if b"\0" in line and not file.read(1):
                return Scan(records, Position(at, digest), torn=True)  # a power cut may leave zeros in the last line
            raise JournalError(
                f"{path}: the line at byte {at} has a wrong checksum: the file was damaged or changed. "
                f"Restore the model from a copy; or cut the file off at that byte, and enroll again what came after."
            )
        records.append(_record(path, at, payload))
        at, digest = at + len(line), claimed.decode()
    return Scan(records, Position(at, digest), torn=False)


def _record(path: Path, at: int, payload: bytes) -> dict[str, Any]:
    """Its checksum is right, but whoever made the folder may have written anything."""
    try:
        record = json.loads(payload)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise JournalError(f"{path}: the line at byte {at} is no JSON object. Restore the model from a copy.")
    require_plain(record, path)
    return record


def append(path: Path, end: Position, record: Mapping[str, Any]) -> Position:
    """Write a line at the end, over a torn one. All of it is on disk when this returns; after an error, none of it."""
    payload = json.dumps(record, allow_nan=False).encode()
    digest = _link(end.digest, payload)
    line = f"{digest} ".encode() + payload + b"\n"
    if len(line) > MAX_LINE:
        raise StoreError(f"{path}: too much to write at once ({len(line) >> 20} MiB). Enroll fewer photos at a time.")
    try:
        require_regular(path)  # where a system cannot open without following links
        with open_regular(path, None, follow_links=False, flags=os.O_RDWR, buffering=0) as file:
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
