"""Methods that keep a few exemplars of every class and rehearse them together with a session's new images."""

from collections.abc import Sequence

from torch import Tensor

from fscil.data.images import Images
from fscil.methods.base import Memory
from fscil.methods.toolkit.exemplars import NO_IMAGES, from_tensors, herded, joined, to_tensors
from fscil.methods.toolkit.session_training import ImprintingMethod


class RehearsalMethod(ImprintingMethod):
    """Keeps `incremental.exemplars` images of each class, chosen by herding right after the class was learned."""

    exemplars: Images = NO_IMAGES

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        super().fit_base(base, shots)
        self.exemplars = NO_IMAGES
        self.keep_exemplars(base)

    def with_exemplars(self, new: Images) -> Images:
        return joined(self.exemplars, new)

    def keep_exemplars(self, images: Images) -> None:
        self.exemplars = joined(self.exemplars, self.herded(images, self.config.incremental.exemplars))

    def herded(self, images: Images, count: int) -> Images:
        """At most count images of each class, by herding."""
        return herded(images, self.network.features(images), count)

    def memory(self) -> Memory:
        return Memory(images=len(self.exemplars), floats=super().memory().floats)

    def own_state(self) -> dict[str, Tensor]:
        """base.*, exemplars.*"""
        return {**super().own_state(), **to_tensors(self.exemplars)}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        super().load_own_state(state)
        self.exemplars = from_tensors(state)
