"""Texts of messages: suggestions, short lists, durations, plurals."""

import difflib
from collections.abc import Iterable, Sequence


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
