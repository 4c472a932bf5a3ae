"""Prototypes: balanced selection, enrollment, nearest mean by cosine. No training code, no file access."""

from fscil.gallery.gallery import Gallery
from fscil.gallery.means import balanced_indices, balanced_means, class_means, cosine_scores
from fscil.gallery.photo import ClassInfo, Origin, Photo, class_name

__all__ = [
    "ClassInfo",
    "Gallery",
    "Origin",
    "Photo",
    "balanced_indices",
    "balanced_means",
    "class_means",
    "class_name",
    "cosine_scores",
]
