"""Keys: who may read, and who may also enroll. A file with one `read KEY` or `enroll KEY` per line."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from fscil.errors import ConfigError

Right: TypeAlias = Literal["read", "enroll"]  # who may enroll may also read
SHORTEST = 16
MAKE_ONE = "python3 -c \"import secrets; print('enroll', secrets.token_urlsafe(24))\""


@dataclass(frozen=True)
class Keys:
    """What each key may do. Only digests are kept, so that no log or traceback can show a key."""

    rights: Sequence[tuple[bytes, Right]]

    @classmethod
    def load(cls, path: Path) -> "Keys":
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such key file. Make one: {MAKE_ONE} > {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: the key file cannot be read ({error}).") from error
        rights: dict[bytes, Right] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{path}, line {number}"
            if len(words) != 2 or words[0] not in get_args(Right):
                raise ConfigError(f'{where}: expected "read KEY" or "enroll KEY" (a comment starts with #).')
            if len(words[1]) < SHORTEST or not words[1].isascii():
                raise ConfigError(f"{where}: a key is at least {SHORTEST} ASCII characters. Make one: {MAKE_ONE}")
            digest = _digest(words[1].encode())
            if digest in rights:
                raise ConfigError(f"{where}: this key stands in the file already.")
            rights[digest] = "read" if words[0] == "read" else "enroll"
        if not rights:
            raise ConfigError(f"{path}: no key in it. Make one: {MAKE_ONE} >> {path}")
        return cls(tuple(rights.items()))

    def right(self, key: bytes) -> Right | None:
        """What this key may do; None if there is no such key. Takes the same time however near a guess is."""
        presented, found = _digest(key), None
        for digest, right in self.rights:
            if hmac.compare_digest(digest, presented):
                found = right
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
