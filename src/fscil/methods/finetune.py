"""Ft-CNN: the network trained on, with cross-entropy on the new session's images only. What forgetting looks like."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.growing_network import Learner
from fscil.methods.toolkit.train_on_images import descend
from fscil.training.base_training import plain_recipe
from fscil.training.loop import Trainer


class FineTune:
    """Keeps nothing of the past but the network."""

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = ()) -> None:
        self.config, self.trainer = config, trainer
        self.network = Learner(self.base_recipe(config), trainer)

    @staticmethod
    def base_recipe(config: Config) -> Config:
        return plain_recipe(config)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.network.fit_base(base)

    def learn(self, new: Images) -> None:
        first = self.network.grow(new)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.network(views), labels)

        descend(self.network.parameters(), new, loss, self.config, self.trainer, "finetune", seed=first)
        self.network.settle()

    def scores(self, images: Images) -> Tensor:
        return self.network.scores(images)

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        return {}

    def memory(self) -> Memory:
        return Memory()

    def state(self) -> dict[str, Tensor]:
        return self.network.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state(state)
