"""Ft-CNN: the network trained on, with cross-entropy on the new session's images only. What forgetting looks like."""

from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.methods.toolkit.growing_network import NetworkMethod
from fscil.methods.toolkit.train_on_images import train_on_images


class FineTune(NetworkMethod):
    """Keeps nothing of the past but the network."""

    title = "Ft-CNN"
    table_order = 1
    trains_in_sessions = True

    def learn(self, new: Images) -> None:
        first = self.network.grow(new)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.network(views), labels)

        train_on_images(self.network.parameters(), new, loss, self.config, self.context, self.title, seed=first)
        self.network.weights_changed()
