"""Means of features: balanced selection, one mean per class, nearest mean by cosine."""

import torch
import torch.nn.functional as F
from torch import Tensor


def balanced_indices(features: Tensor, k: int) -> Tensor:
    """Balanced selection: the k features of one class that are nearest to its mean, by cosine.

    Parameters
    ----------
    features : Tensor
        (n, d) raw features of one class; their mean is that of the raw features.
    k : int
        From 1 to n.

    Returns
    -------
    Tensor
        (k,) indices, nearest first; of equally near ones the lower index first.

    Raises
    ------
    ValueError
        If k is not from 1 to n.

    Examples
    --------
    >>> import torch
    >>> balanced_indices(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0]]), 2).tolist()
    [2, 3]
    """
    if not 1 <= k <= len(features):
        raise ValueError(f"cannot choose {k} of {len(features)} images")
    wide = features.double().contiguous()  # so that the order does not depend on float32 rounding
    # A sum along each row, no matrix product: equal rows must give equal cosines, whatever their position.
    cosine = (F.normalize(wide, dim=1) * F.normalize(wide.mean(0), dim=0)).sum(1)
    return torch.sort(cosine, descending=True, stable=True).indices[:k]


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(n, d) features and (n,) labels -> (classes, d) mean of raw features; NaN where a class has none."""
    sums = features.new_zeros(classes, features.shape[1], dtype=torch.float64)
    sums.index_add_(0, labels, features.double())
    counts = torch.bincount(labels, minlength=classes)[:classes]
    return (sums / counts[:, None]).to(features.dtype)


def balanced_means(features: Tensor, labels: Tensor, classes: int, k: int) -> Tensor:
    """(classes, d): the mean of each class's k features nearest to its all-data mean; of all where it has fewer."""
    means = []
    for label in range(classes):
        own = features[labels == label]
        means.append(own[balanced_indices(own, min(k, len(own)))].double().mean(0).to(features.dtype))
    return torch.stack(means)


def cosine_scores(features: Tensor, prototypes: Tensor) -> Tensor:
    """(n, d) features against (classes, d) prototypes -> (n, classes) cosines; the largest is the nearest mean."""
    return F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T
