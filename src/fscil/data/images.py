"""Labelled images: one small type over arrays or files, and the only place where files are decoded.

Nothing here knows torch. Pixels stay uint8 in height x width x 3 order until they reach the device.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from io import SEEK_CUR, BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fscil.data.image_headers import MAX_SCANNED_PIXELS, MAX_SCANS, image_size, scan_count
from fscil.data.unread import INSTEAD, kind_of_content
from fscil.data.upright import MAX_DECODE_BYTES, decode_bytes, upright_rgb
from fscil.errors import BadImageError, DataError, HugeImageError, UnsupportedImageError
from fscil.runtime.extras import install_command
from fscil.runtime.regular_files import read_regular

Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Interpolation: TypeAlias = Literal["bilinear", "bicubic"]

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
HEIC_SUFFIXES = (".heic", ".heif")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIC_NEEDED = "HEIC photos need an extra"
MAX_ASPECT = 4  # of a longer image only the central part is stretched to a given short side
MAX_FILE_BYTES = 2**30  # of an image file


@dataclass(frozen=True)
class Resize:
    """How a decoded image is stored: unchanged (None), with this short side, or at exactly (height, width).

    With a short side, an image longer than MAX_ASPECT times that is cut to its central part: what is evaluated is the
    central square, and the whole of a strip of 1 x 1000 pixels would be stretched to 256 x 256,000.
    """

    size: int | tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"

    def target(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) to which the whole of an image of height x width is resized."""
        if self.size is None:
            return height, width
        if isinstance(self.size, int):
            short = min(height, width)
            return max(1, self.size * height // short), max(1, self.size * width // short)
        return self.size

    def apply(self, image: Image.Image, name: str = "the image", whole: bool = False) -> Image.Image:
        """The image at its stored size; with `whole` also of a long one all of it.

        Raises a HugeImageError with its name where the result is too large.
        """
        height, width = self.target(image.height, image.width)
        top = left = 0
        if isinstance(self.size, int) and not whole:
            top, left = cut(height, self.size), cut(width, self.size)
        if (height, width) == (image.height, image.width) and not top and not left:
            return image
        rows, columns = image.height / height, image.width / width
        # The filters use pixels beyond the box as well, so the central part is the same as if all had been resized.
        bottom = (height - top) * rows if top else image.height
        right = (width - left) * columns if left else image.width
        height, width = height - 2 * top, width - 2 * left
        _refuse_bomb(height, width, name)
        method = Image.Resampling[self.interpolation.upper()]
        return image.resize((width, height), method, (left * columns, top * rows, right, bottom))


def cut(length: int, short: int) -> int:
    """How many pixels are cut off at either end; equally many, so that the centre stays in place."""
    return max(0, (length - MAX_ASPECT * short) // 2)


AS_IT_IS = Resize()


def decode(file: Path | BinaryIO, resize: Resize = AS_IT_IS, whole: bool = False) -> Bytes:
    """(height, width, 3) of the first frame, upright by its EXIF tag, on white where it is transparent.

    whole: as in `Resize.apply`.
    """
    return np.asarray(resize.apply(decoded_image(file), _name(file), whole))


def decoded_image(file: Path | BinaryIO) -> Image.Image:
    """The same as a Pillow image, at full size: an array of a large photo would be another hundreds of megabytes."""
    stream = BytesIO(_read_image(file)) if isinstance(file, Path) else file
    return _decode(stream, _name(file))


def _name(file: Path | BinaryIO) -> str:
    return str(file) if isinstance(file, Path) else "the image"


def _read_image(file: Path) -> bytes:
    """Read apart from decoding: a failing disk must not be reported as a damaged image."""
    try:
        return read_regular(file, MAX_FILE_BYTES)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error


def reads_heic() -> bool:
    """Whether the extra that decodes HEIC is installed."""
    return find_spec("pillow_heif") is not None


def heic_advice() -> str:
    return f"{HEIC_NEEDED}. Run: {install_command('heic')}"


def _formats(stream: BinaryIO, name: str) -> tuple[str, ...]:
    """The formats Pillow may try; HEIC is recognised by its content, as phones give it any suffix."""
    start = stream.read(12)
    stream.seek(-len(start), SEEK_CUR)
    if kind := kind_of_content(start):
        raise UnsupportedImageError(f"{name}: {kind} is not read; convert it {INSTEAD}")
    if start[4:8] != b"ftyp" or start[8:] not in HEIC_BRANDS:
        return FORMATS
    if not reads_heic():
        raise UnsupportedImageError(f"{name}: {heic_advice()}")
    from pillow_heif import register_heif_opener

    register_heif_opener()
    return ("HEIF",)


def _decode(stream: BinaryIO, name: str) -> Image.Image:
    formats = _formats(stream, name)
    _refuse_many_scans(stream, name)
    with image_errors(name), Image.open(stream, formats=formats) as image:
        _refuse_bomb(image.height, image.width, name)  # Pillow itself only warns up to twice its limit
        if decode_bytes(image) > MAX_DECODE_BYTES:
            raise HugeImageError(
                f"{name}: too large ({image.width} x {image.height} pixels of this kind take more than "
                f"{MAX_DECODE_BYTES >> 20} MiB)"
            )
        return upright_rgb(image)


def _refuse_many_scans(stream: BinaryIO, name: str) -> None:
    """Every scan of a progressive JPEG costs a pass over all pixels, and a few bytes of the file."""
    start = stream.tell()
    content = stream.read()
    stream.seek(start)
    scans = scan_count(content)
    height, width = image_size(content) or (0, 0)
    if scans > MAX_SCANS or scans * height * width > MAX_SCANNED_PIXELS:
        raise HugeImageError(f"{name}: too many scans for its size. Save the photo again with another program.")


@contextmanager
def image_errors(name: str) -> Iterator[None]:
    """Whatever Pillow raises in this block becomes a BadImageError that names the image."""
    try:
        yield
    except BadImageError:
        raise
    except UnidentifiedImageError:
        raise UnsupportedImageError(f"{name}: not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise HugeImageError(f"{name}: too large ({error})") from error
    except Exception as error:  # Pillow's decoders raise exceptions of any type on damaged files
        raise BadImageError(f"{name}: corrupt or truncated ({error})") from error


def _refuse_bomb(height: int, width: int, name: str) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and height * width > limit:
        raise HugeImageError(f"{name}: too large ({width} x {height} is more than {limit} pixels)")


class Pixels(Protocol):
    """A numbered store of images."""

    def __len__(self) -> int: ...

    def read(self, rows: Ints) -> Bytes | list[Bytes]:
        """The images of these rows: one (n, h, w, 3) array, or a list of (h, w, 3) where sizes differ."""
        ...

    def name(self, row: int) -> str:
        """What to call this image in a message."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayPixels:
    """Images of one size in one (n, h, w, 3) array, in memory or mapped from a file."""

    array: Bytes
    label: str = "image"
    names: Sequence[str] = ()  # one per image, where they have names

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: Ints) -> Bytes:
        return self.array[rows]

    def name(self, row: int) -> str:
        return self.names[row] if self.names else f"{self.label} {row}"


@dataclass(frozen=True, eq=False)
class FilePixels:
    """Images decoded from their files at every read."""

    root: Path
    paths: Sequence[str]  # relative to root
    resize: Resize = AS_IT_IS

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Ints) -> list[Bytes]:
        return [decode(self.root / self.paths[row], self.resize) for row in rows]

    def name(self, row: int) -> str:
        return self.paths[row]


@dataclass(frozen=True, eq=False)
class Images:
    """Some rows of a pixel store, each with the number of its class. Selecting copies no pixel."""

    pixels: Pixels
    labels: Ints  # (n,)
    rows: Ints  # (n,) into pixels

    @classmethod
    def of(cls, pixels: Pixels, labels: Sequence[int] | NDArray[Any]) -> "Images":
        """All rows of a pixel store, in order."""
        numbers = np.asarray(labels, np.int64)
        if len(numbers) != len(pixels):
            raise ValueError(f"{len(pixels)} images but {len(numbers)} labels")
        return cls(pixels, numbers, np.arange(len(pixels)))

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def counts(self) -> dict[int, int]:
        """How many images each class number has."""
        values, counts = np.unique(self.labels, return_counts=True)
        return {int(value): int(count) for value, count in zip(values, counts, strict=True)}

    def select(self, positions: Sequence[int] | NDArray[Any]) -> "Images":
        """These positions (numbers, or a mask), in this order."""
        index = np.asarray(positions)
        if index.dtype != np.bool_:
            index = index.astype(np.int64)
        return Images(self.pixels, self.labels[index], self.rows[index])

    def of_classes(self, classes: Sequence[int] | NDArray[Any]) -> "Images":
        """The images of these classes, in data set order, with their labels as they are."""
        return self.select(np.isin(self.labels, np.asarray(classes, np.int64)))

    def relabel(self, order: Sequence[int] | NDArray[Any]) -> "Images":
        """Labels replaced by their place in order, which must name every class present."""
        place = np.full(max([*self.counts, *map(int, order)], default=0) + 1, -1, np.int64)
        place[np.asarray(order, np.int64)] = np.arange(len(order))
        labels = place[self.labels]
        if (labels < 0).any():
            raise ValueError("relabel: a class is missing from the order")
        return Images(self.pixels, labels, self.rows)

    def batch(self, positions: Ints) -> tuple[Bytes, Ints]:
        """Pixels (n, H, W, 3) padded with zeros below and to the right, and the true sizes (n, 2) as height, width."""
        found = self.pixels.read(self.rows[positions])
        if isinstance(found, np.ndarray):
            return found, np.tile(np.array(found.shape[1:3], np.int64), (len(found), 1))
        sizes = np.array([image.shape[:2] for image in found], np.int64).reshape(-1, 2)
        height, width = sizes.max(axis=0, initial=1)
        padded = np.zeros((len(found), height, width, 3), np.uint8)
        for canvas, image in zip(padded, found, strict=True):
            canvas[: image.shape[0], : image.shape[1]] = image
        return padded, sizes

    def name(self, position: int) -> str:
        return self.pixels.name(int(self.rows[position]))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test part over the same classes."""

    train: Images
    test: Images
    class_names: tuple[str, ...]
    name: str = "images"
    benchmark: bool = False  # published data: a test image that cannot be read stops the run
