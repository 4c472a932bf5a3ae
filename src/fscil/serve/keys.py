"""API keys and their permissions: a file with one `read KEY` or `enroll KEY` per line."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from fscil.errors import ConfigError

Permission: TypeAlias = Literal["read", "enroll"]  # "enroll" includes "read"
MIN_KEY_LENGTH = 16
NEW_KEY_COMMAND = "python3 -c \"import secrets; print('enroll', secrets.token_urlsafe(24))\""


@dataclass(frozen=True)
class Keys:
    """The permission of each key. Only digests are kept, so that no log or traceback can show a key."""

    permissions: Sequence[tuple[bytes, Permission]]  # (SHA-256 digest, permission)

    @classmethod
    def load(cls, path: Path) -> "Keys":
        permissions: dict[bytes, Permission] = {}
        for number, line in enumerate(_lines(path), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{path}, line {number}"
            digest, permission = _parse(words, where)
            if digest in permissions:
                raise ConfigError(f"{where}: this key is in the file already. Remove one of the two lines.")
            permissions[digest] = permission
        if not permissions:
            raise ConfigError(f"{path}: the file has no key. Add one: {NEW_KEY_COMMAND} >> {path}")
        return cls(tuple(permissions.items()))

    def permission(self, key: bytes) -> Permission | None:
        """What this key allows; None if there is no such key. Takes the same time for every wrong key."""
        presented, found = _digest(key), None
        for digest, permission in self.permissions:
            if hmac.compare_digest(digest, presented):
                found = permission
        return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such key file. Create one: {NEW_KEY_COMMAND} > {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the key file cannot be read ({error}).") from error


def _parse(words: Sequence[str], where: str) -> tuple[bytes, Permission]:
    match words:
        case ["read" | "enroll" as permission, key]:
            pass
        case _:
            raise ConfigError(f'{where}: expected "read KEY" or "enroll KEY" (a comment starts with #).')
    if len(key) < MIN_KEY_LENGTH or not key.isascii():
        raise ConfigError(
            f"{where}: a key has at least {MIN_KEY_LENGTH} characters, all ASCII. Create one: {NEW_KEY_COMMAND}"
        )
    return _digest(key.encode()), permission


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
