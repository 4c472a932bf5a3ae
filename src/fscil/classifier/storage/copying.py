"""A model from one storage to another."""

import os
from contextlib import closing
from typing import NamedTuple

from fscil.classifier.storage.contents import gallery_of
from fscil.classifier.storage.opening import storage_at
from fscil.errors import StoreError
from fscil.runtime.progress import ProgressBar
from fscil.runtime.text import count


class Copied(NamedTuple):
    place: str  # for messages
    classes: int
    photos: int


def copy_model(
    source: str | os.PathLike[str], target: str | os.PathLike[str], force: bool = False, quiet: bool = True
) -> Copied:
    """Network, classes, photos, thresholds and decision rule. force: replace the model that is there."""
    with closing(storage_at(source)) as old, closing(storage_at(target)) as new:
        if old.identity == new.identity:
            raise StoreError(f"{new.place}: this is the model itself. Choose another place to copy it to.")
        if not force and new.exists():
            raise StoreError(f"{new.place} already holds a model. Choose another place, or replace it with --force.")
        with ProgressBar("copy", 2, quiet=quiet) as bar:
            bar.advance(0, f"reading {old.place}")
            contents = old.read()
            gallery = gallery_of(contents)
            bar.advance(1, f"writing {count(int(gallery.counts.sum()), 'photo')}")
            new.create(contents.weights, contents.about, gallery.snapshot(), decision=contents.decision)
            bar.advance()
        return Copied(new.place, len(gallery), int(gallery.counts.sum()))
