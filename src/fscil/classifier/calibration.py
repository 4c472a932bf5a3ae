"""A threshold for "unknown": from photos of classes that are not enrolled, or by leaving out each class in turn."""

import warnings
from collections.abc import Container, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from fscil.classifier.encoder import PhotoEncoder, with_progress
from fscil.classifier.estimating import Estimated
from fscil.classifier.held_out import held_out_ratios, left_out_evidence
from fscil.data import photos
from fscil.errors import ConfigError, DataError, FscilWarning
from fscil.gallery import COSINE, DecisionRule, Gallery, Photo, leave_one_class_out
from fscil.openset import Calibration, threshold_at
from fscil.runtime.text import count, first_few

MIN_CLASSES = 20  # with fewer, leaving out one says little


FOLDS, GROUPS = 20, 10  # of photos and of classes; with 5 folds, known photos seemed to be rejected too often


def check_request(gallery: Gallery, false_accept: float, score: str | None) -> None:
    """Before any photo is read."""
    if score is not None and score not in gallery.rule.unknown_scores:
        raise ConfigError(f'no score named "{score}". This model has: {", ".join(gallery.rule.unknown_scores)}.')
    if not 0 <= false_accept < 1:
        raise ConfigError(
            f"a false-accept rate of {false_accept} is not possible: give a share from 0 to below 1, like 0.05."
        )
    if not len(gallery):
        raise DataError("no class is enrolled, so every photo is unknown. Enroll some classes first.")


def require_same_rule(made_for: DecisionRule, rule: DecisionRule) -> None:
    """A threshold is of the scores of one rule, and estimating may have replaced that while photos were read."""
    there, state = made_for.state(), rule.state()
    if made_for.name != rule.name or any(not torch.equal(there[name], state[name]) for name in there):
        raise ConfigError(
            "the decision rule has changed meanwhile, and the threshold is for scores of the old one. Calibrate again."
        )


def labelled_photos(
    encoder: PhotoEncoder, folder: Path, enrolled: Container[str], quiet: bool
) -> list[tuple[Photo, str | None]]:
    """A folder's photos and the class folder each is in, if any; warns of unreadable photos.

    enrolled: class names; that some photos are of none of them is known before any is read.
    """
    found = photos.labelled(folder, "test")
    _require_unknown([label for _, label in found], enrolled)
    made = with_progress(encoder.photos([path for path, _ in found]), len(found), quiet)
    good: list[tuple[Photo, str | None]] = []
    bad: list[DataError] = []
    for (_, label), photo in zip(found, made, strict=True):
        if isinstance(photo, DataError):
            bad.append(photo)
        else:
            good.append((photo, label))
    if not good:
        raise DataError(f"{folder}: none of its {len(found)} photos can be read (the first: {bad[0]}).")
    if bad:
        warnings.warn(f"{len(bad)} photos cannot be read (the first: {bad[0]}).", FscilWarning, stacklevel=4)
    return good


def calibrate_gallery(
    gallery: Gallery,
    labelled: Sequence[tuple[Photo, str | None]] | None,
    false_accept: float,
    score: str | None,
    estimated: Estimated | None,
    quiet: bool,
) -> Calibration:
    """labelled: photos and class names; unknown are those of classes that are not enrolled, or of no class (None).

    score: of the gallery's rule; by default the rule's own. estimated: where the two-covariance model decides, its
    constants and classes.
    """
    rule = gallery.rule
    score = score or rule.default_score
    if labelled is None:
        known, unknown = _left_out_scores(gallery, score, estimated, quiet)
    else:
        known, unknown = _labelled_scores(gallery, labelled, score)
        if not len(known):
            known = _held_out_scores(gallery, score, estimated, quiet)
    threshold = threshold_at(unknown, false_accept) + rule.rounding
    rejected = float((known < threshold).float().mean()) if len(known) else None
    return Calibration(score, threshold, false_accept, rejected, len(unknown), len(known))


def _left_out_scores(gallery: Gallery, score: str, estimated: Estimated | None, quiet: bool) -> tuple[Tensor, Tensor]:
    """Scores of known and of unknown photos, each class being left out in turn."""
    if len(gallery) < MIN_CLASSES:
        warnings.warn(
            f"the threshold comes from leaving out one of only {len(gallery)} classes at a time and may be far off. "
            f"Better give a folder of photos that show none of the classes.",
            FscilWarning,
            stacklevel=5,
        )
    if estimated and gallery.rule.name != COSINE.name:
        unknown = left_out_evidence(*gallery.features(), asdict(estimated.constants), GROUPS, quiet, estimated.classes)
        if unknown is not None:
            return _held_out_scores(gallery, score, estimated, quiet), unknown
    return leave_one_class_out(*gallery.features(), score, gallery.rule)


def _held_out_scores(gallery: Gallery, score: str, estimated: Estimated | None, quiet: bool) -> Tensor:
    """Of the gallery's own photos, each held out once; none where there are too few."""
    features, labels = gallery.features()
    if gallery.rule.name == COSINE.name:
        return leave_one_class_out(features, labels, score, gallery.rule)[0] if len(gallery) > 1 else torch.empty(0)
    if estimated is None:
        return torch.empty(0)
    found = held_out_ratios(features, labels, asdict(estimated.constants), FOLDS, quiet, estimated.classes)
    return torch.empty(0) if found is None else found.evidence


def _require_unknown(labels: Sequence[str | None], enrolled: Container[str]) -> None:
    if labels and all(name is not None and name in enrolled for name in labels):
        raise DataError(
            f"all {len(labels)} photos are of enrolled classes, so none is unknown. Add photos of other things, in "
            f"folders of other names or in none."
        )


def _labelled_scores(
    gallery: Gallery, labelled: Sequence[tuple[Photo, str | None]], score: str
) -> tuple[Tensor, Tensor]:
    """Scores of the photos of enrolled classes and of the others."""
    features = torch.stack([photo.feature for photo, _ in labelled])
    scores = gallery.rule.unknown_score(score, gallery.scores(features), gallery.counts)
    _require_unknown([name for _, name in labelled], gallery)
    enrolled = torch.tensor([name is not None and name in gallery for _, name in labelled])
    own = {photo.digest for name in gallery.names for photo in gallery.photos(name)}
    learned = torch.tensor([photo.digest in own for photo, _ in labelled])
    if (learned & ~enrolled).any():
        sources = [labelled[place][0].source for place in (learned & ~enrolled).nonzero()[:, 0].tolist()]
        raise DataError(
            f"{count(len(sources), 'photo')} that the model has learned cannot be unknown: {first_few(sources)}. Take "
            f"them out of the folder, or put them into folders named like their classes."
        )
    if learned.any():
        warnings.warn(
            f"{count(int(learned.sum()), 'photo')} that the model has learned say nothing of new ones: left out.",
            FscilWarning,
            stacklevel=5,
        )
    return scores[enrolled & ~learned], scores[~enrolled]
