"""From features to predictions: the nearest classes, and whether a photo is believed to show one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fscil.classifier.decision import Decision, State
from fscil.errors import ConfigError, DataError
from fscil.gallery import DecisionRule, Gallery
from fscil.runtime.memory import rows_per_chunk


@dataclass(frozen=True)
class Prediction:
    """What a photo shows.

    Scores are log-likelihood ratios: of "one more photo of this class" against "a photo of a class never seen". Under
    the cosine rule they are cosines to the class means, and there are no probabilities.

    Attributes
    ----------
    label : str or None
        The nearest class; None where the photo is called unknown.
    score : float
        Of the nearest class.
    runner_up : str or None
        The second nearest class; None where there is no second one.
    margin : float
        By which the nearest class leads the runner-up; with a single class, its score.
    ranking : tuple of (str, float)
        The nearest classes and their scores, nearest first, as many as were asked for.
    probability : float or None
        Of the nearest class, also where the photo is called unknown.
    unknown_probability : float or None
        That the photo shows none of the classes. With the probabilities of all classes it sums to 1.
    probabilities : tuple of float
        Of the classes of the ranking.
    state : str
        "known"; "maybe", where the probability of the nearest class is below the model's threshold for known: it looks
        like this class, and the label still names it; or "unknown", where the label is None.

    Examples
    --------
    >>> found = Classifier.load("birds.fscil").predict("garden.jpg", top=2)[0]
    >>> found.label, found.runner_up
    ('robin', 'wren')
    >>> found.score == found.ranking[0][1]
    True
    >>> found.margin == found.ranking[0][1] - found.ranking[1][1]
    True
    >>> found.probability == found.probabilities[0]
    True
    >>> found.unknown_probability < 0.5
    True
    >>> found.state
    'known'
    """

    label: str | None
    score: float
    runner_up: str | None
    margin: float
    ranking: tuple[tuple[str, float], ...] = ()
    probability: float | None = None
    unknown_probability: float | None = None
    probabilities: tuple[float, ...] = ()
    state: State = "unknown"


def predictions(gallery: Gallery, decision: Decision, features: Tensor, top: int) -> list[Prediction]:
    """(n, d) raw features -> one prediction each, with the `top` nearest classes in its ranking.

    Where a photo is nearer to a negative example of a class than to the class, it is answered as if this class were not
    enrolled.
    """
    if top < 1:
        raise ConfigError(f"top = {top}: must be at least 1.")
    if not features.isfinite().all():
        raise DataError("a feature is not finite, so nothing can be said about its photo.")
    found: list[Prediction] = []
    candidates = gallery.candidates(features, max(top, 2))
    if candidates is not None:
        for feature, rows in zip(torch.split(features, 1), candidates, strict=True):
            found += _compared(gallery, decision, feature, [gallery.names[row] for row in rows.tolist()], rows, top)
        return found
    for part in torch.split(features, rows_per_chunk(max(1, len(gallery)))):
        found += _compared(gallery, decision, part, gallery.names, None, top)
    return found


def _compared(
    gallery: Gallery, decision: Decision, features: Tensor, names: Sequence[str], rows: Tensor | None, top: int
) -> Iterator[Prediction]:
    """One prediction each from the classes with these names; rows: theirs, None for all."""
    scores, counts = gallery.scores(features, rows), gallery.counts if rows is None else gallery.counts[rows]
    refused = gallery.refused(features, scores, rows)
    if refused is None:
        yield from _answers(gallery.rule, decision, names, scores, counts, len(gallery), top)
        return
    for row, out in zip(scores, refused, strict=True):  # each has classes of its own to choose from
        left = [name for name, gone in zip(names, out.tolist(), strict=True) if not gone]
        among = len(gallery) - int(out.sum())
        yield from _answers(gallery.rule, decision, left, row[None, ~out], counts[~out], among, top)


def _answers(
    rule: DecisionRule, decision: Decision, names: Sequence[str], scores: Tensor, counts: Tensor, among: int, top: int
) -> Iterator[Prediction]:
    """(n, C) scores of the classes with these names and (C,) photos -> one prediction each.

    among: of how many classes these are the candidates; the odds of "known" fall with that number.
    """
    if not names:
        unknown = None if decision.probability is None else 1.0
        yield from [Prediction(None, 0.0, None, 0.0, unknown_probability=unknown)] * len(scores)
        return
    nearest = scores.topk(min(max(top, 2), len(names)), dim=1)
    evidence = decision.evidence(rule, scores, counts)
    known = (evidence >= decision.smallest_accepted(among)).tolist()
    likely, unknown_probabilities = _probabilities(decision, scores, nearest.values, evidence, among)
    answers = zip(known, nearest.values.tolist(), nearest.indices.tolist(), strict=True)
    for row, (accepted, values, classes) in enumerate(answers):
        chosen = [names[each] for each in classes]
        state = decision.state(accepted, likely[row][0] if likely[row] else None)
        yield _prediction(state, values, chosen, top, likely[row], unknown_probabilities[row])


def _probabilities(
    decision: Decision, scores: Tensor, nearest: Tensor, evidence: Tensor, among: int
) -> tuple[Sequence[Sequence[float]], Sequence[float | None]]:
    """Per photo those of its nearest classes, and of unknown; none without a calibration of probabilities."""
    if decision.probability is None:
        return [()] * len(scores), [None] * len(scores)
    classes, unknown = decision.probability.of_nearest(scores, nearest, evidence, decision.unknown_prior, among)
    return classes.tolist(), unknown.tolist()


def _prediction(
    state: State,
    scores: Sequence[float],
    names: Sequence[str],
    top: int,
    probabilities: Sequence[float],
    unknown_probability: float | None,
) -> Prediction:
    """scores, names, probabilities: of the nearest classes, nearest first; one of a single class, or at least two."""
    runner_up, margin = (names[1], scores[0] - scores[1]) if len(names) > 1 else (None, scores[0])
    ranking = tuple(zip(names, scores, strict=True))[:top]
    return Prediction(
        label=None if state == "unknown" else names[0],
        score=scores[0],
        runner_up=runner_up,
        margin=margin,
        ranking=ranking,
        probability=probabilities[0] if probabilities else None,
        unknown_probability=unknown_probability,
        probabilities=tuple(probabilities[:top]),
        state=state,
    )
