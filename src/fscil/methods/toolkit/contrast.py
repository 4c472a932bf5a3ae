"""Contrast between the images of a batch: vectors of one class, or of one image, against all others."""

import torch
from torch import Tensor


def cosines_of(queries: Tensor, keys: Tensor) -> Tensor:
    """(n, d) and (m, d) unit vectors -> (n, m), at least in float32: half precision is too coarse for scaled ones."""
    with torch.autocast(queries.device.type, enabled=False):
        return precise(queries) @ precise(keys).T


def precise(vectors: Tensor) -> Tensor:
    """In float32, or as it is where that is finer."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def supervised_contrast(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020) of (n, d) unit vectors with (n,) labels.

    The mean over all that have another of their label, and over those others p, of -log of the share that exp(z p / T)
    has in the sum over all vectors but z itself.
    """
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    cosines = (cosines_of(vectors, vectors) / temperature).masked_fill(itself, -torch.inf)
    log_share = (cosines - cosines.logsumexp(1, keepdim=True)).masked_fill(itself, 0)
    positive = (labels[:, None] == labels) & ~itself
    counts = positive.sum(1)
    each = -(log_share * positive).sum(1) / counts.clamp_min(1)
    return each.sum() / (counts > 0).sum().clamp_min(1)  # nothing where there is no positive


def self_supervised_contrast(vectors: Tensor, images: int, temperature: float) -> Tensor:
    """The loss of SimCLR (Chen et al., ICML 2020): each view of an image against its other views, among all vectors.

    vectors: (views * images, d) of unit length, all of the first view, then all of the second, and so on.
    """
    of_image = torch.arange(images, device=vectors.device).repeat(len(vectors) // images)
    return supervised_contrast(vectors, of_image, temperature)
