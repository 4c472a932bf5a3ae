"""iCaRL (Rebuffi et al., CVPR 2017): a few exemplars per class, chosen by herding, rehearsed, and the classifier too.

A session is learned from its images and all exemplars, while the old outputs are held to what they said before. Those
outputs only train the features: a class is the mean of its exemplars, measured anew by the network as it is now.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.gallery import class_means, cosine_scores
from fscil.methods.base import Memory
from fscil.methods.toolkit.distillation import distillation
from fscil.methods.toolkit.exemplars import NOTHING, from_tensors, herded, joined, to_tensors
from fscil.methods.toolkit.growing_network import Learner
from fscil.methods.toolkit.train_on_images import descend
from fscil.training.base_training import plain_recipe
from fscil.training.loop import Trainer


class ICarl:
    """Keeps the exemplars; class means follow from them."""

    def __init__(self, config: Config, trainer: Trainer, class_names: Sequence[str] = ()) -> None:
        self.config, self.trainer = config, trainer
        self.network = Learner(self.base_recipe(config), trainer)
        self.exemplars = NOTHING

    @staticmethod
    def base_recipe(config: Config) -> Config:
        return plain_recipe(config)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.network.fit_base(base)
        self.exemplars = joined(self._chosen(base))

    def learn(self, new: Images) -> None:
        before = self.network.frozen()
        first = self.network.grow(new)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            scores = self.network(views)
            return F.cross_entropy(scores, labels) + distillation(scores[:, :first], before(views))

        images = joined(self.exemplars, new)
        descend(self.network.parameters(), images, loss, self.config, self.trainer, "icarl", seed=first)
        self.network.settle()
        self.exemplars = joined(self.exemplars, self._chosen(new))

    def _chosen(self, images: Images) -> Images:
        return herded(images, self.network.features(images), self.config.incremental.exemplars)

    def means(self) -> Tensor:
        """(classes, d), of the exemplars' normalised features."""
        features = F.normalize(self.network.features(self.exemplars))
        return class_means(features, torch.from_numpy(self.exemplars.labels), self.network.head.out_features)

    def scores(self, images: Images) -> Tensor:
        return cosine_scores(self.network.features(images), self.means())

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        return {}

    def memory(self) -> Memory:
        return Memory(images=len(self.exemplars))

    def state(self) -> dict[str, Tensor]:
        """backbone.*, head.*, exemplars.*"""
        return {**self.network.state(), **to_tensors(self.exemplars)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state(state)
        self.exemplars = from_tensors(state)
