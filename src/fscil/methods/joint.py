"""Joint training: a new network trained on all data received so far. Not in the paper; an upper bound."""

from collections.abc import Sequence

from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory, images_in_training
from fscil.methods.toolkit.exemplars import from_tensors, joined, to_tensors
from fscil.methods.toolkit.growing_network import GrowingNetwork, NetworkMethod, check_numbers
from fscil.protocol import Protocol
from fscil.training.base_training import train_base_network


class Joint(NetworkMethod):
    """Keeps every image. Trains when scores are asked for, so that sessions that are not judged cost nothing."""

    title = "joint training (upper bound, not in the paper)"
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
        received = len(base) + protocol.sessions * protocol.way * protocol.shots
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
        if self.network.head.out_features < self._classes:
            recipe = self.base_recipe(self.config)
            trained = train_base_network(recipe, joined(*self.seen), self.context)
            self.network = GrowingNetwork(recipe, trained, self.context)
        return self.network.scores(images)

    def memory(self) -> Memory:
        return Memory(images=sum(map(len, self.seen)))

    def own_state(self) -> dict[str, Tensor]:
        """exemplars.*"""
        return to_tensors(joined(*self.seen))

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.seen = [from_tensors(state)]
