"""Class augmentation: mixtures of images of two classes are images of a new class."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from fscil.augment import ALL

Lam: TypeAlias = Literal["uniform", "beta"]


def pair_label(a: Tensor, b: Tensor, classes: int) -> Tensor:
    """The class of mixtures of classes a and b: each unordered pair has a number of its own, after all classes.

    Parameters
    ----------
    a, b
        Class numbers, int64 of one shape, different from each other everywhere.
    classes
        Number of classes, of which a and b are 0..classes-1.

    Returns
    -------
    Tensor
        Numbers in classes..classes + classes (classes - 1) / 2 - 1, of the shape of a and b.

    Examples
    --------
    >>> pair_label(torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 2, 1]), classes=3)
    tensor([3, 4, 5, 5])
    """
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return classes + low * (2 * classes - low - 1) // 2 + (high - low) - 1


class PairClasses:
    """The pairs of classes whose mixtures are classes: all, or at most `limit` (0: no limit), drawn by the seed.

    Their number grows with the square of the classes, and with it the classifier: 1,000 classes have 499,500 pairs.
    """

    def __init__(self, classes: int, limit: int = 0, seed: int = 0) -> None:
        pairs = classes * (classes - 1) // 2
        self.classes = classes
        self._drawn: Tensor | None = None  # ranks of the pairs, ascending
        if 0 < limit < pairs:
            drawn = np.random.default_rng([seed, classes]).choice(pairs, limit, replace=False, shuffle=False)
            self._drawn = torch.from_numpy(np.sort(drawn))
            pairs = limit
        self.outputs = classes + pairs  # of a classifier: base classes first

    def label(self, a: Tensor, b: Tensor) -> Tensor:
        """The class of mixtures of a and b, on the host; -1 where the two are the same class, or a pair not drawn."""
        label = pair_label(a, b, self.classes)
        if self._drawn is not None:
            rank = label - self.classes
            place = torch.searchsorted(self._drawn, rank).clamp_max(len(self._drawn) - 1)
            label = torch.where(self._drawn[place] == rank, self.classes + place, -1)
        return torch.where(a == b, -1, label)

    def partners(self, labels: Tensor, repeats: int, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Of a batch of labels (n,): the positions of both images of each mixture, and its class, (m,) each."""
        count = len(labels)
        if self._drawn is None:  # `repeats` times, every image with the one at its position in a shuffled batch
            left = torch.arange(count, device=labels.device).expand(repeats, count).reshape(-1)
            right = torch.rand(repeats, count, generator=generator).argsort(1).to(labels.device).reshape(-1)
        else:  # few of those would be pairs that were drawn: so a random choice of all in the batch that are
            left, right = torch.combinations(torch.arange(count)).T
        made = self.label(labels[left], labels[right])
        usable = (made >= 0).nonzero().squeeze(1)
        if self._drawn is not None:
            usable = usable[torch.randperm(len(usable), generator=generator)[: repeats * count]]
        return left[usable], right[usable], made[usable]


def _mixing_weights(count: int, lam: Lam, generator: Generator | None) -> Tensor:
    if lam == "uniform":
        return torch.empty(count).uniform_(0.4, 0.6, generator=generator)
    if lam != "beta":
        raise ValueError(f'lam must be "uniform" or "beta", not {lam!r}')
    # Beta(20, 20) is exactly the distribution of the median of 39 uniform numbers.
    drawn = torch.rand(count, 39, generator=generator).median(1).values
    return torch.where((drawn < 0.4) | (drawn > 0.6), 0.5, drawn)


@dataclass(frozen=True, eq=False)
class Mixtures:
    """The mixtures of a batch, each (m,) on the host: positions of both images, weight of the left one, class."""

    left: Tensor
    right: Tensor
    weight: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> "Mixtures":
        return Mixtures(self.left[rows], self.right[rows], self.weight[rows], self.labels[rows])

    def added_to(self, views: Tensor, part: slice = ALL) -> Tensor:
        """(V, n, 3, h, w) views of the batch -> (V, k + m, 3, h, w): the k in this part of it, then the mixtures."""
        left, right = (each.to(views.device, non_blocking=True) for each in (self.left, self.right))
        weight = self.weight.to(views.device, views.dtype, non_blocking=True)
        kept = views[:, part]
        out = views.new_empty((len(views), kept.shape[1] + len(self), *views.shape[2:]))
        out[:, : kept.shape[1]] = kept
        for view, target in zip(views, out, strict=True):
            torch.lerp(view[right], view[left], weight[:, None, None, None], out=target[kept.shape[1] :])
        return out


def draw_mixtures(
    labels: Tensor, classes: int | PairClasses, repeats: int, lam: Lam, generator: Generator | None
) -> Mixtures:
    """The mixtures of a batch with labels (n,), see mix_classes."""
    pairs = classes if isinstance(classes, PairClasses) else PairClasses(classes)
    if repeats == 0 or len(labels) == 0:
        none = torch.empty(0, dtype=torch.int64)
        return Mixtures(none, none, torch.empty(0), none)
    left, right, mixed_labels = pairs.partners(labels, repeats, generator)
    return Mixtures(left, right, _mixing_weights(len(left), lam, generator), mixed_labels)


def mix_classes(
    views: Tensor,
    labels: Tensor,
    classes: int | PairClasses,
    repeats: int = 4,
    lam: Lam = "uniform",
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Class augmentation (equation 5): mixtures of images of two classes are images of a new class.

    Each of `repeats` rounds shuffles the batch and mixes every image with the one at its position, if their classes
    differ. Both images and their weights are the same in all views.

    Parameters
    ----------
    views
        (V, n, 3, h, w) views of a batch of images.
    labels
        (n,) their classes. Best on the host: then nothing waits for a device.
    classes
        Number of base classes, or which of their pairs are classes.
    repeats
        Mixtures per image, at most. 0 gives back views and labels.
    lam
        Distribution of the weight: "uniform" in 0.4..0.6, or "beta", Beta(20, 20) with 0.5 outside of 0.4..0.6.
    generator
        Source of randomness; torch's global one if None.

    Returns
    -------
    tuple of Tensor
        (V, n + m, 3, h, w) views and (n + m,) labels: the given ones first, then m <= repeats n mixtures.

    Raises
    ------
    ValueError
        If `lam` is neither of the two.

    Examples
    --------
    >>> views, labels = torch.rand(2, 4, 3, 8, 8), torch.tensor([0, 0, 1, 2])
    >>> mixed, targets = mix_classes(views, labels, classes=3, repeats=1, generator=torch.Generator().manual_seed(0))
    >>> mixed.shape
    torch.Size([2, 8, 3, 8, 8])
    >>> targets
    tensor([0, 0, 1, 2, 3, 4, 3, 4])
    """
    mixtures = draw_mixtures(labels, classes, repeats, lam, generator)
    if not len(mixtures):
        return views, labels
    return mixtures.added_to(views), torch.cat([labels, mixtures.labels])
