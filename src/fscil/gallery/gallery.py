"""The gallery: the enrolled classes, each the sum of its photos under a decision rule."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fscil.errors import ClassNameError, DataError, UnknownClassError
from fscil.gallery.enrolled_classes import EnrolledClasses
from fscil.gallery.negatives import Negatives
from fscil.gallery.photo import ClassInfo, Origin, Photo, class_name, new_class_name
from fscil.gallery.rules import COSINE, DecisionRule
from fscil.gallery.snapshot import pack, unpack
from fscil.runtime.memory import rows_per_chunk
from fscil.runtime.validation import invalid


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
        self._classes = EnrolledClasses(rule, dim)
        self._rows = self._classes.rows
        self._negatives = Negatives(rule)

    # What is there

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the rows of `prototypes` and the columns of `scores`."""
        return self._classes.names

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
        found = self._classes.find(name)
        times = [photo.added for photo in found.photos.values()]
        sources = tuple(dict.fromkeys(photo.source for photo in found.photos.values()))
        return ClassInfo(name, len(times), found.origin, min(times), max(times), sources)

    def classes(self) -> list[ClassInfo]:
        return [self.info(name) for name in self.names]

    def photos(self, name: str) -> tuple[Photo, ...]:
        """In order of enrollment; an UnknownClassError if the class is not enrolled."""
        return tuple(self._classes.find(class_name(name)).photos.values())

    def negatives(self, name: str) -> tuple[Photo, ...]:
        """Photos that are known not to show a class; an UnknownClassError if it is not enrolled."""
        name = class_name(name)
        self._classes.find(name)
        return self._negatives.of(name)

    @property
    def negative_count(self) -> int:
        """Of all classes together."""
        return len(self._negatives)

    def elsewhere(self, name: str, digests: Iterable[str]) -> dict[str, list[str]]:
        """The other classes that have some of these photos, and which."""
        name, having = class_name(name), self._classes.having(set(digests))
        return {other: found for other, found in having.items() if other != name}

    def features(self) -> tuple[Tensor, Tensor]:
        """(N, d) raw features of all photos, class by class, and (N,) the number of each one's class."""
        return self._classes.features()

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
        known = self._classes.find(name).photos if name in self._classes else {}
        new: dict[str, Photo] = {}
        for photo in photos:
            if photo.digest not in known and photo.digest not in new:
                new[photo.digest] = self._checked(photo)
        if new:
            self._classes.add(name, new, origin)
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
        self._classes.delete(name)
        self._negatives.forget(name)

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
        self._classes.find(name)
        if to == name:
            return
        if to in self._classes:
            raise name_taken(to)
        self._classes.rename(name, to)
        self._negatives.rename(name, to)

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
        if digest not in self._classes.find(name).photos:
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
        known, gone = self._classes.find(name).photos, set(digests)
        left = [digest for digest in known if digest not in gone]
        if not left:
            self.forget(name)
        elif len(left) < len(known):
            self.replace_photos(name, left)

    def replace_photos(self, name: str, kept: Collection[str], new: Sequence[Photo] = ()) -> None:
        """Leave a class those of its photos that have one of the digests `kept`, and add others; it keeps its place."""
        name = class_name(name)
        known = self._classes.find(name).photos
        photos = {digest: photo for digest, photo in known.items() if digest in kept}
        photos.update({photo.digest: self._checked(photo) for photo in new if photo.digest not in photos})
        if not photos:
            raise DataError(f'"{name}": no photo would be left. Forget the class instead.')
        self._classes.replace(name, photos)

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
        known, new = self._classes.find(name), {photo.digest: photo for photo in photos}
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
        self._classes.find(name)
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
        found._classes.extend(list(self._classes.items()))
        found._add_negatives(self._negatives.items(self.names))
        return found

    def nearest(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(n, d) features -> (n, k) largest scores, largest first, and (n, k) their classes; k is at most C."""
        k, step = min(k, len(self)), rows_per_chunk(len(self))
        parts = [self.scores(features[at : at + step]).topk(k, dim=1) for at in range(0, max(1, len(features)), step)]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])

    # To and from tensors and JSON, for files

    def snapshot(self) -> dict[str, Tensor]:
        """As tensors, which `from_snapshot` reads."""
        return pack(list(self._classes.items()), self.features()[0], self._negatives.items(self.names))

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
        gallery._classes.extend(classes)
        gallery._add_negatives(negatives)
        return gallery

    @staticmethod
    def record(name: str, photos: Sequence[Photo], do: Literal["enroll", "reject"] = "enroll") -> dict[str, Any]:
        """One enrollment, or rejection, as JSON, for a journal."""
        return {"do": do, "name": class_name(name), "photos": [photo.to_json() for photo in photos]}

    # Inside

    def _checked(self, photo: Photo) -> Photo:
        """The photo with a copy of its feature on the host, if that is valid."""
        feature = photo.feature.detach().float().cpu().numpy().copy()
        if feature.shape != (self.dim,):
            raise ValueError(f"{photo.source}: feature of shape {feature.shape}, not ({self.dim},)")
        if not np.isfinite(feature).all():
            raise DataError(f"{photo.source}: its feature is not finite, nothing can be learned from it.")
        return replace(photo, feature=torch.from_numpy(feature))

    def _add_negatives(self, negatives: Iterable[tuple[str, Mapping[str, Photo]]]) -> None:
        for name, photos in negatives:
            self.reject(name, list(photos.values()))


def name_taken(name: str) -> ClassNameError:
    return ClassNameError(f'There is a class "{name}" already. Choose another name, or forget that one first.')


def no_photo(name: str, digest: str) -> UnknownClassError:
    return UnknownClassError(f'"{name}" has no photo with the digest {digest[:16]!a}.')
