"""Scores of a gallery's own photos, each as if its class, or the photo alone, had not been enrolled."""

import torch
from torch import Tensor

from fscil.errors import DataError
from fscil.gallery.rules import COSINE, DecisionRule
from fscil.gallery.two_covariance import class_sums
from fscil.runtime.memory import rows_per_chunk

MAX_PHOTOS = 20_000  # of a gallery that are scored: enough to set a threshold


def leave_one_class_out(
    features: Tensor, labels: Tensor, score: str, rule: DecisionRule = COSINE
) -> tuple[Tensor, Tensor]:
    """Known and unknown scores of a gallery's own photos. features: (N, d); labels: (N,) any numbers.

    Unknown: every photo against the gallery without its class. Known: against the gallery in which its class is made of
    its other photos; a class with one photo gives none. Of a gallery with more than MAX_PHOTOS, that many, evenly
    chosen.

    score: a key of the rule's `unknown_scores`.
    """
    names, labels = torch.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise DataError(
            f"leaving one class out needs at least two classes, not {len(names)}. Enroll more, or calibrate with "
            f"images that show none of the classes."
        )
    counts = torch.bincount(labels)
    embedded = rule.embed(features).double()
    sums = class_sums(embedded, labels, len(names))
    prototypes = rule.rows(sums, counts)
    chosen = torch.arange(len(features))
    if len(features) > MAX_PHOTOS:
        chosen = torch.linspace(0, len(features) - 1, MAX_PHOTOS, dtype=torch.float64).long()
    known, unknown = [], []
    for rows in torch.split(chosen, rows_per_chunk(len(names))):
        own, each = labels[rows], torch.arange(len(rows))
        scores, photos = rule.scores(features[rows], prototypes, counts), counts.repeat(len(rows), 1)
        scores[each, own], photos[each, own] = scores[:, -1], photos[:, -1]  # the last class in the place of its own
        unknown.append(rule.unknown_score(score, scores[:, :-1], photos[:, :-1]))
        scores[:, -1] = _without_itself(rule, features[rows], sums[own] - embedded[rows], counts[own] - 1)
        photos[:, -1] = counts[own] - 1
        several = counts[own] > 1
        known.append(rule.unknown_score(score, scores[several], photos[several]))
    return torch.cat(known), torch.cat(unknown)


def leave_one_photo_out(features: Tensor, rule: DecisionRule) -> Tensor:
    """(n, d) features of one class, n >= 2 -> (n,) the score of each against the class made of the others."""
    embedded = rule.embed(features).double()
    others = torch.full((len(features),), len(features) - 1)
    return _without_itself(rule, features, embedded.sum(0) - embedded, others)


def _without_itself(rule: DecisionRule, features: Tensor, totals: Tensor, counts: Tensor) -> Tensor:
    """(n,) scores against classes of (n, q) sums and (n,) counts; without meaning where a count is 0."""
    counts = counts.clamp_min(1)
    return rule.own_scores(features, rule.rows(totals, counts), counts)
