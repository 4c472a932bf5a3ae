"""Photos without a name that look alike, in groups: agglomerative clustering by a decision rule's own scores."""

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from fscil.gallery.rules import CosineRule, DecisionRule, TwoCovarianceRule

# From which mean score on photos are alike: where one class is likelier than two. There is no such point for cosines;
# theirs was chosen on 30 of CUB-200's base classes, where as large a share of the grouped photos is with its own kind.
THRESHOLDS = {TwoCovarianceRule.name: 0.0, CosineRule.name: 0.65}


def pair_scores(features: Tensor, rule: DecisionRule) -> Tensor:
    """(n, d) features -> (n, n) symmetric: the score of each photo against a class of which another is the only photo.

    Under the two-covariance rule the log-likelihood ratio of "two photos of one class" against "of two classes".
    """
    ones = torch.ones(len(features), dtype=torch.int64)
    scores = rule.scores(features, rule.rows(rule.embed(features).double(), ones), ones).double()
    return (scores + scores.T) / 2  # they differ by rounding alone


def similar_groups(features: Tensor, rule: DecisionRule, threshold: float | None = None) -> list[list[int]]:
    """The rows of (n, d) features in groups of two or more, largest first; within a group in order.

    Groups with the largest mean score over all pairs across them are joined first, as long as it reaches the threshold
    (average linkage); by default that of the rule.
    """
    threshold = THRESHOLDS[rule.name] if threshold is None else threshold
    if len(features) < 2:
        return []
    scores = pair_scores(features, rule).numpy()
    top = float(scores.max())
    if top < threshold:
        return []
    apart = (top - scores)[np.triu_indices(len(scores), 1)]  # distances are not negative
    numbers = fcluster(linkage(apart, "average"), top - threshold, "distance")
    groups: dict[int, list[int]] = {}
    for row, number in enumerate(numbers.tolist()):
        groups.setdefault(number, []).append(row)
    return sorted((group for group in groups.values() if len(group) > 1), key=lambda group: (-len(group), group[0]))
