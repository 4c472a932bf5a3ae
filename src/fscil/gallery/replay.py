"""The change of a gallery that a record describes, made again."""

from collections.abc import Mapping, Sequence
from typing import Any

from fscil.gallery.gallery import Gallery
from fscil.gallery.photo import Photo
from fscil.gallery.records import (
    Discarding,
    Enrollment,
    Forgetting,
    NegativeRemoval,
    NegativeReplacement,
    Rejection,
    Removal,
    Renaming,
    Replacement,
    read_record,
)


def apply_record(gallery: Gallery, record: Mapping[str, Any]) -> None:
    """Repeat the change of a record: "enroll" and "reject", of which a second time changes nothing, "forget", "rename"
    to another name, "remove" of one photo, "discard" of those of several that are there, "replace" of those that are
    not kept by others, "remove_negative", or "replace_negatives". What is to be rejected for a class that is gone, or
    that has learned it, is left out.

    Raises
    ------
    StoreError
        For any other.
    """
    match read_record(record, gallery.dim):
        case Enrollment(name, photos, origin):
            gallery.enroll(name, photos, origin)
        case Forgetting(name):
            gallery.forget(name)
        case Renaming(name, to):
            gallery.rename(name, to)
        case Removal(name, digest):
            gallery.remove_photo(name, digest)
        case Discarding(name, digests):
            gallery.discard_photos(name, digests)
        case Replacement(name, kept, photos):
            gallery.replace_photos(name, kept, photos)
        case Rejection(name, photos):
            _reject_again(gallery, name, photos)
        case NegativeRemoval(name, digest):
            gallery.remove_negative(name, digest)
        case NegativeReplacement(name, kept, photos):
            gallery.replace_negatives(name, kept, photos)


def _reject_again(gallery: Gallery, name: str, photos: Sequence[Photo]) -> None:
    """As `Gallery.reject`, of what was written when another process had just forgotten the class, or enrolled one of
    the photos in it: as if it had been said before that.
    """
    if name in gallery:
        known = {photo.digest for photo in gallery.photos(name)}
        gallery.reject(name, [photo for photo in photos if photo.digest not in known])
