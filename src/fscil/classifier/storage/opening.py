"""A storage by its path or URL."""

import os
import re
from pathlib import Path

from fscil.classifier.storage.folder import FolderStorage
from fscil.classifier.storage.interface import Storage

DATABASE = re.compile(r"postgres(ql)?://", re.IGNORECASE)


def is_database(place: str | os.PathLike[str]) -> bool:
    return isinstance(place, str) and bool(DATABASE.match(place))


def storage_at(place: str | os.PathLike[str]) -> Storage:
    """Of a model folder, or of postgresql://… . There need not be a model yet."""
    if is_database(place):
        from fscil.classifier.storage.postgres import PostgresStorage

        return PostgresStorage(str(place))
    return FolderStorage(Path(place).expanduser())
