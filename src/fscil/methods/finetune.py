"""Ft-CNN: the network is fine-tuned by cross-entropy on a session's images alone. It shows catastrophic forgetting."""

from torch import Tensor
from torch.nn import functional as F

from fscil.data.images import Images
from fscil.methods.toolkit.session_training import ImprintingMethod


class FineTune(ImprintingMethod):
    """Keeps nothing of the past but the network. All of it moves."""

    title = "Ft-CNN"
    table_order = 10
    session_lr = 0.003
    session_steps = 30
    trainable = "all"

    def learn(self, new: Images) -> None:
        first = self.grow(new)

        def loss(views: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.network(views), labels)

        self.train(new, loss, seed=first)
