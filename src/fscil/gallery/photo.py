"""What is kept of a photo, the summary of a class, and valid class names."""

import base64
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fscil.errors import ClassNameError
from fscil.runtime.validation import converted, invalid

MAX_NAME_LENGTH = 200

Origin = Literal["base", "enrolled"]


@dataclass(frozen=True, eq=False)
class Photo:
    """What a gallery keeps of one photo of a class.

    Attributes
    ----------
    digest : str
        SHA-256 of the pixels: the same picture has the same digest, whatever its file is called.
    feature : Tensor
        (d,) float32, raw.
    source : str
        Where the photo came from, for people.
    added : str
        When, as ISO 8601 in UTC.
    thumbnail : bytes
        A small JPEG, or nothing.
    """

    digest: str
    feature: Tensor
    source: str
    added: str
    thumbnail: bytes = b""

    def to_json(self) -> dict[str, str]:
        feature = self.feature.detach().float().cpu().numpy().astype("<f4")
        return {
            "digest": self.digest,
            "source": self.source,
            "added": self.added,
            "feature": base64.b64encode(feature.tobytes()).decode(),
            "thumbnail": base64.b64encode(self.thumbnail).decode(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Photo":
        """What `to_json` made. Raises a StoreError for anything else, and for a feature that is not finite."""
        found = converted(dict(content), _StoredPhoto, "a photo of the model")
        if len(found.feature) % 4:
            raise invalid("a photo of the model", "its feature is incomplete")
        feature = np.frombuffer(found.feature, "<f4").astype(np.float32)
        if not np.isfinite(feature).all():
            raise invalid("a photo of the model", "its feature is not finite")
        source, added = utf8(found.source), utf8(found.added)
        return cls(utf8(found.digest), torch.from_numpy(feature), source, added, found.thumbnail)


def utf8(text: str) -> str:
    """Text that can be written as UTF-8: what can not is escaped, as `fscil.data.photos` does with names of files."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class _StoredPhoto:
    """In JSON bytes are base64."""

    digest: str
    source: str
    added: str
    feature: bytes  # float32, little-endian
    thumbnail: bytes


@dataclass(frozen=True)
class ClassInfo:
    """Summary of a class.

    Attributes
    ----------
    name : str
    photos : int
        How many photos it has.
    origin : str
        "base" for a class that the model was fitted to, otherwise "enrolled".
    added, changed : str
        Times of its first and its last photo, as ISO 8601 in UTC.
    sources : tuple of str
        Where its photos came from, each once, in order of enrollment.
    """

    name: str
    photos: int
    origin: Origin
    added: str
    changed: str
    sources: tuple[str, ...]


def class_name(name: str) -> str:
    """The normal form of a class name: Unicode NFC, no surrounding whitespace, no control characters.

    Raises
    ------
    ClassNameError
        If it has not 1 to 200 characters, or has a control character.

    Examples
    --------
    >>> class_name("  red panda ")
    'red panda'
    """
    clean = unicodedata.normalize("NFC", name).strip()
    if not 1 <= len(clean) <= MAX_NAME_LENGTH:
        raise ClassNameError(
            f"A class name has 1 to {MAX_NAME_LENGTH} characters; {clean[:20]!a} has {len(clean)}. Choose another."
        )
    # Cs: surrogates, as in file names that are not Unicode. Zl, Zp: line breaks.
    bad = [letter for letter in clean if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")]
    if bad:
        raise ClassNameError(f"The class name {clean!a} has a control character in it: {bad[0]!a}. Leave it out.")
    return clean


def new_class_name(name: str) -> str:
    """As `class_name`, for a class that is to be made: a ClassNameError also for "." and "..".

    In a URL and among folders they would be places, not names.
    """
    clean = class_name(name)
    if clean in (".", ".."):
        raise ClassNameError(f'"{clean}" means a folder, no class can have this name. Choose another.')
    return clean
