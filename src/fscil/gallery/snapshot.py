"""The photos of a gallery as tensors, for a file; and read again, with everything checked: files may come from anybody.

features (N, d) float32, class by class; thumbnails joined together with offsets (N + 1,); the rest as JSON in bytes.
Where there are negative examples, the same of these, under names that begin with "negative_".
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fscil.errors import StoreError
from fscil.gallery.photo import MAX_NAME_LENGTH, Origin, Photo, utf8
from fscil.runtime.validation import converted, invalid

StoredClass: TypeAlias = tuple[str, Origin, Mapping[str, Photo]]  # name, origin, photos by digest

SOURCE = "the gallery"
NEGATIVE = "negative_"  # before the names of tensors


@dataclass(frozen=True)
class _Photos:
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]  # of a class
    photos: Annotated[list[tuple[str, str, str]], Meta(min_length=1)]  # digest, source, added


@dataclass(frozen=True)
class _Class(_Photos):
    origin: Origin


T = TypeVar("T", bound=_Photos)


def pack(
    classes: Sequence[StoredClass], features: Tensor, negatives: Sequence[tuple[str, Mapping[str, Photo]]] = ()
) -> dict[str, Tensor]:
    """features: (N, d) of all photos, class by class; negatives: by class, of those that have any."""
    plain = [{"name": name, "origin": origin, "photos": _described(photos)} for name, origin, photos in classes]
    packed = _pack_photos([photo for _, _, photos in classes for photo in photos.values()], features, plain)
    if negatives:
        every = [photo for _, photos in negatives for photo in photos.values()]
        named = [{"name": name, "photos": _described(photos)} for name, photos in negatives]
        more = _pack_photos(every, torch.stack([photo.feature for photo in every]), named)
        packed |= {f"{NEGATIVE}{key}": value for key, value in more.items()}
    return packed


def unpack(snapshot: Mapping[str, Tensor]) -> tuple[int, list[StoredClass], list[tuple[str, Mapping[str, Photo]]]]:
    """The length of a feature, the classes, and the negative examples.

    Raises
    ------
    StoreError
        For anything that `pack` does not make.
    """
    plain = _classes(_checked(snapshot, "classes", torch.uint8, 1))
    dim, photos = _unpack_photos(snapshot, plain)
    classes: list[StoredClass] = [(each.name, each.origin, photos[each.name]) for each in plain]
    if not any(key.startswith(NEGATIVE) for key in snapshot):
        return dim, classes, []
    less = {key.removeprefix(NEGATIVE): value for key, value in snapshot.items() if key.startswith(NEGATIVE)}
    named = _named(_checked(less, "classes", torch.uint8, 1), _Photos)
    other, negatives = _unpack_photos(less, named)
    if other != dim or any(
        not negatives[name].keys().isdisjoint(photos.get(name, negatives[name])) for name in negatives
    ):
        raise invalid(SOURCE, "negative examples do not belong to its classes, or are photos of them")
    return dim, classes, list(negatives.items())


def _described(photos: Mapping[str, Photo]) -> list[list[str]]:
    return [[each.digest, each.source, each.added] for each in photos.values()]


def _pack_photos(photos: Sequence[Photo], features: Tensor, plain: Sequence[Mapping[str, object]]) -> dict[str, Tensor]:
    return {
        "features": features,
        "thumbnails": _to_tensor(b"".join(photo.thumbnail for photo in photos)),
        "offsets": torch.tensor([0, *(len(photo.thumbnail) for photo in photos)]).cumsum(0),
        "classes": _to_tensor(json.dumps(plain).encode()),
    }


def _unpack_photos(snapshot: Mapping[str, Tensor], plain: Sequence[_Photos]) -> tuple[int, dict[str, dict[str, Photo]]]:
    """The length of a feature, and the photos by class and digest."""
    features = _checked(snapshot, "features", torch.float32, 2).clone()  # it may be a view of a file
    if not features.isfinite().all():
        raise invalid(SOURCE, "a feature is not finite")
    if not features.shape[1]:
        raise invalid(SOURCE, "features have no numbers")
    thumbnails = _checked(snapshot, "thumbnails", torch.uint8, 1).numpy().tobytes()
    offsets = _offsets(snapshot, len(features), len(thumbnails))
    if sum(len(each.photos) for each in plain) != len(features):
        raise invalid(SOURCE, f"{len(features)} features do not belong to as many photos")
    found: dict[str, dict[str, Photo]] = {}
    number = 0
    for each in plain:
        photos = {}
        for digest, source, added in each.photos:
            thumbnail = thumbnails[offsets[number] : offsets[number + 1]]
            photos[digest] = Photo(utf8(digest), features[number], utf8(source), utf8(added), thumbnail)
            number += 1
        if len(photos) < len(each.photos):
            raise invalid(SOURCE, f"{each.name} has a photo twice")
        found[each.name] = photos
    return features.shape[1], found


def _checked(snapshot: Mapping[str, Tensor], name: str, kind: torch.dtype, dimensions: int) -> Tensor:
    found = snapshot.get(name)
    if found is None or found.dtype != kind or found.ndim != dimensions:
        raise invalid(SOURCE, f'the tensor "{name}" is missing or of another type')
    return found


def _offsets(snapshot: Mapping[str, Tensor], photos: int, length: int) -> list[int]:
    """Where the thumbnails begin and end: from 0, never backwards, to the end."""
    found = _checked(snapshot, "offsets", torch.int64, 1)
    if len(found) != photos + 1 or found[0] != 0 or found[-1] != length or (found.diff() < 0).any():
        raise invalid(SOURCE, "thumbnails overlap or are missing")
    offsets: list[int] = found.tolist()
    return offsets


def _classes(content: Tensor) -> list[_Class]:
    found = _named(content, _Class)
    for each in found:
        if not _is_plain(each.name):
            raise invalid(SOURCE, f"no class can be called {each.name!a}")
    return found


def _named(content: Tensor, kind: type[T]) -> list[T]:
    """What the JSON in (n,) bytes says of classes, each there once."""
    try:
        plain = json.loads(content.numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{SOURCE}: its classes cannot be read as JSON ({error}).") from error
    found: list[T] = converted(plain, list[kind], SOURCE)  # type: ignore[valid-type]
    if len({each.name for each in found}) < len(found):
        raise invalid(SOURCE, "a class is there twice")
    return found


def _is_plain(name: str) -> bool:
    """As `class_name` leaves a name."""
    if name.isascii() and name.isprintable():
        return name == name.strip()
    controls = any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name)
    return not controls and name == unicodedata.normalize("NFC", name).strip()


def _to_tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
