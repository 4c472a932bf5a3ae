"""Log-likelihood ratios of a gallery's own photos by models that have not seen them: what new photos will get.

A photo leaves its mark not only on the mean of its class but also on the covariances, so these are estimated again for
every fold. The fewer photos a fold holds out, the nearer its model is to the one of all photos. Classes that were
enrolled after the covariances had been estimated are no part of them, here either.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fscil.classifier.estimating import some_of_each, why_not
from fscil.gallery import TwoCovariance, TwoCovarianceRule
from fscil.gallery.two_covariance import class_sums
from fscil.runtime.progress import ProgressBar

MAX_PHOTOS = 20_000


class HeldOut(NamedTuple):
    """ratios: (n, C) of the photos against classes made of the others; labels: (n,) columns of their own classes."""

    ratios: Tensor
    labels: Tensor


def held_out_ratios(
    features: Tensor,
    labels: Tensor,
    constants: Mapping[str, Any],
    folds: int,
    quiet: bool,
    estimated: int | None = None,
) -> HeldOut | None:
    """(N, d) raw features and (N,) classes 0..C-1. Photos of a class with one photo are never held out.

    estimated: so many classes, the first ones, are those of the covariances; by default all. None if there are too few
    photos to hold some out.
    """
    rows = _some(labels)
    features, labels = features[rows], labels[rows]
    classes = int(labels.max()) + 1
    fold = _folds(labels, classes, folds)
    ratios = torch.full((len(labels), classes), -torch.inf)
    with ProgressBar("held-out photos", folds, quiet=quiet) as bar:
        for number in range(folds):
            held = fold == number
            if held.any():
                found = _ratios(features[~held], labels[~held], features[held], classes, constants, estimated)
                if found is None:
                    return None
                ratios[held] = found
            bar.advance()
    asked = fold >= 0
    return HeldOut(ratios[asked], labels[asked]) if asked.any() else None


def left_out_ratios(
    features: Tensor,
    labels: Tensor,
    constants: Mapping[str, Any],
    groups: int,
    quiet: bool,
    estimated: int | None = None,
) -> Tensor | None:
    """(n,) the largest ratio of every photo by models of the other classes: what photos of unknown classes get.

    estimated: as for `held_out_ratios`. None if there are too few classes.
    """
    rows = _some(labels)
    features, labels = features[rows], labels[rows]
    classes = int(labels.max()) + 1
    largest = torch.empty(len(labels))
    groups = min(groups, classes)
    with ProgressBar("classes left out", groups, quiet=quiet) as bar:
        for number in range(groups):
            out = labels % groups == number
            if not out.any():
                continue
            found = _ratios(features[~out], labels[~out], features[out], classes, constants, estimated)
            if found is None:
                return None
            largest[out] = found.amax(1)
            bar.advance()
    return largest


def _some(labels: Tensor) -> Tensor:
    if len(labels) <= MAX_PHOTOS:
        return torch.arange(len(labels))
    names = torch.unique(labels)
    return some_of_each(labels, names.tolist(), max(2, MAX_PHOTOS // len(names)))


def _folds(labels: Tensor, classes: int, folds: int) -> Tensor:
    """(n,) the fold that holds a photo out; -1 where none does. The same at every call."""
    generator = torch.Generator().manual_seed(0)
    found, given = torch.full((len(labels),), -1), 0
    for label in range(classes):
        own = (labels == label).nonzero()[:, 0]
        if len(own) > 1:  # each class goes on where the last one ended, so that small ones share the folds
            order = own[torch.randperm(len(own), generator=generator)]
            found[order] = (given + torch.arange(len(own))) % folds
            given += len(own)
    return found


def _ratios(
    known: Tensor, labels: Tensor, asked: Tensor, classes: int, constants: Mapping[str, Any], estimated: int | None
) -> Tensor | None:
    """(n, classes) of the asked photos; minus infinity for classes that have no photo left. None where photos are so
    few or so alike that nothing can be estimated.
    """
    own = labels < (estimated or classes)
    if why_not(labels[own]):
        return None
    try:
        rule = TwoCovarianceRule(TwoCovariance.fit(known[own], labels[own], **constants))
    except RuntimeError:  # the eigenvalues do not converge
        return None
    counts = torch.bincount(labels, minlength=classes)
    there = (counts > 0).nonzero()[:, 0]
    sums = class_sums(rule.embed(known).double(), labels, classes)[there]
    found = torch.full((len(asked), classes), -torch.inf)
    found[:, there] = rule.scores(asked, rule.rows(sums, counts[there]), counts[there])
    return found
