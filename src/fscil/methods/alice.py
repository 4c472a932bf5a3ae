"""ALICE (Peng et al., ECCV 2022): augmented angular loss for the base classes, then balanced nearest class means.

Base training has two random views of every image, mixtures of two classes as additional classes, and an angular margin
at a cosine classifier on a projection head. Then projection and classifier are discarded, the backbone is frozen, and a
class is the mean of a few features.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from fscil.config import Config
from fscil.data.images import Images
from fscil.errors import ProtocolError
from fscil.gallery import balanced_means, class_means, cosine_scores
from fscil.methods.base import Memory
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.models.state import of_prefix

Prototypes: TypeAlias = Literal["balanced", "all"]  # of the base classes: of as many images as new classes have, or all


class Alice(FrozenFeatureMethod):
    """Keeps, per base class, the mean of all features and, for each k in shots, the mean of the k nearest to it.

    Parameters
    ----------
    config
        The recipe; of it ALICE uses the preprocessing and `test.prototypes`.
    network
        Trained by the recipe, see `fscil.training.base_training.train_base_network`.
    context
        The device, and whether progress is shown.
    class_names
        Not used.

    Examples
    --------
    Two base classes, then a third one from a single image; here all are of one colour each:

    >>> import numpy as np
    >>> from fscil.config import load_recipe
    >>> from fscil.data.images import ArrayPixels, Images
    >>> from fscil.training.base_training import train_base_network
    >>> from fscil.training.context import Context
    >>> def images(*labels):
    ...     colours = np.eye(3, dtype=np.uint8)[list(labels)] * 200
    ...     return Images.of(ArrayPixels(np.tile(colours[:, None, None], (1, 16, 16, 1))), np.array(labels))
    >>> settings = ["views.size=16", "model.width=4", "train.epochs=1", "train.batch=2"]
    >>> recipe, context = load_recipe("glyphs", settings), Context.on("cpu", quiet=True)
    >>> base = images(0, 1, 0, 1)
    >>> alice = Alice(recipe, train_base_network(recipe, base, context), context)
    >>> alice.fit_base(base, shots=[1])
    >>> alice.learn(images(2))
    >>> alice.scores(images(2, 0, 1)).argmax(1)
    tensor([2, 0, 1])
    """

    title = "ALICE"
    table_order = 100
    highlighted = True

    prototypes: ClassVar[Prototypes | None] = None  # None: as the recipe says
    _all = _novel = torch.empty(0)  # (base classes, d), (novel classes, d)
    _nearest: dict[int, Tensor]  # shots -> (base classes, d)
    _shots = 0  # images per class in the sessions learned; 0 before the first

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        """The recipe of the network ALICE starts from.

        Returns
        -------
        Config
            The recipe itself, which has ALICE's angular penalty, class augmentation, views and projection.
        """
        return config

    def fit_base(self, base: Images, shots: Sequence[int]) -> None:
        """Compute the prototypes of the base classes; after this their images are no longer needed.

        Parameters
        ----------
        base
            Training images of the base classes, labelled 0, 1, ….
        shots
            Numbers of images per class that sessions may bring: there is a balanced prototype for each.
        """
        features, labels, classes = self.features(base), torch.from_numpy(base.labels), len(base.counts)
        self._all = class_means(features, labels, classes)
        self._nearest = {k: balanced_means(features, labels, classes, k) for k in shots}
        self._novel, self._shots = self._all[:0], 0

    def learn(self, new: Images) -> None:
        """Add a prototype for each new class: the mean of its features. Nothing is trained.

        Parameters
        ----------
        new
            One session's images, labelled from the number of classes seen so far on.

        Raises
        ------
        ProtocolError
            Where the labels do not continue those of the classes seen so far.
        """
        means = self.means_of(new, len(self._all) + len(self._novel))
        self._novel = torch.cat([self._novel, means])
        self._shots = max(new.counts.values())

    def scores(self, images: Images) -> Tensor:
        """Cosines to the prototypes.

        Parameters
        ----------
        images
            n images; their labels are not used.

        Returns
        -------
        Tensor
            (n, classes seen so far) on the host, higher is nearer. Balanced prototypes, of as many features for each
            class, are used after session 0.

        Raises
        ------
        ProtocolError
            Where a session has brought a number of images per class that `fit_base` was not told of.
        """
        base = self._balanced(self._shots) if self._balances and self._shots else self._all
        return cosine_scores(self.features(images), torch.cat([base, self._novel]))

    def alternatives(self, images: Images) -> dict[str, Tensor]:
        """The scores of balanced prototypes before the first session, where the main ones are of all base images.

        Returns
        -------
        dict
            (n, base classes) scores by "balanced, k-shot"; empty after the first session.
        """
        if self._shots or not self._balances:
            return {}
        features = self.features(images)
        return {f"balanced, {k}-shot": cosine_scores(features, near) for k, near in self._nearest.items()}

    @property
    def _balances(self) -> bool:
        return (self.prototypes or self.config.test.prototypes) == "balanced"

    def _balanced(self, shots: int) -> Tensor:
        if shots not in self._nearest:
            known = ", ".join(map(str, self._nearest))
            raise ProtocolError(f"base prototypes were made for {known} shots, not for {shots}.")
        return self._nearest[shots]

    def memory(self) -> Memory:
        """No image; the numbers of all prototypes."""
        kept = [self._all, self._novel, *self._nearest.values()]
        return Memory(images=0, floats=sum(tensor.numel() for tensor in kept))

    def own_state(self) -> dict[str, Tensor]:
        """The prototypes, for `load_own_state`: base.all, base.<shots>, novel, shots."""
        nearest = {f"base.{k}": means for k, means in self._nearest.items()}
        return {**nearest, "base.all": self._all, "novel": self._novel, "shots": torch.tensor(self._shots)}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        """Continue with these prototypes."""
        base = of_prefix("base", state)
        self._all, self._novel, self._shots = base.pop("all"), state["novel"], int(state["shots"])
        self._nearest = {int(shots): means for shots, means in base.items()}
