"""How long fit takes on this machine, by doing a small part of it before."""

import time
from collections.abc import Sequence
from dataclasses import asdict

import torch

from fscil.classifier.encoder import PhotoEncoder
from fscil.classifier.estimating import MAX_PHOTOS
from fscil.classifier.fit_check import FOLDS, GROUPS
from fscil.data.photos import Source
from fscil.gallery import TwoCovariance
from fscil.gallery.choosing import ENOUGH_TO_SEARCH, MAX_LEFT_OUT, start

WARM_UP, SHARE, MOST = 4, 0.05, 32  # photos: encoded before the clock starts; share of all that is timed; at most
SEARCH = 1.5  # trials of constants, in units of one estimate of the covariances
SEARCH_FOLDS = 4


def encoding_seconds(encoder: PhotoEncoder, sources: Sequence[Source]) -> float:
    """All photos, decoded and through the network. Some are timed, evenly chosen: classes may differ in size."""
    count = min(MOST, max(WARM_UP, round(SHARE * len(sources))), len(sources))
    sample = [sources[place * len(sources) // count] for place in range(count)]
    for _ in encoder.photos(sample[:WARM_UP]):  # the first ones start the engine
        pass
    began = time.perf_counter()
    for _ in encoder.photos(sample):
        pass
    return (time.perf_counter() - began) / count * len(sources)


def deciding_seconds(photos: int, classes: int, dim: int, check: bool) -> float:
    """The decision rule and, with `check`, the models that have not seen some of the photos.

    Nearly all of it is estimates of the covariances, one for every part that is held out. One is timed, on numbers
    drawn at random. The cross-validation works in as many dimensions as there are photos, if that is fewer.
    """
    if classes < 2 or photos < 2 * classes:
        return 0.0
    rows = min(photos, MAX_PHOTOS)
    features = torch.rand(rows, dim, generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    TwoCovariance.fit(features, torch.arange(rows) % classes, **asdict(start(classes)))
    one = time.perf_counter() - began
    folds = classes if classes <= MAX_LEFT_OUT else SEARCH_FOLDS
    searching = SEARCH if classes >= ENOUGH_TO_SEARCH else 0.0
    choosing = 2 + searching + folds * min(1.0, photos / dim) ** 3
    return one * (choosing + (FOLDS + min(GROUPS, classes) if check else 0))
