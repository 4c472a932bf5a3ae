"""The gallery that a storage holds."""

from fscil.classifier.model_folder import Contents
from fscil.gallery import COSINE, DecisionRule, Gallery, apply_record


def gallery_of(contents: Contents, rule: DecisionRule = COSINE) -> Gallery:
    """The snapshot and what was enrolled since. To write it again, it does not matter under which rule."""
    gallery = Gallery.from_snapshot(contents.snapshot, rule)
    for record in contents.records:
        apply_record(gallery, record)
    return gallery
