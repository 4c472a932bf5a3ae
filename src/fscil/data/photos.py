"""One photo, from a file, bytes, a Pillow image or an array: upright, on white, ready for the network."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fscil.data.folder import LAYOUT, images_in, notice_nested, parts, walk
from fscil.data.images import HEIC_SUFFIXES, SUFFIXES, Bytes, Resize, decoded_image, image_errors
from fscil.data.label_list import label_list, read_label_list
from fscil.data.unread import KINDS, warn_of_unread
from fscil.data.upright import bands, upright_rgb
from fscil.errors import BadImageError, DataError

Source: TypeAlias = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any]

THUMBNAIL = 96  # pixels of the longer side


@dataclass(frozen=True, eq=False)
class LoadedPhoto:
    """A decoded photo and what is kept of it beside its feature."""

    pixels: Bytes  # (h, w, 3), resized
    digest: str  # the same for the same picture, whatever its file is called
    source: str  # where it came from, for display
    thumbnail: bytes  # a small JPEG


def load(source: Source, resize: Resize) -> LoadedPhoto:
    """Decode a photo. The digest is of the upright picture at full size: the same under any `resize`."""
    full, name = _image(source), name_of(source)
    small = resize.apply(full, name)
    digest = hashlib.sha256(f"{full.height}x{full.width};".encode())
    for _, band in bands(full):
        digest.update(np.asarray(band).data)
    return LoadedPhoto(np.asarray(small), digest.hexdigest(), name, _thumbnail(small))


def pixels(source: Source, resize: Resize) -> Bytes:
    """(h, w, 3) uint8, without digest and thumbnail: all that a prediction needs."""
    return np.asarray(resize.apply(_image(source), name_of(source)))


def _image(source: Source) -> Image.Image:
    """Decoded, upright, in three channels."""
    if isinstance(source, bytes):
        return decoded_image(BytesIO(source))
    if isinstance(source, Image.Image):
        with image_errors(name_of(source)):  # Pillow reads a file only when its pixels are wanted
            return upright_rgb(source)
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or not source.size:
            raise BadImageError(
                f"an array of {source.dtype} with shape {source.shape} is no image: expected is uint8 of "
                f"(height, width, 3), red first."
            )
        return Image.fromarray(source)
    return decoded_image(Path(source).expanduser())


def name_of(source: Source) -> str:
    """Where a photo came from, as text that can be written as UTF-8."""
    if isinstance(source, bytes):
        return "bytes"
    if isinstance(source, Image.Image):
        name = str(getattr(source, "filename", "") or "image")
    elif isinstance(source, np.ndarray):
        return "array"
    else:
        name = os.fspath(source)
    return name.encode(errors="backslashreplace").decode()  # file names need not be Unicode


def as_list(images: Source | Sequence[Source] | NDArray[Any]) -> list[Source]:
    """One image or many, as many."""
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 or images.dtype.kind in "OU" else [images]  # several, or paths
    if isinstance(images, str | os.PathLike | bytes | Image.Image):
        return [images]
    return list(images)


def files(folder: Path, warn: bool = True) -> list[Path]:
    """The images below a folder, in order of their paths; hidden ones are skipped.

    warn: of picture files that are not read.
    """
    found = sorted(here / name for here, names in walk(folder) for name in images_in(names, (*SUFFIXES, *KINDS)))
    readable = [path for path in found if path.name.lower().endswith(SUFFIXES + HEIC_SUFFIXES)]
    if warn and len(readable) < len(found):
        warn_of_unread(sorted({*found} - {*readable}), stacklevel=2)
    return readable


def labelled(folder: Path, part: Literal["train", "test"]) -> list[tuple[Path, str | None]]:
    """The images below a folder of class folders with their classes; None for those in no class folder.

    Where it has a train and a test part, the images of this part; where it has a train part alone, those. Where it is a
    list of labelled photos or has one, those; see `label_list`. Warns where the classes seem to lie one level deeper.
    """
    listed = label_list(folder)
    if listed:
        return list(read_label_list(listed))
    there = parts(folder)
    root = there.get(part) or there.get("train", folder)
    found = [(path, path.relative_to(root).parts) for path in files(root)]
    if not found:
        raise DataError(f"{root}: no image in it. {LAYOUT}")
    below: dict[str, list[str]] = {}
    for place in sorted({path.parent for path, inside in found if len(inside) > 1}):
        below.setdefault(place.relative_to(root).parts[0], []).append(place.relative_to(folder).as_posix())
    notice_nested(root, below)
    return [(path, normalize("NFC", inside[0]) if len(inside) > 1 else None) for path, inside in found]


def _thumbnail(image: Image.Image) -> bytes:
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    file = BytesIO()
    small.save(file, "JPEG", quality=80)
    return file.getvalue()
