"""Word vectors of class names, from a file in the usual text format: a name and its numbers on each line."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fscil.data.listing import few
from fscil.errors import DataError

Vector = NDArray[np.float32]


def load_word_vectors(path: Path, names: Sequence[str]) -> Vector:
    """(classes, d): a vector for each name. GloVe's format, or word2vec's with its line of counts at the top.

    A name is looked for as it is, then without a leading number, in lower case and with blanks; of a name of several
    words that has no line of its own, the mean over its words is taken.
    """
    spelt = {name: _words(name) for name in names}
    wanted = {*names, *(_key(name) for name in names), *(word for words in spelt.values() for word in words)}
    table: dict[str, Vector] = {}
    for name, vector in _lines(path):
        for key in (name, _key(name)):
            if key in wanted:
                table.setdefault(key, vector)
    found = {name: _find(name, spelt[name], table) for name in names}
    missing = [name for name, vector in found.items() if vector is None]
    if missing:
        raise DataError(
            f"{path}: no word vector for {len(missing)} of {len(names)} classes: {few(missing)}. Add a line for each: "
            f"the name, then as many numbers as the others have."
        )
    return np.stack([vector for vector in found.values() if vector is not None])


def _find(name: str, words: Sequence[str], table: dict[str, Vector]) -> Vector | None:
    for key in (name, _key(name)):
        if key in table:
            return table[key]
    if words and all(word in table for word in words):
        mean: Vector = np.mean([table[word] for word in words], axis=0, dtype=np.float32)
        return mean
    return None


def _words(name: str) -> list[str]:
    """ "001.Black_footed_Albatross" -> black, footed, albatross"""
    return re.findall(r"[^\W\d_]+", name.lower())


def _key(name: str) -> str:
    return " ".join(_words(name))


def _lines(path: Path) -> Iterator[tuple[str, Vector]]:
    """Names may hold blanks: the numbers are what the end of a line and the other lines agree on."""
    size = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                parts = line.split()
                if not parts or (number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts)):
                    continue
                size = size or _trailing_numbers(parts)
                try:
                    vector = np.array(parts[-size:], np.float32)
                except ValueError:
                    vector = np.empty(0, np.float32)
                if len(vector) != size or len(parts) <= size or not np.isfinite(vector).all():
                    raise DataError(f"{path}: line {number} is not a name and {size} numbers. Mend or remove it.")
                yield " ".join(parts[:-size]), vector
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    if not size:
        raise DataError(f"{path}: holds no word vectors. Expected are lines of a name and its numbers.")


def _trailing_numbers(parts: Sequence[str]) -> int:
    """How many numbers stand at the end of a line."""
    count = 0
    for part in reversed(parts[1:]):
        try:
            float(part)
        except ValueError:
            break
        count += 1
    if not count:
        raise DataError("word vectors: the first line has no numbers. Expected are lines of a name and its numbers.")
    return count
