"""A threshold for "unknown": from photos of classes that are not enrolled, or by leaving out each class in turn."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from fscil.classifier.encoder import PhotoEncoder
from fscil.data import photos
from fscil.errors import ConfigError, DataError, FscilWarning
from fscil.gallery import Gallery
from fscil.openset import SCORES, Calibration, Evidence, leave_one_class_out, threshold_at
from fscil.runtime.progress import ProgressBar

T = TypeVar("T")

FEW_CLASSES = 20  # below which leaving one out says little
ROUNDING = 1e-5  # by which the score of a photo may differ when it is computed again in other company


def labelled_features(encoder: PhotoEncoder, folder: Path, quiet: bool) -> tuple[Tensor, list[str | None]]:
    """(n, d) features of a folder's photos, and the class folder each is in, if any; bad ones are spoken of."""
    found = photos.labelled(folder, "test")
    rows = (row for batch in encoder.batches([path for path, _ in found]) for row in batch)
    features, labels, bad = [], [], []
    for (_, label), row in zip(found, with_progress(rows, len(found), quiet), strict=True):
        if isinstance(row, DataError):
            bad.append(row)
        else:
            features.append(row)
            labels.append(label)
    if not features:
        raise DataError(f"{folder}: none of its {len(found)} photos can be read (the first: {bad[0]}).")
    if bad:
        warnings.warn(f"{len(bad)} photos cannot be read (the first: {bad[0]}).", FscilWarning, stacklevel=4)
    return torch.stack(features), labels


def calibration(
    gallery: Gallery, given: tuple[Tensor, Sequence[str | None]] | None, false_accept: float, score: str
) -> Calibration:
    """given: features and class names; names that are not enrolled, and None, are unknown."""
    if score not in SCORES:
        raise ConfigError(f'no score named "{score}". Known: {", ".join(SCORES)}.')
    if not len(gallery):
        raise DataError("no class is enrolled: there is nothing to tell from the unknown. Enroll some first.")
    if given is None:
        if len(gallery) < FEW_CLASSES:
            warnings.warn(
                f"the threshold comes from leaving out one of only {len(gallery)} classes at a time and may be far "
                f"off. Better give a folder of photos that show none of the classes.",
                FscilWarning,
                stacklevel=4,
            )
        known, unknown = leave_one_class_out(*gallery.features(), score)
    else:
        features, names = given
        scores = SCORES[score](Evidence(gallery.scores(features)))
        enrolled = torch.tensor([name is not None and name in gallery for name in names])
        if enrolled.all():
            raise DataError(
                f"all {len(names)} photos are of enrolled classes, so none can play the unknown. Add photos of others, "
                f"in folders of other names or in none."
            )
        known, unknown = scores[enrolled], scores[~enrolled]
    threshold = threshold_at(unknown, false_accept) + ROUNDING
    rejected = float((known < threshold).float().mean()) if len(known) else None
    return Calibration(score, threshold, false_accept, rejected, len(unknown), len(known))


def with_progress(items: Iterable[T], total: int, quiet: bool) -> Iterator[T]:
    """The items, with progress."""
    with ProgressBar("photos", total, quiet=quiet) as bar:
        for item in items:
            yield item
            bar.advance()
