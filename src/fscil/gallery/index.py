"""Candidates among very many classes, found by an approximate index (faiss); their scores are then computed exactly.

A decision rule gives every class a point, such that near ones score high. The index keeps 8 bits of each of the
DIRECTIONS in which the points vary most, divides them into lists and looks through a part of those. Which candidates
it finds is approximate; what a candidate scores is not.
"""

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from fscil.errors import ConfigError
from fscil.gallery.rules import DecisionRule
from fscil.runtime.extras import install_command
from fscil.runtime.text import did_you_mean

IndexKind: TypeAlias = Literal["none", "faiss"]

VARIABLE = "FSCIL_INDEX"  # of the environment
LEAST_CLASSES = 50_000  # with fewer, comparing with all takes less time than the network does
DIRECTIONS = 128
CANDIDATES = 200
PROBED_SHARE = 0.2  # of the lists: with less, the nearest class is missed more often (results/scaling-gallery.md)
TRAINING_POINTS = 40  # per list
AT_ONCE = 20_000  # points computed at a time
MAX_CHANGED = 1000  # classes that are compared beside the index, until it takes them in together


def chosen_index() -> IndexKind:
    """What FSCIL_INDEX names, once checked; without it none."""
    asked, known = os.environ.get(VARIABLE) or "none", get_args(IndexKind)
    found: IndexKind | None = next((name for name in known if name == asked), None)
    if found is None:
        raise ConfigError(f'{VARIABLE}: no index "{asked}".{did_you_mean(asked, known)} Known: {", ".join(known)}.')
    if found == "faiss" and find_spec("faiss") is None:
        raise ConfigError(f"{VARIABLE}=faiss needs the package faiss-cpu. Run: {install_command('faiss')}")
    return found


class ClassIndex:
    """Which classes an image may be nearest to. Kept in step with a gallery, whose rows it does not keep.

    Classes have numbers here that stay the same when rows move up. One that was enrolled or changed since is a
    candidate for every image, until MAX_CHANGED of them are taken in together. Not thread-safe.
    """

    def __init__(self, rule: DecisionRule, rows: Tensor, counts: Tensor) -> None:
        """(C, r) rows of the classes and (C,) their numbers of photos; C is at least some hundred."""
        self._rule = rule
        self._numbers = array("q", range(len(rows)))  # by row, ascending
        self._next = len(rows)
        self._changed: set[int] = set()
        self._trained_with = len(rows)
        self.lists, self._index = self._trained(rows, counts)
        self.probe(max(16, round(PROBED_SHARE * self.lists)))
        for at in range(0, len(rows), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            numbers = np.arange(at, min(at + AT_ONCE, len(rows)), dtype=np.int64)
            self._index.add_with_ids(self._points(rows[part], counts[part]), numbers)

    def probe(self, lists: int) -> None:
        """Look through so many of the `lists`: more find more, and take longer."""
        import faiss

        faiss.extract_index_ivf(self._index).nprobe = lists

    @property
    def outgrown(self) -> bool:
        """Whether there are twice as many classes as its lists were made for, or half as many."""
        return not self._trained_with / 2 <= len(self._numbers) <= 2 * self._trained_with

    def change(self, row: int) -> None:
        """The class of this row has other photos, or is new, after all others."""
        if row == len(self._numbers):
            self._numbers.append(self._next)
            self._next += 1
        self._changed.add(self._numbers[row])

    def forget(self, row: int) -> None:
        """The rows of later classes move up by one."""
        self._changed.discard(self._numbers.pop(row))  # the index may still find it, and is not believed

    def candidates(self, features: Tensor, rows: Tensor, counts: Tensor, least: int) -> Iterator[Tensor]:
        """(n, d) features, (C, r) rows and (C,) counts as they are now -> for each image the rows of its candidates,
        ascending; as many as `least` at least, if there are as many.
        """
        if len(self._changed) > MAX_CHANGED:
            self._take_in(rows, counts)
        queries = np.ascontiguousarray(self._rule.query_points(features).numpy(), np.float32)
        changed = [self._row(number) for number in self._changed]
        for found in self._index.search(queries, max(CANDIDATES, 2 * least))[1].tolist():
            near = {row for number in found if (row := self._row(number)) is not None}
            near.update(row for row in changed if row is not None)
            if len(near) < least:  # those that the index found were forgotten
                near = set(range(len(rows)))
            yield torch.tensor(sorted(near), dtype=torch.int64)

    def _row(self, number: int) -> int | None:
        """None of a class that was forgotten, and of -1, by which faiss fills up."""
        row = bisect_left(self._numbers, number)
        return row if row < len(self._numbers) and self._numbers[row] == number else None

    def _take_in(self, rows: Tensor, counts: Tensor) -> None:
        numbers = np.array(sorted(self._changed), np.int64)
        places = torch.tensor([bisect_left(self._numbers, number) for number in numbers.tolist()])
        self._index.remove_ids(numbers)
        self._index.add_with_ids(self._points(rows[places], counts[places]), numbers)
        self._changed.clear()

    def _points(self, rows: Tensor, counts: Tensor) -> Any:
        return np.ascontiguousarray(self._rule.class_points(rows, counts).numpy(), np.float32)

    def _trained(self, rows: Tensor, counts: Tensor) -> tuple[int, Any]:
        """The number of lists, and an index of faiss without any class."""
        import faiss

        lists = max(16, round(len(rows) ** 0.5))
        step = max(1, len(rows) // (TRAINING_POINTS * lists))
        sample = self._points(rows[::step], counts[::step])
        reduction = f"PCA{DIRECTIONS}," if sample.shape[1] > DIRECTIONS else ""
        index = faiss.index_factory(sample.shape[1], f"{reduction}IVF{lists},SQ8")
        index.train(sample)
        return lists, index
