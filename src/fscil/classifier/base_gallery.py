"""The gallery of base classes: every photo of a data set through the encoder, the most typical ones of each class."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fscil.classifier.encoder import PhotoEncoder, with_progress
from fscil.data import photos
from fscil.data.images import Dataset, FilePixels, Images
from fscil.data.photos import Source
from fscil.errors import DataError
from fscil.gallery import Gallery, Photo, balanced_indices


def base_gallery(
    encoder: PhotoEncoder,
    images: Images,
    names: Sequence[str],
    original: Dataset,
    shots: int,
    min_photos: int,
    quiet: bool,
) -> Gallery:
    """A class with at least min_photos is the mean of the `shots` nearest to its mean, any other that of all it has.

    images: labelled 0, 1, … as `names` are; original: the data set they were decoded and resized from.
    """
    found: list[Photo] = []
    sources = _sources(images, original)
    for position, photo in enumerate(with_progress(encoder.photos(sources), len(sources), quiet)):
        if isinstance(photo, DataError):
            raise photo
        found.append(replace(photo, source=photos.name_of(images.name(position))))
    gallery = Gallery(encoder.dim)
    for label, name in enumerate(names):
        own = [found[position] for position in np.flatnonzero(images.labels == label)]
        if len(own) >= min_photos:
            features = torch.stack([photo.feature for photo in own])
            nearest = balanced_indices(features, min(shots, len(own))).tolist()
            gallery.enroll(name, [own[index] for index in nearest], "base")
        else:
            gallery.enroll(name, own, "enrolled")
    return gallery


def _sources(images: Images, original: Dataset) -> list[Source]:
    """The files the images came from, because a digest is of the picture at full size; where there are none, arrays."""
    pixels = original.train.pixels
    if isinstance(pixels, FilePixels):
        return [pixels.root / images.name(position) for position in range(len(images))]
    return [np.asarray(images.pixels.read(images.rows[[position]])[0]) for position in range(len(images))]
