"""Texts of messages: suggestions, short lists, durations, plurals; and names of classes and files made harmless."""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

# Characters that are no text: control codes, which terminals obey, and marks that reverse or hide what follows.
UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
JOINERS = "\u200c\u200d"  # parts of words and of emoji
FORMULA = ("=", "+", "-", "@")  # with which a spreadsheet begins one


def printable(text: object, keep: str = "") -> str:
    """As text for a terminal or a page: control characters, except those to keep, are escaped as in Python."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(
        repr(letter)[1:-1]
        if letter not in keep and letter not in JOINERS and unicodedata.category(letter) in UNPRINTABLE
        else letter
        for letter in plain
    )


def csv_text(text: object) -> str:
    """As a cell of a CSV file: printable, and with an apostrophe before what a spreadsheet would compute."""
    plain = printable(text)
    return f"'{plain}" if plain.startswith(FORMULA) else plain


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """' Did you mean "x"?' for the known name most like this one; empty where none is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f' Did you mean "{near[0]}"?' if near else ""


def first_few(names: Sequence[str], shown: int = 3) -> str:
    """The first names, with commas, and an ellipsis where there are more."""
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")


def duration(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 10 min, 4.2 days."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{seconds / 86400:.1f} days"


def count(number: int, one: str, many: str | None = None) -> str:
    """1 photo, 2 photos."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
