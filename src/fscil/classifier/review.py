"""What to do about photos that were not known: the least certain answers first, and groups that look alike."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fscil.classifier.prediction import Prediction
from fscil.classifier.predictor import Predictor
from fscil.gallery import Photo
from fscil.gallery.similar import similar_groups


class Waiting(NamedTuple):
    """A photo that waits for a name."""

    photo: Photo
    answer: Prediction  # of the model as it is now


def certainty(answer: Prediction) -> float:
    """The probability of the answer, a class or "unknown"; without probabilities the lead over the runner-up."""
    chosen = answer.unknown_probability if answer.label is None else answer.probability
    return answer.margin if chosen is None else chosen


def review_queue(predictor: Predictor, photos: Sequence[Photo], top: int = 3) -> list[Waiting]:
    """The least certain answers first; among equals the order of the photos."""
    if not photos:
        return []
    answers = predictor.predict_features(torch.stack([photo.feature for photo in photos]), top)
    waiting = [Waiting(photo, answer) for photo, answer in zip(photos, answers, strict=True)]
    return sorted(waiting, key=lambda each: certainty(each.answer))


def review_groups(predictor: Predictor, photos: Sequence[Photo]) -> list[list[Photo]]:
    """Two or more that look alike under the decision rule of the model, largest groups first."""
    if len(photos) < 2:
        return []
    rows = similar_groups(torch.stack([photo.feature for photo in photos]), predictor.gallery.rule)
    return [[photos[row] for row in group] for group in rows]
