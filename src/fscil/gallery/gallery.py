"""The gallery: the enrolled classes, each the sum of its photos under a decision rule."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fscil.errors import ClassNameError, DataError, StoreError, UnknownClassError
from fscil.gallery.photo import ClassInfo, Origin, Photo, class_name
from fscil.gallery.rules import COSINE, DecisionRule
from fscil.runtime.memory import rows_per_chunk
from fscil.runtime.text import did_you_mean

CLASSES_AT_ONCE = 1024  # embedded together when a gallery is read
MAX_GUESSES = 10_000  # with more names than this, looking for a similar one takes too long


@dataclass
class _Class:
    origin: Origin
    row: int  # of the matrix of rows
    total: NDArray[np.float64]  # (q,) sum of the embeddings of its photos
    photos: dict[str, Photo] = field(default_factory=dict)  # by digest, in order of enrollment


class Gallery:
    """Classes in order of enrollment, each with a row that the decision rule makes of the sum of its photos.

    Sums are kept in float64, so order and grouping of enrollments do not matter. Not thread-safe.

    Parameters
    ----------
    dim : int
        Length of a feature.
    rule : DecisionRule
        How images are compared with classes; by default the cosine to the mean.

    Examples
    --------
    >>> import torch
    >>> gallery = Gallery(2)
    >>> now = "2026-01-31T12:00:00+00:00"
    >>> gallery.enroll("robin", [Photo("digest 1", torch.tensor([3.0, 0.0]), "robin.jpg", now)])
    1
    >>> gallery.enroll("wren", [Photo("digest 2", torch.tensor([0.0, 2.0]), "wren.jpg", now)])
    1
    >>> gallery.scores(torch.tensor([[1.0, 0.0]]))
    tensor([[1., 0.]])
    """

    def __init__(self, dim: int, rule: DecisionRule = COSINE) -> None:
        self.dim, self.rule = dim, rule
        self._classes: dict[str, _Class] = {}
        # More rows than classes, for growth. numpy: a tensor made in inference mode cannot be changed outside it.
        self._rows: NDArray[np.float32] = np.empty((0, dim), np.float32)
        self._counts: NDArray[np.int64] = np.empty(0, np.int64)
        self._names: tuple[str, ...] | None = ()

    # What is there

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the rows of `prototypes` and the columns of `scores`."""
        if self._names is None:
            self._names = tuple(self._classes)
        return self._names

    def __len__(self) -> int:
        return len(self._classes)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and class_name(name) in self._classes
        except ClassNameError:
            return False

    def info(self, name: str) -> ClassInfo:
        """Summary of one class; an UnknownClassError if it is not enrolled."""
        name = class_name(name)
        found = self._find(name)
        times = [photo.added for photo in found.photos.values()]
        sources = tuple(dict.fromkeys(photo.source for photo in found.photos.values()))
        return ClassInfo(name, len(times), found.origin, min(times), max(times), sources)

    def classes(self) -> list[ClassInfo]:
        return [self.info(name) for name in self._classes]

    def photos(self, name: str) -> tuple[Photo, ...]:
        """In order of enrollment; an UnknownClassError if the class is not enrolled."""
        return tuple(self._find(class_name(name)).photos.values())

    def features(self) -> tuple[Tensor, Tensor]:
        """(N, d) raw features of all photos, class by class, and (N,) the number of each one's class."""
        kept = [photo.feature for photo in self._photos()]
        counts = torch.tensor([len(known.photos) for known in self._classes.values()], dtype=torch.int64)
        features = torch.stack(kept) if kept else torch.empty(0, self.dim)
        return features, torch.arange(len(counts)).repeat_interleave(counts)

    # Change

    def enroll(self, name: str, photos: Sequence[Photo], origin: Origin = "enrolled") -> int:
        """Learn a class, or improve one.

        Parameters
        ----------
        name : str
            Of a new class or an enrolled one.
        photos : sequence of Photo
            Those whose digest the class has already are ignored. Without photos no class is made.
        origin : str
            Of a new class: "base" or "enrolled". One that is enrolled keeps its own.

        Returns
        -------
        int
            How many photos were new to the class.

        Raises
        ------
        ClassNameError
            If no class can have this name.
        DataError, ValueError
            If a feature is not finite, or not of length `dim`. Then nothing is learned.
        """
        name = class_name(name)
        known = self._classes.get(name) or self._empty_class(origin)
        new: dict[str, Photo] = {}
        for photo in photos:
            if photo.digest not in known.photos and photo.digest not in new:
                new[photo.digest] = self._checked(photo)
        if new:
            self._add(name, known, new)
        return len(new)

    def forget(self, name: str) -> None:
        """Remove a class and all its photos; the rows of later classes move up by one.

        Raises
        ------
        UnknownClassError
            If it is not enrolled.
        """
        name = class_name(name)
        row = self._find(name).row
        self._rows, self._counts = np.delete(self._rows, row, axis=0), np.delete(self._counts, row)
        del self._classes[name]
        for later in list(self._classes.values())[row:]:
            later.row -= 1
        self._names = None

    # Answering

    @property
    def prototypes(self) -> Tensor:
        """(C, r) float32, under the cosine rule unit vectors. Not a copy: enrolling more photos changes a row here."""
        return torch.from_numpy(self._rows[: len(self)])

    @property
    def counts(self) -> Tensor:
        """(C,) photos of each class. Not a copy."""
        return torch.from_numpy(self._counts[: len(self)])

    def scores(self, features: Tensor) -> Tensor:
        """(n, d) features -> (n, C): cosines, or what else the rule scores by."""
        if not len(self):
            return torch.empty(len(features), 0)
        return self.rule.scores(features, self.prototypes, self.counts)

    def under(self, rule: DecisionRule) -> "Gallery":
        """The same classes under another rule."""
        found = Gallery(self.dim, rule)
        found._add_all([(name, known.origin, known.photos) for name, known in self._classes.items()])
        return found

    def nearest(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(n, d) features -> (n, k) largest scores, largest first, and (n, k) their classes; k is at most C."""
        k, step = min(k, len(self)), rows_per_chunk(len(self))
        parts = [self.scores(features[at : at + step]).topk(k, dim=1) for at in range(0, max(1, len(features)), step)]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])

    # To and from tensors and JSON, for files

    def snapshot(self) -> dict[str, Tensor]:
        """As tensors: features (N, d), thumbnails joined together with offsets (N + 1,), the rest as JSON in bytes."""
        photos = self._photos()
        classes = [
            {
                "name": name,
                "origin": known.origin,
                "photos": [[photo.digest, photo.source, photo.added] for photo in known.photos.values()],
            }
            for name, known in self._classes.items()
        ]
        return {
            "features": self.features()[0],
            "thumbnails": _to_tensor(b"".join(photo.thumbnail for photo in photos)),
            "offsets": torch.tensor([0, *(len(photo.thumbnail) for photo in photos)]).cumsum(0),
            "classes": _to_tensor(json.dumps(classes).encode()),
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Tensor], rule: DecisionRule = COSINE) -> "Gallery":
        """The gallery that `snapshot` was taken of."""
        features = snapshot["features"].clone()  # it may be a view of a file
        offsets = snapshot["offsets"].tolist()
        thumbnails = snapshot["thumbnails"].numpy().tobytes()
        gallery, number = cls(features.shape[1], rule), 0
        classes: list[tuple[str, Origin, dict[str, Photo]]] = []
        for each in json.loads(snapshot["classes"].numpy().tobytes()):
            photos = {}
            for digest, source, added in each["photos"]:
                thumbnail = thumbnails[offsets[number] : offsets[number + 1]]
                photos[digest] = Photo(digest, features[number], source, added, thumbnail)
                number += 1
            classes.append((each["name"], each["origin"], photos))
        gallery._add_all(classes)
        return gallery

    @staticmethod
    def record(name: str, photos: Sequence[Photo]) -> dict[str, Any]:
        """One enrollment as JSON, for a journal."""
        return {"do": "enroll", "name": class_name(name), "photos": [photo.to_json() for photo in photos]}

    def apply(self, record: Mapping[str, Any]) -> int:
        """Repeat the enrollment of a record; a second time changes nothing. Returns how many photos were new."""
        if record.get("do") != "enroll":
            raise StoreError(f'A record to "{record.get("do")}" is of a newer fscil. Upgrade fscil to read this model.')
        return self.enroll(record["name"], [Photo.from_json(each) for each in record["photos"]])

    # Inside

    def _photos(self) -> list[Photo]:
        return [photo for known in self._classes.values() for photo in known.photos.values()]

    def _find(self, name: str) -> _Class:
        if name not in self._classes:
            hint = did_you_mean(name, self._classes) if len(self) <= MAX_GUESSES else ""
            raise UnknownClassError(f'There is no class "{name}" among the {len(self)} enrolled.{hint}')
        return self._classes[name]

    def _checked(self, photo: Photo) -> Photo:
        """The photo with a copy of its feature on the host, if that is valid."""
        feature = photo.feature.detach().float().cpu().numpy().copy()
        if feature.shape != (self.dim,):
            raise ValueError(f"{photo.source}: feature of shape {feature.shape}, not ({self.dim},)")
        if not np.isfinite(feature).all():
            raise DataError(f"{photo.source}: its feature is not finite, nothing can be learned from it.")
        return replace(photo, feature=torch.from_numpy(feature))

    def _empty_class(self, origin: Origin) -> _Class:
        return _Class(origin, len(self), np.zeros(0))

    def _add(self, name: str, known: _Class, photos: Mapping[str, Photo]) -> None:
        """Add photos that the class does not have yet, and write its row."""
        embedded = self.rule.embed(torch.stack([photo.feature for photo in photos.values()])).double().numpy()
        if not known.photos:
            known.total = np.zeros(embedded.shape[1])
        for one in embedded:  # one by one: the sum of a batch would depend on the grouping
            known.total += one
        known.photos.update(photos)
        row = self.rule.row(known.total, len(known.photos))
        if known.row == len(self._rows):
            self._reserve(max(2 * known.row, 8), len(row))
        self._rows[known.row], self._counts[known.row] = row, len(known.photos)
        if name not in self._classes:
            self._classes[name] = known
            self._names = None

    def _add_all(self, classes: Sequence[tuple[str, Origin, dict[str, Photo]]]) -> None:
        """Fill an empty gallery, as `_add` would class by class, but many at a time."""
        for at in range(0, len(classes), CLASSES_AT_ONCE):
            part = classes[at : at + CLASSES_AT_ONCE]
            features = torch.stack([photo.feature for _, _, photos in part for photo in photos.values()])
            embedded = self.rule.embed(features).double().numpy()
            counts = [len(photos) for _, _, photos in part]
            totals, remaining = np.zeros((len(part), embedded.shape[1])), iter(embedded)
            for total, count in zip(totals, counts, strict=True):
                for one in islice(remaining, count):
                    total += one
            rows = self.rule.rows(torch.from_numpy(totals), torch.tensor(counts)).numpy()
            self._reserve(len(classes), rows.shape[1])
            for place, (name, origin, photos) in enumerate(part, at):
                self._classes[name] = _Class(origin, place, totals[place - at].copy(), dict(photos))
            self._rows[at : at + len(part)], self._counts[at : at + len(part)] = rows, counts
        self._names = None

    def _reserve(self, capacity: int, length: int) -> None:
        """Room for this many classes. More than is needed, so that an enrollment rarely copies the other rows."""
        if len(self._rows) >= capacity:
            return
        rows, counts = np.empty((capacity, length), np.float32), np.empty(capacity, np.int64)
        used = min(len(self), len(self._rows))
        if used:
            rows[:used], counts[:used] = self._rows[:used], self._counts[:used]
        self._rows, self._counts = rows, counts


def _to_tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
