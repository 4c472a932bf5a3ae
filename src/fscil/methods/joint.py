"""Joint training: a new network for all data received so far. Not in the paper; what forgetting nothing would give."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.exemplars import from_tensors, joined, to_tensors
from fscil.methods.toolkit.growing_network import Learner, check_numbers
from fscil.training.base_training import plain_recipe
from fscil.training.loop import Trainer


class Joint:
    """Keeps every image. Trains when asked for scores, so that sessions nobody looks at cost nothing."""

    judged: Literal["last"] = "last"  # each look is a training: benches look at session 0 and at the last

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = ()) -> None:
        self.config, self.trainer = config, trainer
        self.network = Learner(self.base_recipe(config), trainer)
        self.seen: list[Images] = []

    @staticmethod
    def base_recipe(config: Config) -> Config:
        return plain_recipe(config)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.network.fit_base(base)
        self.seen = [base]

    def learn(self, new: Images) -> None:
        check_numbers(new, self._classes)
        self.seen = [*self.seen, new]

    @property
    def _classes(self) -> int:
        return 1 + max(max(images.counts) for images in self.seen)

    def scores(self, images: Images) -> Tensor:
        if self.network.head.out_features < self._classes:
            # The trainer's run folder, if there is one, belongs to base training.
            trainer = Trainer(self.config.train, self.trainer.device, quiet=self.trainer.quiet)
            self.network = Learner(self.base_recipe(self.config), trainer)
            self.network.fit_base(joined(*self.seen))
        return self.network.scores(images)

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        return {}

    def memory(self) -> Memory:
        return Memory(images=sum(map(len, self.seen)))

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*, exemplars.*"""
        return {**self.network.state(), **to_tensors(joined(*self.seen))}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state(state)
        self.seen = [from_tensors(state)]
