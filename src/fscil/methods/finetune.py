"""Ft-CNN: the network is fine-tuned by cross-entropy on a session's images alone. It shows catastrophic forgetting."""

from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.methods.toolkit.growing_network import NetworkMethod


class FineTune(NetworkMethod):
    """Keeps nothing of the past but the network."""

    title = "Ft-CNN"
    table_order = 10
    trains_in_sessions = True

    def learn(self, new: Images) -> None:
        first = self.network.grow(new)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.network(views), labels)

        self.train(new, loss, seed=first)
