"""What is worth a warning when photos are enrolled: a class too like another, a photo unlike the rest of its class or
nearly the same as one of them.

The limits were chosen on CUB-200's base classes, in galleries of 6 to 80 of them: of new species about one in ten is
taken for one that is enrolled; of further photos of an enrolled one, given as new, most are where they are several, and
fewer than half where it is one; of a class's own photos up to 2% are called unlike. Two photos are nearly the same if
few of 256 comparisons of neighbouring areas of their thumbnails differ: of 600 photos of 15 species no two differ in
less than 19%; the same photo, saved again as JPEG of quality 40, made smaller or brighter, differs in 3 to 4% (median)
from itself, with a twentieth cut off on each side in 25%.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fscil.classifier.decision import Decision
from fscil.data.images import decoded_image
from fscil.errors import BadImageError, FscilWarning
from fscil.gallery import Gallery, Photo, leave_one_photo_out
from fscil.gallery.photo import class_name
from fscil.gallery.probability import ProbabilityCalibration

LIKE_ODDS = 0.0  # log-odds of "known", at an even prior, from which photos of a new class may fit an enrolled one
LIKE_ODDS_OF_ONE = 1.0  # of a single photo, which has no others to be compared with
UNLIKE = 8.0  # by how many times the temperature a photo fits its class worse than the class's photos usually do
MIN_PHOTOS = 4  # of a class, of which one can be called unlike the others
NEARLY_THE_SAME = 0.12  # share of the comparisons that differ
NEARLY_THE_SAME_TINY = 0.02  # the same of pictures of few pixels, of which those of one class look much alike
SMALLEST_PHOTO = 64  # pixels of the longer side of a thumbnail; below it is tiny


@dataclass(frozen=True)
class Doubt:
    """One thing that is doubtful about photos to be enrolled; as text, a message.

    Attributes
    ----------
    kind : str
        "too_like": the new class can hardly be told from `other`. "unlike": the photo looks like none of the other
        photos of the class. "duplicate": the photo is nearly the same as the photo `other`.
    message : str
        For the user.
    photo : str or None
        Digest of the photo it is about; None where it is about all of them.
    other : str or None
        The class, or the digest of the photo, that it is too like.
    """

    kind: Literal["too_like", "unlike", "duplicate"]
    message: str
    photo: str | None = None
    other: str | None = None

    def __str__(self) -> str:
        return self.message


def doubts(gallery: Gallery, decision: Decision, name: str, photos: Sequence[Photo]) -> list[Doubt]:
    """About photos that are to be enrolled under a name; under the cosine rule about duplicates alone.

    A new class can hardly be distinguished from an enrolled one if its photos are rather known than not, and the median
    ratio of its photos to that class is larger than to their own, each photo being left out of its own. A photo is
    unlike the others if its ratio to them is far below the median.
    """
    calibration = decision.probability
    name = class_name(name)
    known = gallery.photos(name) if name in gallery else ()
    old = {photo.digest for photo in known}
    new = list({photo.digest: photo for photo in photos if photo.digest not in old}.values())
    if not new:
        return []
    every = [*known, *new]
    found = _duplicates(every, len(known))
    if calibration is None:
        return found
    if not known and len(gallery):
        found += _too_like(gallery, calibration, name, new)
    if len(every) >= MIN_PHOTOS:
        ratios = leave_one_photo_out(_features(every), gallery.rule)
        unlike = ratios < ratios.median() - UNLIKE * calibration.temperature
        pairs = zip(new, unlike[len(known) :].tolist(), strict=True)
        found += [
            Doubt("unlike", f'{photo.source}: looks like none of the other photos of "{name}".', photo.digest)
            for photo, far in pairs
            if far
        ]
    return found


def _duplicates(photos: Sequence[Photo], known: int) -> list[Doubt]:
    """Photos after the first `known` ones that are nearly the same as one before them."""
    prints = [(photo, *made) for photo in photos if (made := _fingerprint(photo.thumbnail))]
    if len(prints) < 2:
        return []
    matrix = np.stack([bits for _, bits, _ in prints])
    new = {photo.digest for photo in photos[known:]}
    found = []
    for row in range(1, len(prints)):
        photo, _, limit = prints[row]
        if photo.digest not in new:
            continue
        differing = (matrix[:row] != matrix[row]).mean(1)
        nearest = int(differing.argmin())
        if differing[nearest] < limit:
            other = prints[nearest][0]
            message = f"{photo.source}: is nearly the same photo as {other.source}, and teaches little more."
            found.append(Doubt("duplicate", message, photo.digest, other.digest))
    return found


def _fingerprint(thumbnail: bytes) -> tuple[NDArray[np.bool_], float] | None:
    """(256,) which of two neighbouring areas of a photo is brighter (difference hash), and the share of them that may
    differ in nearly the same photo. None without a picture: thumbnails of a model may come from anybody.
    """
    try:
        image = decoded_image(BytesIO(thumbnail))
    except BadImageError:
        return None
    limit = NEARLY_THE_SAME if max(image.size) >= SMALLEST_PHOTO else NEARLY_THE_SAME_TINY
    grey = np.asarray(image.convert("L").resize((17, 16), Image.Resampling.BOX), np.int16)
    bits: NDArray[np.bool_] = (grey[:, 1:] > grey[:, :-1]).ravel()
    return bits, limit


def warn_of(found: Sequence[Doubt]) -> None:
    for doubt in found:
        warnings.warn(str(doubt), FscilWarning, stacklevel=3)


def _too_like(gallery: Gallery, calibration: ProbabilityCalibration, name: str, photos: Sequence[Photo]) -> list[Doubt]:
    """Of the class that the photos of a new class fit best."""
    features = _features(photos)
    typical = _scores_once_moved(gallery, name, photos, features).median(0).values
    best, place = typical.max(0)
    several = len(features) > 1
    evidence = gallery.rule.unknown_score(gallery.rule.default_score, typical[None], gallery.counts)
    odds = calibration.slope * float(evidence) + calibration.offset_among(len(gallery))
    if odds < (LIKE_ODDS if several else LIKE_ODDS_OF_ONE):
        return []
    if several and best < leave_one_photo_out(features, gallery.rule).median():
        return []
    other = gallery.names[int(place)]
    message = (
        f'"{name}" can hardly be distinguished from "{other}", which its photos fit as well. If they are different '
        f"things, give more photos of both."
    )
    return [Doubt("too_like", message, other=other)]


def _scores_once_moved(gallery: Gallery, name: str, photos: Sequence[Photo], features: Tensor) -> Tensor:
    """(n, classes) scores against what is left of the classes that photos move away from: they fit themselves."""
    scores = gallery.scores(features)
    for other, gone in gallery.elsewhere(name, (photo.digest for photo in photos)).items():
        left = Gallery(gallery.dim, gallery.rule)
        left.enroll(other, [photo for photo in gallery.photos(other) if photo.digest not in gone])
        scores[:, gallery.names.index(other)] = left.scores(features)[:, 0] if len(left) else -torch.inf
    return scores


def _features(photos: Sequence[Photo]) -> Tensor:
    return torch.stack([photo.feature for photo in photos])
