"""What is worth a warning when photos are enrolled: a class too like another, a photo unlike the rest of its class.

The limits were chosen on CUB-200's base classes: of new species about one in ten is taken for one that is enrolled, of
further photos of an enrolled one two thirds or more; of a class's own photos up to 2% are called unlike.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from fscil.classifier.decision import Decision
from fscil.errors import FscilWarning
from fscil.gallery import Gallery, Photo, leave_one_photo_out
from fscil.gallery.photo import class_name
from fscil.gallery.probability import ProbabilityCalibration

LIKE_ODDS = 0.0  # log-odds of "known", at an even prior, from which photos of a new class may fit an enrolled one
LIKE_ODDS_OF_ONE = 2.0  # of a single photo, which has no others to be compared with
UNLIKE = 8.0  # by how many times the temperature a photo fits its class worse than the class's photos usually do
MIN_PHOTOS = 4  # of a class, of which one can be called unlike the others


def doubts(gallery: Gallery, decision: Decision, name: str, photos: Sequence[Photo]) -> list[str]:
    """Messages about photos that are to be enrolled under a name; none under the cosine rule.

    A new class can hardly be distinguished from an enrolled one if its photos are rather known than not, and the median
    ratio of its photos to that class is larger than to their own, each photo being left out of its own. A photo is
    unlike the others if its ratio to them is far below the median.
    """
    calibration = decision.probability
    name = class_name(name)
    known = gallery.photos(name) if name in gallery else ()
    old = {photo.digest for photo in known}
    new = list({photo.digest: photo for photo in photos if photo.digest not in old}.values())
    if calibration is None or not new:
        return []
    found = [] if known or not len(gallery) else _too_like(gallery, calibration, name, _features(new))
    every = [*known, *new]
    if len(every) >= MIN_PHOTOS:
        ratios = leave_one_photo_out(_features(every), gallery.rule)
        unlike = ratios < ratios.median() - UNLIKE * calibration.temperature
        pairs = zip(new, unlike[len(known) :].tolist(), strict=True)
        found += [f'{photo.source}: looks like none of the other photos of "{name}".' for photo, far in pairs if far]
    return found


def warn_of(messages: Sequence[str]) -> None:
    for message in messages:
        warnings.warn(message, FscilWarning, stacklevel=3)


def _too_like(gallery: Gallery, calibration: ProbabilityCalibration, name: str, features: Tensor) -> list[str]:
    """Of the class that the (n, d) photos of a new class fit best."""
    best, place = gallery.scores(features).median(0).values.max(0)
    several = len(features) > 1
    odds = calibration.slope * float(best) + calibration.offset
    if odds < (LIKE_ODDS if several else LIKE_ODDS_OF_ONE):
        return []
    if several and best < leave_one_photo_out(features, gallery.rule).median():
        return []
    return [
        f'"{name}" can hardly be distinguished from "{gallery.names[int(place)]}", which its photos fit as well. If '
        f"they are different things, give more photos of both."
    ]


def _features(photos: Sequence[Photo]) -> Tensor:
    return torch.stack([photo.feature for photo in photos])
