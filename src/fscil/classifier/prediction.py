"""From features to predictions: the nearest classes, and whether a photo is believed to show one of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fscil.errors import ConfigError
from fscil.gallery import Gallery
from fscil.openset import SCORES, Calibration, Evidence
from fscil.runtime.memory import rows_per_chunk


@dataclass(frozen=True)
class Prediction:
    """What a photo shows. Scores are cosines to the class means.

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

    Examples
    --------
    >>> found = Classifier.load("birds.fscil").predict("garden.jpg", top=2)[0]
    >>> found.label, found.runner_up
    ('robin', 'wren')
    >>> found.score == found.ranking[0][1]
    True
    >>> found.margin == found.ranking[0][1] - found.ranking[1][1]
    True
    """

    label: str | None
    score: float
    runner_up: str | None
    margin: float
    ranking: tuple[tuple[str, float], ...] = ()


def predictions(gallery: Gallery, calibration: Calibration | None, features: Tensor, top: int) -> list[Prediction]:
    """(n, d) raw features -> one prediction each, with the `top` nearest classes in its ranking."""
    if top < 1:
        raise ConfigError(f"top = {top}: must be at least 1.")
    names = gallery.names
    if not names:
        return [Prediction(None, 0.0, None, 0.0)] * len(features)
    found: list[Prediction] = []
    for part in torch.split(features, rows_per_chunk(len(names))):
        cosines = gallery.scores(part)
        nearest = cosines.topk(min(max(top, 2), len(names)), dim=1)
        rows = zip(
            accepted(cosines, calibration).tolist(), nearest.values.tolist(), nearest.indices.tolist(), strict=True
        )
        for known, scores, classes in rows:
            found.append(_prediction(known, scores, [names[each] for each in classes], top))
    return found


def accepted(cosines: Tensor, calibration: Calibration | None) -> Tensor:
    """(n, C) -> (n,) whether a photo is believed to show one of the classes; without calibration all are."""
    if calibration is None:
        return torch.ones(len(cosines), dtype=torch.bool)
    return SCORES[calibration.score](Evidence(cosines)) >= calibration.threshold


def _prediction(known: bool, scores: Sequence[float], names: Sequence[str], top: int) -> Prediction:
    """scores, names: of the nearest classes, nearest first; one if there is a single class, otherwise at least two."""
    runner_up, margin = (names[1], scores[0] - scores[1]) if len(names) > 1 else (None, scores[0])
    ranking = tuple(zip(names, scores, strict=True))[:top]
    return Prediction(names[0] if known else None, scores[0], runner_up, margin, ranking)
