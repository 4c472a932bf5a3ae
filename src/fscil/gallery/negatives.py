"""Negative examples: photos that are known not to show a class, each an alternative to it.

Whatever a negative example of a class shows is another class, of which it is the only photo. An image that fits that
other class better than the class itself is not called the class.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fscil.errors import UnknownClassError
from fscil.gallery.photo import Photo
from fscil.gallery.rules import DecisionRule


@dataclass(frozen=True, eq=False)
class _Compiled:
    """All negative examples, ready for scoring as classes of one photo each."""

    rows: Tensor  # (m, r)
    own: Tensor  # (m,) score of each against itself
    names: Sequence[str]  # what each is not


class Negatives:
    """Photos by the class that they do not show. Not thread-safe."""

    def __init__(self, rule: DecisionRule) -> None:
        self._rule = rule
        self._photos: dict[str, dict[str, Photo]] = {}  # by class and digest
        self._compiled: _Compiled | None = None

    def __len__(self) -> int:
        return sum(map(len, self._photos.values()))

    def __bool__(self) -> bool:
        return bool(self._photos)

    def of(self, name: str) -> tuple[Photo, ...]:
        """In the order they were added in; none for a class without."""
        return tuple(self._photos.get(name, {}).values())

    def items(self, names: Iterable[str]) -> list[tuple[str, Mapping[str, Photo]]]:
        """Class by class in the order of these names, those without left out."""
        return [(name, self._photos[name]) for name in names if name in self._photos]

    def add(self, name: str, photos: Sequence[Photo]) -> None:
        if photos:
            self._photos.setdefault(name, {}).update({photo.digest: photo for photo in photos})
            self._compiled = None

    def remove(self, name: str, digest: str) -> None:
        """An UnknownClassError if there is no such one."""
        if digest not in self._photos.get(name, {}):
            raise no_negative(name, digest)
        self.discard(name, [digest])

    def discard(self, name: str, digests: Sequence[str]) -> None:
        """Remove those that are there."""
        known = self._photos.get(name, {})
        for digest in digests:
            if known.pop(digest, None):
                self._compiled = None
        if not known:
            self._photos.pop(name, None)

    def forget(self, name: str) -> None:
        """Remove all of a class."""
        if self._photos.pop(name, None):
            self._compiled = None

    def rename(self, name: str, to: str) -> None:
        self._photos = {to if each == name else each: photos for each, photos in self._photos.items()}
        self._compiled = None

    def refused(self, features: Tensor, scores: Tensor, columns: Mapping[str, int]) -> Tensor:
        """(n, d) features and their (n, C) scores -> (n, C) whether an image is not to be called this class.

        It is not, where it fits a negative example better than the class (and better than nothing: a score above 0), or
        as well as the example fits itself: that photo, sent again, is refused whatever its score. columns: those of the
        classes; the negative examples of others do not matter.
        """
        known = self._ready()
        kept = [number for number, name in enumerate(known.names) if name in columns]
        rows, own = known.rows[kept], known.own[kept]
        near = self._rule.scores(features, rows, torch.ones(len(rows), dtype=torch.int64))
        places = torch.tensor([columns[known.names[number]] for number in kept], dtype=torch.int64)
        nearer = (near > scores[:, places].clamp_min(0)) | (near >= own - self._rule.rounding)
        return torch.zeros(scores.shape, dtype=torch.int32).index_add_(1, places, nearer.int()) > 0

    def _ready(self) -> _Compiled:
        if self._compiled is None:
            every = [(name, photo) for name, photos in self._photos.items() for photo in photos.values()]
            features = torch.stack([photo.feature for _, photo in every])
            ones = torch.ones(len(every), dtype=torch.int64)
            rows = self._rule.rows(self._rule.embed(features).double(), ones)
            own = self._rule.own_scores(features, rows, ones)
            self._compiled = _Compiled(rows, own, [name for name, _ in every])
        return self._compiled


def no_negative(name: str, digest: str) -> UnknownClassError:
    return UnknownClassError(f'"{name}" has no negative example with the digest {digest[:16]!a}.')
