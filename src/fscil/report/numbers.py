"""A number of a table: a mean in percent with its 95% interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from fscil.metrics import mean_and_interval


@dataclass(frozen=True)
class MeanWithInterval:
    """A mean in percent, and half the width of its 95% interval where it is one of several values."""

    mean: float
    interval: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "MeanWithInterval | None":
        """values: fractions, of which None is left out; without any other there is no mean."""
        known = [100 * value for value in values if value is not None]
        return cls(*mean_and_interval(known)) if known else None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.interval is None else f"{self.mean:.1f} ±{self.interval:.1f}"


def cell(number: MeanWithInterval | None) -> str:
    return "-" if number is None else str(number)
