"""The contract of a method: learn the base classes, then each session from its own images, and score all classes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.openset import SCORES, Evidence
from fscil.protocol import Protocol
from fscil.training.base_network import passes_per_image
from fscil.training.base_training import TrainedNetwork, plain_recipe
from fscil.training.batches import steps_per_epoch
from fscil.training.context import Context


@dataclass(frozen=True)
class Memory:
    """What a method keeps of past data, apart from its network."""

    images: int = 0
    floats: int = 0


class Method(ABC):
    """Labels are class numbers in order of arrival: base classes 0..C-1, then those of each session."""

    title: ClassVar[str] = ""  # in tables and figures; the name it is registered under where empty
    table_order: ClassVar[int] = 500  # of the rows of a table; the systems of the paper's tables have 0 to 100
    highlighted: ClassVar[bool] = False  # in figures
    judged: ClassVar[Literal["every", "last"]] = "every"  # "last": scores are so costly that few sessions are judged
    needs_words: ClassVar[bool] = False  # whether it needs word vectors of the class names
    trains_in_sessions: ClassVar[bool] = False  # whether the settings `incremental` have an effect, save `episodes`
    trains_in_episodes: ClassVar[bool] = False  # whether `incremental.episodes` has one
    images_seen_note: ClassVar[str] = ""  # what images_seen counts beside base training, for the report

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        """network: trained by base_recipe(config). The method may change it, so that it must not be shared.

        class_names: of all classes, in order of arrival, for methods that use their meaning.
        """
        self.config, self.context = config, context

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """The recipe of the network this method starts from; methods whose recipes agree share one."""
        return plain_recipe(config)

    @classmethod
    def images_seen(cls, config: Config, base: Images, protocol: Protocol) -> float:
        """How many images pass the network in training; every view and every mixture counts as one."""
        return images_in_training(cls.base_recipe(config), len(base))

    @classmethod
    def runs_by_default(cls, config: Config) -> bool:
        """Whether a comparison that names no methods has this one: not if it is costly, or lacks what it needs."""
        return cls.judged == "every" and bool(config.data.word_vectors or not cls.needs_words)

    @abstractmethod
    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        """Learn the base classes; `shots` are the numbers of images per class that later sessions may bring."""

    @abstractmethod
    def learn(self, new: Images) -> None:
        """Learn one session's new classes from these images and what memory() declares."""

    @abstractmethod
    def scores(self, images: Images) -> Tensor:
        """(n, classes seen so far), higher is nearer."""

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        """Other scores worth reporting beside the main ones, by name."""
        return {}

    def unknown_scores(self, scores: Tensor) -> dict[str, Tensor]:
        """(n, classes seen so far) scores -> by name, (n,) each: low where an image may show none of the classes."""
        seen = Evidence(scores)
        return {name: of(seen) for name, of in SCORES.items()}

    def memory(self) -> Memory:
        return Memory()

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All that load_state needs to continue from here, as tensors on the host."""

    @abstractmethod
    def load_state(self, state: dict[str, Tensor]) -> None: ...


def images_in_training(recipe: Config, images: int) -> float:
    """How many images pass the network in a base training on this many."""
    steps = recipe.train.epochs * steps_per_epoch(images, recipe.train.batch)
    return steps * min(recipe.train.batch, images) * passes_per_image(recipe)
