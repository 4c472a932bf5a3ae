"""Methods that keep a few exemplars of every class and rehearse them beside a session's new images."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fscil.config import Config
from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.exemplars import NO_IMAGES, from_tensors, herded, joined, to_tensors
from fscil.methods.toolkit.growing_network import NetworkMethod
from fscil.methods.toolkit.train_on_images import train_on_images
from fscil.training.base_training import TrainedNetwork
from fscil.training.context import Context


class RehearsalMethod(NetworkMethod):
    """Keeps `incremental.exemplars` images of each class, chosen by herding on the features of their time."""

    trains_in_sessions = True

    def __init__(
        self, config: Config, network: TrainedNetwork, context: Context, class_names: Sequence[str] = ()
    ) -> None:
        super().__init__(config, network, context, class_names)
        self.exemplars = NO_IMAGES

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        self.keep_exemplars(base)

    def train(
        self,
        images: Images,
        loss: Callable[[Tensor, Tensor], Tensor],
        seed: int,
        parameters: Sequence[nn.Parameter] | None = None,
        lr: float | None = None,
    ) -> None:
        """Lower the loss on these images; all of the network moves unless other parameters are given."""
        moving = self.network.parameters() if parameters is None else parameters
        train_on_images(moving, images, loss, self.config, self.context, self.title, seed, lr)
        self.network.weights_changed()

    def with_exemplars(self, new: Images) -> Images:
        return joined(self.exemplars, new)

    def keep_exemplars(self, images: Images) -> None:
        self.exemplars = joined(self.exemplars, self.herded(images, self.config.incremental.exemplars))

    def herded(self, images: Images, count: int) -> Images:
        """At most count images of each class, by herding."""
        return herded(images, self.network.features(images), count)

    def memory(self) -> Memory:
        return Memory(images=len(self.exemplars))

    def own_state(self) -> dict[str, Tensor]:
        """exemplars.*"""
        return to_tensors(self.exemplars)

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        self.exemplars = from_tensors(state)
