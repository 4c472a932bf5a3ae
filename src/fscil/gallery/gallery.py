"""The gallery: the enrolled classes, each the sum of its photos under a decision rule."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fscil.errors import ClassNameError, DataError, UnknownClassError
from fscil.gallery.class_rows import ClassRows
from fscil.gallery.negatives import Negatives
from fscil.gallery.photo import ClassInfo, Origin, Photo, class_name, new_class_name
from fscil.gallery.rules import COSINE, DecisionRule
from fscil.gallery.snapshot import StoredClass, pack, unpack
from fscil.runtime.memory import rows_per_chunk
from fscil.runtime.text import did_you_mean
from fscil.runtime.validation import invalid

CLASSES_AT_ONCE = 1024  # embedded together when a gallery is read
MAX_GUESSES = 10_000  # with more names than this, looking for a similar one takes too long


@dataclass
class _Class:
    origin: Origin
    row: int  # its place among the rows
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
        self._rows = ClassRows(rule, dim)
        self._names: tuple[str, ...] | None = ()
        self._negatives = Negatives(rule)

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

    def negatives(self, name: str) -> tuple[Photo, ...]:
        """Photos that are known not to show a class; an UnknownClassError if it is not enrolled."""
        name = class_name(name)
        self._find(name)
        return self._negatives.of(name)

    @property
    def negative_count(self) -> int:
        """Of all classes together."""
        return len(self._negatives)

    def elsewhere(self, name: str, digests: Iterable[str]) -> dict[str, list[str]]:
        """The other classes that have some of these photos, and which."""
        name, asked = class_name(name), set(digests)
        return {
            other: [each for each in known.photos if each in asked]
            for other, known in self._classes.items()
            if not asked.isdisjoint(known.photos) and other != name
        }

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
            self._negatives.discard(name, list(new))  # said to show it after all
        return len(new)

    def forget(self, name: str) -> None:
        """Remove a class, all its photos and negative examples; the rows of later classes move up by one.

        Raises
        ------
        UnknownClassError
            If it is not enrolled.
        """
        name = class_name(name)
        row = self._find(name).row
        self._rows.delete(row)
        del self._classes[name]
        self._negatives.forget(name)
        for later in list(self._classes.values())[row:]:
            later.row -= 1
        self._names = None

    def rename(self, name: str, to: str) -> None:
        """Give a class another name; it keeps its place.

        Raises
        ------
        UnknownClassError
            If it is not enrolled.
        ClassNameError
            If no class can have the new name, or another one has it.
        """
        name, to = class_name(name), new_class_name(to)
        self._find(name)
        if to == name:
            return
        if to in self._classes:
            raise name_taken(to)
        self._classes = {to if each == name else each: known for each, known in self._classes.items()}
        self._negatives.rename(name, to)
        self._names = None

    def move(self, name: str, photos: Sequence[Photo]) -> int:
        """As `enroll`; the photos are taken out of the other classes that have them, and a class is gone with its last.

        Returns
        -------
        int
            How many photos were new to the class.
        """
        new = self.enroll(new_class_name(name), photos)
        for other, digests in self.elsewhere(name, (photo.digest for photo in photos)).items():
            self.discard_photos(other, digests)
        return new

    def remove_photo(self, name: str, digest: str) -> None:
        """Remove one photo of a class; with its last one, the class.

        Raises
        ------
        UnknownClassError
            If there is no such class, or it has no such photo.
        """
        name = class_name(name)
        if digest not in self._find(name).photos:
            raise no_photo(name, digest)
        self.discard_photos(name, [digest])

    def discard_photos(self, name: str, digests: Collection[str]) -> None:
        """Remove those of these photos that a class has; with its last one, the class.

        Raises
        ------
        UnknownClassError
            If there is no such class.
        """
        name = class_name(name)
        known, gone = self._find(name).photos, set(digests)
        left = [digest for digest in known if digest not in gone]
        if not left:
            self.forget(name)
        elif len(left) < len(known):
            self.replace_photos(name, left)

    def replace_photos(self, name: str, kept: Collection[str], new: Sequence[Photo] = ()) -> None:
        """Leave a class those of its photos that have one of the digests `kept`, and add others; it keeps its place."""
        known = self._find(class_name(name))
        photos = {digest: photo for digest, photo in known.photos.items() if digest in kept}
        photos.update({photo.digest: self._checked(photo) for photo in new if photo.digest not in photos})
        if not photos:
            raise DataError(f'"{class_name(name)}": no photo would be left. Forget the class instead.')
        known.photos = {}
        self._add(class_name(name), known, photos)

    def reject(self, name: str, photos: Sequence[Photo]) -> int:
        """Remember that photos do not show a class: negative examples, by which `refused` decides.

        Parameters
        ----------
        name : str
            An enrolled class.
        photos : sequence of Photo
            Those that are negative examples of it already are ignored.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        UnknownClassError
            If the class is not enrolled.
        DataError, ValueError
            If the class has learned one of the photos, or a feature is not valid. Then nothing is remembered.
        """
        new = self.new_negatives(name, photos)
        self._negatives.add(class_name(name), new)
        return len(new)

    def new_negatives(self, name: str, photos: Sequence[Photo]) -> list[Photo]:
        """Those of the photos that `reject` would add; raises as it does."""
        name = class_name(name)
        known, new = self._find(name), {photo.digest: photo for photo in photos}
        for photo in new.values():
            if photo.digest in known.photos:
                raise DataError(
                    f'{photo.source}: "{name}" was learned from this photo. Teach it another name, which moves it '
                    f"there, or remove it from the class first."
                )
        there = {photo.digest for photo in self.negatives(name)}
        return [self._checked(photo) for digest, photo in new.items() if digest not in there]

    def remove_negative(self, name: str, digest: str) -> None:
        """Remove one negative example of a class; an UnknownClassError if there is no such one."""
        name = class_name(name)
        self._find(name)
        self._negatives.remove(name, digest)

    def replace_negatives(self, name: str, kept: Collection[str], new: Sequence[Photo] = ()) -> None:
        """Leave a class those of its negative examples that have one of the digests `kept`, and add others."""
        gone = [photo.digest for photo in self.negatives(name) if photo.digest not in kept]
        self._negatives.discard(class_name(name), gone)
        self.reject(name, new)

    # Answering

    @property
    def prototypes(self) -> Tensor:
        """(C, r) float32, under the cosine rule unit vectors. Not a copy: enrolling more photos changes a row here."""
        return self._rows.rows

    @property
    def counts(self) -> Tensor:
        """(C,) photos of each class. Not a copy."""
        return self._rows.counts

    def scores(self, features: Tensor, rows: Tensor | None = None) -> Tensor:
        """(n, d) features -> (n, C): cosines, or what else the rule scores by. rows: (C,) of these classes only."""
        return self._rows.scores(features, rows)

    def candidates(self, features: Tensor, least: int) -> Iterator[Tensor] | None:
        """For each of the (n, d) features the rows of the classes that it need be compared with, `least` or more; None
        where that is all of them: without an index (FSCIL_INDEX), and with fewer than LEAST_CLASSES.
        """
        return self._rows.candidates(features, least)

    def refused(self, features: Tensor, scores: Tensor, rows: Tensor | None = None) -> Tensor | None:
        """(n, d) features and their (n, C) scores -> (n, C) whether an image is not to be called this class, because
        it is nearer to a negative example of it; None where there is no negative example. rows: as in `scores`.
        """
        if not self._negatives:
            return None
        names = self.names if rows is None else [self.names[row] for row in rows.tolist()]
        return self._negatives.refused(features, scores, {name: column for column, name in enumerate(names)})

    def under(self, rule: DecisionRule) -> "Gallery":
        """The same classes under another rule."""
        found = Gallery(self.dim, rule)
        found._add_all([(name, known.origin, known.photos) for name, known in self._classes.items()])
        found._add_negatives(self._negatives.items(self._classes))
        return found

    def nearest(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(n, d) features -> (n, k) largest scores, largest first, and (n, k) their classes; k is at most C."""
        k, step = min(k, len(self)), rows_per_chunk(len(self))
        parts = [self.scores(features[at : at + step]).topk(k, dim=1) for at in range(0, max(1, len(features)), step)]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])

    # To and from tensors and JSON, for files

    def snapshot(self) -> dict[str, Tensor]:
        """As tensors, which `from_snapshot` reads."""
        classes = [(name, known.origin, known.photos) for name, known in self._classes.items()]
        return pack(classes, self.features()[0], self._negatives.items(self._classes))

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Tensor], rule: DecisionRule = COSINE) -> "Gallery":
        """The gallery that `snapshot` was taken of.

        Raises
        ------
        StoreError
            If it is of no gallery, or of one that the rule does not fit.
        """
        dim, classes, negatives = unpack(snapshot)
        if not rule.fits(dim):
            raise invalid("the decision rule", f"is not for features of {dim} numbers")
        gallery = cls(dim, rule)
        gallery._add_all(classes)
        gallery._add_negatives(negatives)
        return gallery

    @staticmethod
    def record(name: str, photos: Sequence[Photo], do: Literal["enroll", "reject"] = "enroll") -> dict[str, Any]:
        """One enrollment, or rejection, as JSON, for a journal."""
        return {"do": do, "name": class_name(name), "photos": [photo.to_json() for photo in photos]}

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
        self._rows.put(known.row, self.rule.row(known.total, len(known.photos)), len(known.photos))
        if name not in self._classes:
            self._classes[name] = known
            self._names = None

    def _add_all(self, classes: Sequence[StoredClass]) -> None:
        """Fill an empty gallery, as `_add` would class by class, but many at a time."""
        for at in range(0, len(classes), CLASSES_AT_ONCE):
            part = classes[at : at + CLASSES_AT_ONCE]
            features = torch.stack([photo.feature for _, _, photos in part for photo in photos.values()])
            embedded = self.rule.embed(features).double().numpy()
            counts = torch.tensor([len(photos) for _, _, photos in part])
            totals, remaining = np.zeros((len(part), embedded.shape[1])), iter(embedded)
            for total, count in zip(totals, counts.tolist(), strict=True):
                for one in islice(remaining, count):
                    total += one
            self._rows.extend(self.rule.rows(torch.from_numpy(totals), counts), counts, len(classes))
            for place, (name, origin, photos) in enumerate(part, at):
                self._classes[name] = _Class(origin, place, totals[place - at].copy(), dict(photos))
        self._names = None

    def _add_negatives(self, negatives: Iterable[tuple[str, Mapping[str, Photo]]]) -> None:
        for name, photos in negatives:
            self.reject(name, list(photos.values()))


def name_taken(name: str) -> ClassNameError:
    return ClassNameError(f'There is a class "{name}" already. Choose another name, or forget that one first.')


def no_photo(name: str, digest: str) -> UnknownClassError:
    return UnknownClassError(f'"{name}" has no photo with the digest {digest[:16]!a}.')
