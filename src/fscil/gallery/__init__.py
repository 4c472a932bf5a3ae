"""Enrolled classes: their photos, decision rules over them, balanced selection. No training, no file access."""

from fscil.gallery.gallery import Gallery
from fscil.gallery.leave_one_out import leave_one_class_out, leave_one_photo_out
from fscil.gallery.means import balanced_indices, balanced_means, class_means, cosine_scores
from fscil.gallery.photo import ClassInfo, Origin, Photo, class_name, new_class_name
from fscil.gallery.replay import apply_record
from fscil.gallery.rules import (
    COSINE,
    CosineRule,
    DecisionRule,
    TwoCovarianceRule,
    rule_from_state,
    unknown_scores_of,
)
from fscil.gallery.two_covariance import TwoCovariance

__all__ = [
    "COSINE",
    "ClassInfo",
    "CosineRule",
    "DecisionRule",
    "Gallery",
    "Origin",
    "Photo",
    "TwoCovariance",
    "TwoCovarianceRule",
    "apply_record",
    "balanced_indices",
    "balanced_means",
    "class_means",
    "class_name",
    "cosine_scores",
    "leave_one_class_out",
    "leave_one_photo_out",
    "new_class_name",
    "rule_from_state",
    "unknown_scores_of",
]
