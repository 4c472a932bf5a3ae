"""Plain values from a file of somebody else as a type: every field there, of its type, within its bounds, finite."""

import math
from typing import Any, TypeVar

import msgspec

from fscil.errors import StoreError
from fscil.runtime.text import printable

T = TypeVar("T")

MAX_DEPTH = 40  # of lists and objects in each other
MAX_INTEGER = 2**63 - 1
SHOWN = 200  # characters of a reason


def as_type(content: Any, kind: type[T], source: object) -> T:
    """content, of JSON or TOML, as a dataclass or any other type that msgspec knows; source: named in the error.

    Bounds are declared beside the field: `crop: Annotated[int, Meta(ge=1, le=16_384)]`; not in a union with a tuple,
    which crashes msgspec (0.19 and 0.22). Numbers that are not finite and integers of more than 64 bits are errors as
    well. Fields that the type does not have are ignored.

    Raises
    ------
    StoreError
        For anything else.
    """
    require_plain(content, source)
    return converted(content, kind, source)


def converted(content: Any, kind: type[T], source: object) -> T:
    """As `as_type`, for types without numbers."""
    try:
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise invalid(source, str(error)) from error


def require_plain(content: Any, source: object, depth: int = 0) -> None:
    """A StoreError for numbers that are not finite or very large, and for lists and objects nested very deep."""
    if depth > MAX_DEPTH:
        raise invalid(source, f"lists or objects are nested more than {MAX_DEPTH} deep")
    if isinstance(content, float):
        if not math.isfinite(content):
            raise invalid(source, "a number is not finite")
    elif isinstance(content, int):
        if abs(content) > MAX_INTEGER:
            raise invalid(source, "an integer has more than 64 bits")
    elif isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            require_plain(each, source, depth + 1)


def invalid(source: object, reason: str) -> StoreError:
    """The error for content that fscil does not write."""
    return StoreError(
        f"{source}: damaged, changed, or of another program: {printable(reason)[:SHOWN]}. Restore it from a copy."
    )
