"""Word vectors of class names, from a file in the usual text format: a name and its numbers on each line."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from fscil.errors import ConfigError, DataError, StoreError
from fscil.runtime.text import first_few

Vector = NDArray[np.float32]

LOOK_AHEAD = 100  # first lines, of which most decide how many numbers a line has


def class_vectors(method: str, path: str, names: Sequence[str]) -> Vector:
    """(classes, d): the word vectors of class names, for a method that needs them; path: data.word_vectors.

    "glyphs" is the table that comes with that data set: random directions for the words of its names, longer for the
    words that name a script. It lets the methods run, and holds no information about how characters look.
    """
    if not path:
        raise ConfigError(
            f"{method} needs word vectors of the class names: --word-vectors FILE or --set data.word_vectors=FILE. "
            f"The file is text as GloVe and word2vec write it: a name and its numbers on each line, blanks between."
        )
    if not names:
        raise ConfigError(f"{method} works with the meaning of class names, and none were given to it.")
    if path == "glyphs":
        with resources.as_file(resources.files("fscil") / "data" / "glyph_words.txt") as embedded:
            return load_word_vectors(embedded, names)
    return load_word_vectors(Path(path), names)


def load_word_vectors(path: Path, names: Sequence[str]) -> Vector:
    """(classes, d): a vector for each name. GloVe's format, or word2vec's with its line of counts at the top.

    A name is looked up unchanged, then without a leading number, in lower case and with blanks; of a name of several
    words that has no line of its own, the mean over its words is taken.
    """
    spelt = {name: _words(name) for name in names}
    wanted = {" ".join(words) for words in spelt.values()} | {word for words in spelt.values() for word in words}
    exact: dict[str, Vector] = {}
    alike: dict[str, Vector] = {}  # the first line that differs in case or punctuation only
    for number, name, values, size in _lines(path):
        key = " ".join(_words(name))
        if key in wanted:
            vector = _numbers(values, size, f"{path}: line {number}")
            exact.setdefault(name, vector)
            alike.setdefault(key, vector)

    def find(name: str) -> Vector | None:
        for key in (normalize("NFC", name), " ".join(_words(name))):
            if key in exact:
                return exact[key]
        return alike.get(" ".join(_words(name)))

    found: dict[str, Vector] = {}
    for name, words in spelt.items():
        whole, parts = find(name), [part for part in map(find, words) if part is not None]
        if whole is not None:
            found[name] = whole
        elif parts and len(parts) == len(words):
            found[name] = np.mean(parts, axis=0, dtype=np.float32)
    missing = [name for name in spelt if name not in found]
    if missing:
        raise DataError(
            f"{path}: no word vector for {len(missing)} of {len(spelt)} classes: {first_few(missing)}. Add a line for "
            f"each: the name, then as many numbers as the others have."
        )
    return np.stack([found[name] for name in names])


def _words(name: str) -> list[str]:
    """ "001.Black_footed_Albatross" -> black, footed, albatross; "Boeing 737-300" -> boeing, 737, 300"""
    words = re.split(r"[\s_.,;:/()\[\]\"'’-]+", normalize("NFC", name).lower())
    words = [word for word in words if word]
    numbered = len(words) > 1 and words[0].isdecimal() and not words[1].isdecimal()
    return words[1:] if numbered else words


def _lines(path: Path) -> Iterator[tuple[int, str, list[bytes], int]]:
    """Line number, name, the numbers as text, and how many there should be. Names may hold blanks.

    As bytes: in these files even an unusual Unicode space can be a word, and most lines are not needed.
    """
    try:
        with path.open("rb") as file:
            start = [line.removeprefix(b"\xef\xbb\xbf").split() for line in islice(file, LOOK_AHEAD)]
            size = _size(start)
            for number, parts in enumerate(chain(start, map(bytes.split, file)), 1):
                if not parts or (number == 1 and _is_header(parts)):
                    continue
                if len(parts) <= size or not size:
                    raise _damaged(f"{path}: line {number}", size)
                name = b" ".join(parts[:-size]).decode("utf-8", "replace")
                yield number, normalize("NFC", name), parts[-size:], size
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    if not any(start):
        raise DataError(f"{path}: holds no word vectors. Expected are lines of a name and its numbers.")


def _is_header(parts: Sequence[bytes]) -> bool:
    """How many vectors, and of how many numbers."""
    return len(parts) == 2 and all(part.isdigit() for part in parts)


def _size(lines: Sequence[Sequence[bytes]]) -> int:
    """What the header says, or as many numbers as most lines end with: the last word of a name may be a number too."""
    if lines and _is_header(lines[0]):
        return int(lines[0][1])
    counts = Counter(_trailing_numbers(parts) for parts in lines if parts)
    return max(counts, key=lambda count: (counts[count], -count), default=0)


def _trailing_numbers(parts: Sequence[bytes]) -> int:
    count = 0
    for part in reversed(parts[1:]):
        try:
            float(part)
        except ValueError:
            break
        count += 1
    return count


def _numbers(values: Sequence[bytes], size: int, where: str) -> Vector:
    try:
        vector = np.array([float(value) for value in values], np.float32)
    except ValueError:
        raise _damaged(where, size) from None
    if not np.isfinite(vector).all():
        raise _damaged(where, size)
    return vector


def _damaged(where: str, size: int) -> DataError:
    what = f"a name and {size} numbers" if size else "a name and its numbers"
    return DataError(f"{where} is not {what}. Fix or remove it.")


def check_unchanged(before: Vector, now: Vector) -> None:
    """A StoreError where the vectors of the same classes have changed: what was learned no longer fits them."""
    if before.shape != now.shape or not np.array_equal(before, now):
        raise StoreError("the word vectors are not those this was learned with. Give the same file, or train again.")
