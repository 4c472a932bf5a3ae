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
    """Photos against classes made of the others."""

    ratios: Tensor  # (n, C)
    evidence: Tensor  # (n,) that the photo is of a known class
    labels: Tensor  # (n,) columns of their own classes


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
    ratios, evidence = torch.full((len(labels), classes), -torch.inf), torch.empty(len(labels))
    fit = _Fit(classes, constants, estimated)
    with ProgressBar("held-out photos", folds, quiet=quiet) as bar:
        for number in range(folds):
            held = fold == number
            if held.any():
                found = fit.answers(features[~held], labels[~held], features[held])
                if found is None:
                    return None
                ratios[held], evidence[held] = found
            bar.advance()
    asked = fold >= 0
    return HeldOut(ratios[asked], evidence[asked], labels[asked]) if asked.any() else None


def left_out_evidence(
    features: Tensor,
    labels: Tensor,
    constants: Mapping[str, Any],
    groups: int,
    quiet: bool,
    estimated: int | None = None,
) -> Tensor | None:
    """(n,) evidence of "known" for every photo by models of the other classes: what photos of unknown classes get.

    estimated: as for `held_out_ratios`. None if there are too few classes.
    """
    rows = _some(labels)
    features, labels = features[rows], labels[rows]
    classes = int(labels.max()) + 1
    evidence, fit = torch.empty(len(labels)), _Fit(classes, constants, estimated)
    groups = min(groups, classes)
    with ProgressBar("classes left out", groups, quiet=quiet) as bar:
        for number in range(groups):
            out = labels % groups == number
            if not out.any():
                continue
            found = fit.answers(features[~out], labels[~out], features[out])
            if found is None:
                return None
            evidence[out] = found[1]
            bar.advance()
    return evidence


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


class _Fit(NamedTuple):
    """What all folds have in common."""

    classes: int
    constants: Mapping[str, Any]
    estimated: int | None

    def answers(self, known: Tensor, labels: Tensor, asked: Tensor) -> tuple[Tensor, Tensor] | None:
        """(n, classes) ratios of the asked photos, minus infinity for classes that have no photo left, and (n,) their
        evidence of "known". None where photos are so few or so alike that nothing can be estimated.
        """
        own = labels < (self.estimated or self.classes)
        if why_not(labels[own]):
            return None
        try:
            model = TwoCovariance.fit(known[own], labels[own], **self.constants)
        except RuntimeError:  # the eigenvalues do not converge
            return None
        rule = TwoCovarianceRule(model)
        counts = torch.bincount(labels, minlength=self.classes)
        there = (counts > 0).nonzero()[:, 0]
        sums = class_sums(rule.embed(known).double(), labels, self.classes)[there]
        scores = rule.scores(asked, rule.rows(sums, counts[there]), counts[there])
        found = torch.full((len(asked), self.classes), -torch.inf)
        found[:, there] = scores
        return found, rule.unknown_score(rule.default_score, scores, counts[there])
