"""What is kept of a photo, what there is to say of a class, and how a class may be called."""

import base64
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fscil.errors import ClassNameError

LONGEST_NAME = 200

Origin = Literal["base", "enrolled"]


@dataclass(frozen=True, eq=False)
class Photo:
    """One photo of a class: its feature, and what reminds people of it."""

    digest: str  # of the pixels: equal photos have equal ones
    feature: Tensor  # (d,) float32, raw
    source: str
    added: str  # ISO 8601, UTC
    thumbnail: bytes = b""  # a small JPEG

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
        feature = np.frombuffer(base64.b64decode(content["feature"]), "<f4").astype(np.float32)
        thumbnail = base64.b64decode(content["thumbnail"])
        return cls(content["digest"], torch.from_numpy(feature), content["source"], content["added"], thumbnail)


@dataclass(frozen=True)
class ClassInfo:
    name: str
    photos: int
    origin: Origin
    added: str  # its first photo
    changed: str  # its last
    sources: tuple[str, ...]  # each once, in order of arrival


def class_name(name: str) -> str:
    """The one spelling of a name, in any script: composed (NFC), no blanks around it, no control characters."""
    clean = unicodedata.normalize("NFC", name).strip()
    if not 1 <= len(clean) <= LONGEST_NAME:
        raise ClassNameError(
            f"A class name has 1 to {LONGEST_NAME} characters; {clean[:20]!a} has {len(clean)}. Choose another."
        )
    # Cs: half a character, as in file names that are no Unicode. Zl, Zp: line breaks.
    bad = [letter for letter in clean if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")]
    if bad:
        raise ClassNameError(f"The class name {clean!a} has a control character in it: {bad[0]!a}. Leave it out.")
    return clean
