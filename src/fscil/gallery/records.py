"""The changes of a gallery as JSON, for a journal or another process; read again, with everything checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fscil.errors import StoreError
from fscil.gallery.photo import Origin, Photo
from fscil.runtime.text import printable
from fscil.runtime.validation import converted, invalid

SOURCE = "a record of the journal"


@dataclass(frozen=True, eq=False)
class Enrollment:
    name: str
    photos: list[Photo]
    origin: Origin


@dataclass(frozen=True)
class Forgetting:
    name: str


@dataclass(frozen=True)
class Renaming:
    name: str
    to: str


@dataclass(frozen=True)
class Removal:
    name: str
    digest: str


@dataclass(frozen=True)
class Discarding:
    name: str
    digests: list[str]  # of photos that it need not have


@dataclass(frozen=True, eq=False)
class Replacement:
    name: str
    kept: set[str]  # digests
    photos: list[Photo]


@dataclass(frozen=True, eq=False)
class Rejection:
    name: str
    photos: list[Photo]  # that do not show it


@dataclass(frozen=True)
class NegativeRemoval:
    name: str
    digest: str


@dataclass(frozen=True, eq=False)
class NegativeReplacement:
    name: str
    kept: set[str]  # digests
    photos: list[Photo]


Change: TypeAlias = (
    Enrollment
    | Forgetting
    | Renaming
    | Removal
    | Discarding
    | Replacement
    | Rejection
    | NegativeRemoval
    | NegativeReplacement
)


@dataclass(frozen=True)
class _StoredEnrollment:
    name: str
    photos: list[dict[str, Any]]
    origin: Origin = "enrolled"


@dataclass(frozen=True)
class _StoredReplacement:
    name: str
    kept: list[str]
    photos: list[dict[str, Any]]


@dataclass(frozen=True)
class _StoredRejection:
    name: str
    photos: list[dict[str, Any]]


def read_record(record: Mapping[str, Any], dim: int) -> Change:
    """What a record says. dim: length of a feature.

    Raises
    ------
    StoreError
        If it says nothing that this version knows.
    """
    content = dict(record)
    match content.get("do"):
        case "enroll":
            found = converted(content, _StoredEnrollment, SOURCE)
            return Enrollment(found.name, [_photo(each, dim) for each in found.photos], found.origin)
        case "forget":
            return converted(content, Forgetting, SOURCE)
        case "rename":
            return converted(content, Renaming, SOURCE)
        case "remove":
            return converted(content, Removal, SOURCE)
        case "discard":
            return converted(content, Discarding, SOURCE)
        case "replace":
            new = converted(content, _StoredReplacement, SOURCE)
            return Replacement(new.name, set(new.kept), [_photo(each, dim) for each in new.photos])
        case "reject":
            said = converted(content, _StoredRejection, SOURCE)
            return Rejection(said.name, [_photo(each, dim) for each in said.photos])
        case "remove_negative":
            return converted(content, NegativeRemoval, SOURCE)
        case "replace_negatives":
            new = converted(content, _StoredReplacement, SOURCE)
            return NegativeReplacement(new.name, set(new.kept), [_photo(each, dim) for each in new.photos])
        case other:
            what = printable(other)[:40]
            raise StoreError(f'A record to "{what}" is of a newer fscil. Upgrade fscil to read this model.')


def _photo(content: Mapping[str, Any], dim: int) -> Photo:
    photo = Photo.from_json(content)
    if len(photo.feature) != dim:
        raise invalid(SOURCE, f"a feature has {len(photo.feature)} numbers, not {dim}")
    return photo
