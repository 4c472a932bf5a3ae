"""Bounds of settings, declared beside the field: `width: Annotated[int, Between(1, 1024)] = 64`."""

from dataclasses import dataclass
from typing import Any, get_type_hints

from fscil.errors import ConfigError

FLOAT32 = 1e38  # settings that become tensors must not overflow there
SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Between:
    """Smallest and largest allowed value of a number; of a list, of each item."""

    low: float
    high: float
    exclusive: bool = False  # low and high themselves are not allowed

    def allows(self, value: float) -> bool:
        return self.low < value < self.high if self.exclusive else self.low <= value <= self.high

    def __str__(self) -> str:
        if self.exclusive:
            return f"more than {self.low} and less than {self.high}"
        return f"between {self.low} and {self.high}"


def check_bounds(settings: Any, prefix: str = "") -> None:
    """Raise a ConfigError for the first field of a dataclass that is out of its bounds; prefix: of its key."""
    for name, bounds in _bounds(type(settings)):
        value = getattr(settings, name)
        numbers = [one for one in (value if isinstance(value, tuple) else [value]) if isinstance(one, int | float)]
        if not all(map(bounds.allows, numbers)):
            raise ConfigError(f"{prefix}{name} = {short(value)}: must be {bounds}.")


def _bounds(kind: type[Any]) -> list[tuple[str, Between]]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        (name, each)
        for name, hint in hints.items()
        for each in getattr(hint, "__metadata__", ())
        if type(each) is Between
    ]


def short(value: object) -> str:
    """A value for a message, cut where it is long."""
    try:
        text = repr(list(value) if isinstance(value, tuple) else value)
    except ValueError:  # Python writes no numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
