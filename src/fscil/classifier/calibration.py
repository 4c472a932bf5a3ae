"""A threshold for "unknown": from photos of classes that are not enrolled, or by leaving out each class in turn."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fscil.classifier.encoder import PhotoEncoder, with_progress
from fscil.data import photos
from fscil.errors import ConfigError, DataError, FscilWarning
from fscil.gallery import Gallery, leave_one_class_out
from fscil.openset import Calibration, Evidence, threshold_at

MIN_CLASSES = 20  # with fewer, leaving out one says little


def labelled_features(encoder: PhotoEncoder, folder: Path, quiet: bool) -> tuple[Tensor, list[str | None]]:
    """(n, d) features of a folder's photos and the class folder each is in, if any; warns of unreadable photos."""
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


def calibrate_gallery(
    gallery: Gallery, labelled: tuple[Tensor, Sequence[str | None]] | None, false_accept: float, score: str | None
) -> Calibration:
    """labelled: features and class names; unknown are those of classes that are not enrolled, or of no class (None).

    score: of the gallery's rule; by default the rule's own.
    """
    rule = gallery.rule
    score = score or rule.default_score
    if score not in rule.unknown_scores:
        raise ConfigError(f'no score named "{score}". This model has: {", ".join(rule.unknown_scores)}.')
    if not len(gallery):
        raise DataError("no class is enrolled, so every photo is unknown. Enroll some classes first.")
    known, unknown = (
        _left_out_scores(gallery, score) if labelled is None else _labelled_scores(gallery, *labelled, score)
    )
    threshold = threshold_at(unknown, false_accept) + rule.rounding
    rejected = float((known < threshold).float().mean()) if len(known) else None
    return Calibration(score, threshold, false_accept, rejected, len(unknown), len(known))


def _left_out_scores(gallery: Gallery, score: str) -> tuple[Tensor, Tensor]:
    """Scores of known and of unknown photos, each class being left out in turn."""
    if len(gallery) < MIN_CLASSES:
        warnings.warn(
            f"the threshold comes from leaving out one of only {len(gallery)} classes at a time and may be far off. "
            f"Better give a folder of photos that show none of the classes.",
            FscilWarning,
            stacklevel=5,
        )
    return leave_one_class_out(*gallery.features(), score, gallery.rule)


def _labelled_scores(
    gallery: Gallery, features: Tensor, names: Sequence[str | None], score: str
) -> tuple[Tensor, Tensor]:
    """Scores of the photos of enrolled classes and of the others."""
    scores = gallery.rule.unknown_scores[score](Evidence(gallery.scores(features)))
    enrolled = torch.tensor([name is not None and name in gallery for name in names])
    if enrolled.all():
        raise DataError(
            f"all {len(names)} photos are of enrolled classes, so none is unknown. Add photos of other things, in "
            f"folders of other names or in none."
        )
    return scores[enrolled], scores[~enrolled]
