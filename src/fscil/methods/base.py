"""The contract every method keeps: learn the base, then each session from its own images, and score all classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.training.loop import Trainer


@dataclass(frozen=True)
class Memory:
    """What a method keeps of past data, apart from its network."""

    images: int = 0
    floats: int = 0


class Method(Protocol):
    """Labels are class numbers by arrival: base classes 0..C-1, and each session's go on from there.

    Two things a class may say besides, and most do not: `judged = "last"` and `needs_words = True`, see below.
    """

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = ()) -> None:
        """class_names: of all classes, by arrival, for methods that use what names mean."""
        ...

    @staticmethod
    def base_recipe(config: Config) -> Config:
        """The recipe of the network this method starts from; methods whose recipes agree share one."""
        ...

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        """Learn the base classes; `shots` are the numbers of images per class that later sessions may bring."""
        ...

    def learn(self, new: Images) -> None:
        """Learn one session's new classes from these images and what memory() declares."""
        ...

    def scores(self, images: Images) -> Tensor:
        """(n, classes seen so far), higher is nearer."""
        ...

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        """Other scores worth reporting beside the main ones, by name; most methods have none."""
        ...

    def memory(self) -> Memory: ...

    def state(self) -> dict[str, Tensor]:
        """All that is needed to go on, as tensors."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None: ...


def judged_last(method: type[Method]) -> bool:
    """`judged = "last"`: being asked for scores is so costly that only session 0 and the last are looked at."""
    return bool(getattr(method, "judged", "all") == "last")


def needs_words(method: type[Method]) -> bool:
    """`needs_words = True`: cannot do without word vectors of the class names."""
    return bool(getattr(method, "needs_words", False))
