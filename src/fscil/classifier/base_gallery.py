"""Galleries of a data set's classes: every image through the encoder once."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fscil.classifier.encoder import PhotoEncoder, with_progress
from fscil.data import photos
from fscil.data.images import Dataset, FilePixels, Images
from fscil.data.photos import Source
from fscil.errors import DataError, FscilWarning
from fscil.gallery import COSINE, DecisionRule, Gallery, Photo, balanced_indices
from fscil.runtime.text import first_few


def encode_images(encoder: PhotoEncoder, images: Images, original: Dataset, quiet: bool) -> list[Photo | None]:
    """What a gallery keeps of each image; None, and an FscilWarning, where one cannot be read.

    original: the data set that the images were decoded and resized from, or are a part of.
    """
    found: list[Photo | None] = []
    bad: list[tuple[str, DataError]] = []
    sources = sources_of(images, original)
    for position, photo in enumerate(with_progress(encoder.photos(sources), len(sources), quiet)):
        name = photos.name_of(images.name(position))
        if isinstance(photo, DataError):
            bad.append((name, photo))
            found.append(None)
        else:
            found.append(replace(photo, source=name))
    if bad and len(bad) == len(found):
        raise DataError(f"none of the {len(found)} photos can be read (the first: {bad[0][1]}).")
    if bad:
        names = first_few([name for name, _ in bad])
        warnings.warn(
            f"{len(bad)} of {len(found)} photos cannot be read and are left out: {names}.", FscilWarning, stacklevel=4
        )
    return found


def gallery_of_all(
    found: Sequence[Photo | None], labels: Sequence[int], names: Sequence[str], rule: DecisionRule = COSINE
) -> Gallery:
    """Each class with all its photos. labels: of the photos, 0, 1, … as `names` are."""
    dim = next(len(photo.feature) for photo in found if photo)
    gallery = Gallery(dim, rule)
    for label, name in enumerate(names):
        gallery.enroll(
            name, [photo for photo, its in zip(found, labels, strict=True) if photo and its == label], "base"
        )
    return gallery


def gallery_of_nearest(
    found: Sequence[Photo | None], labels: Sequence[int], names: Sequence[str], shots: int
) -> Gallery:
    """As the paper has it: each class with the `shots` photos that are nearest to the mean of all."""
    every = gallery_of_all(found, labels, names)
    gallery = Gallery(every.dim)
    for name in every.names:
        own = every.photos(name)
        features = torch.stack([photo.feature for photo in own])
        nearest = balanced_indices(features, min(shots, len(own))).tolist()
        gallery.enroll(name, [own[index] for index in nearest], "base")
    return gallery


def sources_of(images: Images, original: Dataset) -> list[Source]:
    """The files the images came from, because a digest is of the picture at full size; where there are none, arrays."""
    pixels = original.train.pixels
    if isinstance(pixels, FilePixels):
        return [pixels.root / images.name(position) for position in range(len(images))]
    return [np.asarray(images.pixels.read(images.rows[[position]])[0]) for position in range(len(images))]
