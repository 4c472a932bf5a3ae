"""Photos by class, with the sum of their embeddings and the row that the decision rule makes of the sum."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fscil.errors import UnknownClassError
from fscil.gallery.class_rows import ClassRows
from fscil.gallery.photo import Origin, Photo
from fscil.gallery.rules import DecisionRule
from fscil.gallery.snapshot import StoredClass
from fscil.runtime.text import did_you_mean

CLASSES_AT_ONCE = 1024  # embedded together when a gallery is read
MAX_GUESSES = 10_000  # with more names than this, looking for a similar one takes too long


@dataclass
class EnrolledClass:
    origin: Origin
    row: int  # its place among the rows
    total: NDArray[np.float64]  # (q,) sum of the embeddings of its photos
    photos: dict[str, Photo] = field(default_factory=dict)  # by digest, in order of enrollment


class EnrolledClasses:
    """Classes by name, in order of enrollment. Names are as `class_name` leaves them. Not thread-safe."""

    def __init__(self, rule: DecisionRule, dim: int) -> None:
        self.rows = ClassRows(rule, dim)
        self._rule, self._dim = rule, dim
        self._classes: dict[str, EnrolledClass] = {}
        self._names: tuple[str, ...] | None = ()

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the rows."""
        if self._names is None:
            self._names = tuple(self._classes)
        return self._names

    def __len__(self) -> int:
        return len(self._classes)

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def find(self, name: str) -> EnrolledClass:
        """An UnknownClassError if it is not enrolled."""
        if name not in self._classes:
            hint = did_you_mean(name, self._classes) if len(self) <= MAX_GUESSES else ""
            raise UnknownClassError(f'There is no class "{name}" among the {len(self)} enrolled.{hint}')
        return self._classes[name]

    def items(self) -> Iterator[StoredClass]:
        """Name, origin and photos by digest, class by class."""
        for name, known in self._classes.items():
            yield name, known.origin, known.photos

    def having(self, digests: Set[str]) -> dict[str, list[str]]:
        """The classes that have some of these photos, and which."""
        return {
            name: [each for each in known.photos if each in digests]
            for name, known in self._classes.items()
            if not digests.isdisjoint(known.photos)
        }

    def features(self) -> tuple[Tensor, Tensor]:
        """(N, d) raw features of all photos, class by class, and (N,) the number of each one's class."""
        kept = [photo.feature for known in self._classes.values() for photo in known.photos.values()]
        counts = torch.tensor([len(known.photos) for known in self._classes.values()], dtype=torch.int64)
        features = torch.stack(kept) if kept else torch.empty(0, self._dim)
        return features, torch.arange(len(counts)).repeat_interleave(counts)

    def add(self, name: str, photos: Mapping[str, Photo], origin: Origin) -> None:
        """Add photos that the class does not have yet. origin: of a new class."""
        known = self._classes.get(name) or EnrolledClass(origin, len(self), np.zeros(0))
        self._sum(known, photos)
        if name not in self._classes:
            self._classes[name] = known
            self._names = None

    def extend(self, classes: Sequence[StoredClass]) -> None:
        """Add classes where there are none yet, as `add` would one by one, but many at a time."""
        for at in range(0, len(classes), CLASSES_AT_ONCE):
            part = classes[at : at + CLASSES_AT_ONCE]
            features = torch.stack([photo.feature for _, _, photos in part for photo in photos.values()])
            embedded = self._rule.embed(features).double().numpy()
            counts = torch.tensor([len(photos) for _, _, photos in part])
            totals, remaining = np.zeros((len(part), embedded.shape[1])), iter(embedded)
            for total, count in zip(totals, counts.tolist(), strict=True):
                for one in islice(remaining, count):
                    total += one
            self.rows.extend(self._rule.rows(torch.from_numpy(totals), counts), counts, len(classes))
            for place, (name, origin, photos) in enumerate(part, at):
                self._classes[name] = EnrolledClass(origin, place, totals[place - at].copy(), dict(photos))
        self._names = None

    def replace(self, name: str, photos: Mapping[str, Photo]) -> None:
        """Give a class other photos; it keeps its place."""
        known = self.find(name)
        known.photos = {}
        self._sum(known, photos)

    def delete(self, name: str) -> None:
        """The rows of later classes move up by one."""
        row = self.find(name).row
        self.rows.delete(row)
        del self._classes[name]
        for later in list(self._classes.values())[row:]:
            later.row -= 1
        self._names = None

    def rename(self, name: str, to: str) -> None:
        """It keeps its place."""
        self._classes = {to if each == name else each: known for each, known in self._classes.items()}
        self._names = None

    def _sum(self, known: EnrolledClass, photos: Mapping[str, Photo]) -> None:
        """Add photos to a class, and write its row."""
        embedded = self._rule.embed(torch.stack([photo.feature for photo in photos.values()])).double().numpy()
        if not known.photos:
            known.total = np.zeros(embedded.shape[1])
        for one in embedded:  # one by one: the sum of a batch would depend on the grouping
            known.total += one
        known.photos.update(photos)
        self.rows.put(known.row, self._rule.row(known.total, len(known.photos)), len(known.photos))
