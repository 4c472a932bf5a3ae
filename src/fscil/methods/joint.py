"""Joint training: a new network trained on all data received so far, the base classes with all their images.

Trained plainly, as "Joint-CNN" in the study of Tao et al. (CVPR 2020), it names hardly any new class, because the base
classes have a hundred times as many images. Balanced softmax (Ren et al., NeurIPS 2020) allows for these numbers in the
loss; its classifier, or the nearest class mean, predicts without them. Recent work takes that for the upper bound;
nothing makes it one: a class of five images stays a class of five images.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fscil.config import Config
from fscil.data.images import Images
from fscil.gallery import class_means, cosine_scores
from fscil.methods.base import Memory, images_in_training
from fscil.methods.toolkit.exemplars import from_tensors, joined, to_tensors
from fscil.methods.toolkit.growing_network import GrowingNetwork, NetworkMethod, check_numbers
from fscil.protocol import Protocol
from fscil.training.base_network import BaseNetwork
from fscil.training.base_training import base_step, train_base_network
from fscil.training.loop import Step


class Joint(NetworkMethod):
    """Keeps every image. Trains when scores are asked for, so that sessions that are not judged cost nothing."""

    title = "Joint-CNN (Tao et al.)"
    table_order = 0
    judged = "last"  # scores after a session take a training
    images_seen_note = "joint training counts the training anew for its last session too"
    seen: Sequence[Images] = ()

    @classmethod
    def images_seen(cls, config: Config, base: Images, protocol: Protocol) -> float:
        """Base training, and the training on all data after the last session."""
        seen = super().images_seen(config, base, protocol)
        if not protocol.sessions:
            return seen
        received = len(base) + (protocol.classes - protocol.base_classes) * protocol.shots
        return seen + images_in_training(cls.base_recipe(config), received)

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.seen = [base]

    def learn(self, new: Images) -> None:
        check_numbers(new, self._classes)
        self.seen = [*self.seen, new]

    @property
    def _classes(self) -> int:
        return 1 + max(max(images.counts) for images in self.seen)

    def scores(self, images: Images) -> Tensor:
        self._train()
        return self.network.scores(images)

    def _train(self) -> None:
        """On all images received, unless that has been done since the last session."""
        if self.network.head.out_features < self._classes:
            recipe = self.base_recipe(self.config)
            trained = train_base_network(recipe, joined(*self.seen), self.context, make_step=self.joint_step)
            self.network = GrowingNetwork(recipe, trained, self.context)

    def joint_step(self, recipe: Config, network: BaseNetwork, classes: int) -> Step:
        """The step of training on all images received."""
        return base_step(recipe, network, classes)

    def memory(self) -> Memory:
        return Memory(images=sum(map(len, self.seen)))

    def own_state(self) -> dict[str, Tensor]:
        """exemplars.*"""
        return to_tensors(joined(*self.seen))

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.seen = [from_tensors(state)]


class BalancedJoint(Joint):
    """Balanced softmax in training; the prediction is that of the classifier."""

    title = "joint training, balanced"
    table_order = 1

    def joint_step(self, recipe: Config, network: BaseNetwork, classes: int) -> Step:
        counts = np.bincount(np.concatenate([images.labels for images in self.seen]), minlength=classes)
        return base_step(recipe, network, classes, torch.from_numpy(counts / counts.sum()).log().float())


class BalancedJointMeans(BalancedJoint):
    """The same network; the prediction is the nearest mean of all images received."""

    title = "joint training, balanced + nearest mean"
    table_order = 2

    def scores(self, images: Images) -> Tensor:
        self._train()
        # In one part, as in a state: the last bit of a feature may depend on the batch in which it is computed.
        everything = self.seen[0] if len(self.seen) == 1 else joined(*self.seen)
        self.seen = [everything]
        features, labels = F.normalize(self.network.features(everything)), torch.from_numpy(everything.labels)
        return cosine_scores(self.network.features(images), class_means(features, labels, self._classes))
