"""The matrix that images are compared with: a row of numbers per class, with its count of photos and the index."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fscil.gallery.index import LEAST_CLASSES, ClassIndex, chosen_index
from fscil.gallery.rules import DecisionRule


class ClassRows:
    """Rows of C classes under a decision rule, (C, r) float32, which grow one by one or many at a time."""

    def __init__(self, rule: DecisionRule, dim: int) -> None:
        self._rule, self._size = rule, 0
        # More rows than classes, for growth. numpy: a tensor made in inference mode cannot be changed outside it.
        self._rows: NDArray[np.float32] = np.empty((0, dim), np.float32)
        self._counts: NDArray[np.int64] = np.empty(0, np.int64)
        self._index_kind = chosen_index()
        self._index: ClassIndex | None = None  # made when first needed

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes, which make an index of their own."""
        return {**self.__dict__, "_index": None}

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> Tensor:
        """(C, r). Not a copy."""
        return torch.from_numpy(self._rows[: self._size])

    @property
    def counts(self) -> Tensor:
        """(C,) photos of each class. Not a copy."""
        return torch.from_numpy(self._counts[: self._size])

    def put(self, place: int, row: NDArray[np.float64], count: int) -> None:
        """Replace the row at a place, or add one at the end."""
        if place == len(self._rows):
            self._reserve(max(2 * place, 8), len(row))
        self._rows[place], self._counts[place] = row, count
        self._size = max(self._size, place + 1)
        if self._index:
            self._index.change(place)

    def extend(self, rows: Tensor, counts: Tensor, total: int) -> None:
        """Add (k, r) rows of classes with (k,) photos; there will be `total` classes in the end."""
        self._reserve(total, rows.shape[1])
        part = slice(self._size, self._size + len(rows))
        self._rows[part], self._counts[part] = rows.numpy(), counts.numpy()
        self._size += len(rows)

    def delete(self, place: int) -> None:
        """The rows after it move up by one."""
        if self._index:
            self._index.forget(place)
        self._rows, self._counts = np.delete(self._rows, place, axis=0), np.delete(self._counts, place)
        self._size -= 1

    def scores(self, features: Tensor, places: Tensor | None = None) -> Tensor:
        """(n, d) features -> (n, C) under the rule. places: (C,) of these classes only."""
        if not self._size:
            return torch.empty(len(features), 0)
        if places is None:
            return self._rule.scores(features, self.rows, self.counts)
        return self._rule.scores(features, self.rows[places], self.counts[places])

    def candidates(self, features: Tensor, least: int) -> Iterator[Tensor] | None:
        """For each of the (n, d) features the places of the classes that it need be compared with, `least` or more;
        None where that is all of them: without an index (FSCIL_INDEX), and with fewer than LEAST_CLASSES.
        """
        if self._index_kind == "none" or self._size < LEAST_CLASSES:
            self._index = None
            return None
        if self._index is None or self._index.outgrown:
            self._index = ClassIndex(self._rule, self.rows, self.counts)
        return self._index.candidates(features, self.rows, self.counts, least)

    def _reserve(self, capacity: int, length: int) -> None:
        """Room for this many classes. More than is needed, so that an enrollment rarely copies the other rows."""
        if len(self._rows) >= capacity:
            return
        rows, counts = np.empty((capacity, length), np.float32), np.empty(capacity, np.int64)
        if self._size:
            rows[: self._size], counts[: self._size] = self._rows[: self._size], self._counts[: self._size]
        self._rows, self._counts = rows, counts
