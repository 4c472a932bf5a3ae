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
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from fscil.data.image_headers import MAX_SCANS, scan_count
from fscil.errors import BadImageError, DataError, HugeImageError, UnsupportedImageError

Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Interpolation: TypeAlias = Literal["bilinear", "bicubic"]

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
HEIC_SUFFIXES = (".heic", ".heif")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIC_ADVICE = "HEIC photos need an extra. Run: pip install 'fscil[heic]'"


@dataclass(frozen=True)
class Resize:
    """How a decoded image is stored: unchanged (None), with this short side, or at exactly (height, width)."""

    size: int | tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"

    def target(self, height: int, width: int) -> tuple[int, int]:
        """The stored (height, width) of an image that was decoded at height x width."""
        if self.size is None:
            return height, width
        if isinstance(self.size, int):
            short = min(height, width)
            return max(1, self.size * height // short), max(1, self.size * width // short)
        return self.size

    def apply(self, image: Image.Image, name: str = "the image") -> Image.Image:
        """The image at its stored size; a HugeImageError with its name where that is too large."""
        height, width = self.target(image.height, image.width)
        if (height, width) == (image.height, image.width):
            return image
        _refuse_bomb(height, width, name)  # a thin strip grows huge when its short side is stretched
        return image.resize((width, height), Image.Resampling[self.interpolation.upper()])


AS_IT_IS = Resize()


def decode(file: Path | BinaryIO, resize: Resize = AS_IT_IS) -> Bytes:
    """(height, width, 3) of the first frame, upright by its EXIF tag, on white where it is transparent."""
    if not isinstance(file, Path):
        return _decode(file, "the image", resize)
    try:
        # Read apart from decoding: a failing disk must not be reported as a damaged image.
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    return _decode(BytesIO(content), str(file), resize)


def reads_heic() -> bool:
    """Whether the extra that decodes HEIC is installed."""
    return find_spec("pillow_heif") is not None


def _formats(stream: BinaryIO, name: str) -> tuple[str, ...]:
    """The formats Pillow may try; HEIC is recognised by its content, as phones give it any suffix."""
    start = stream.read(12)
    stream.seek(-len(start), SEEK_CUR)
    if start[4:8] != b"ftyp" or start[8:] not in HEIC_BRANDS:
        return FORMATS
    if not reads_heic():
        raise UnsupportedImageError(f"{name}: {HEIC_ADVICE}")
    from pillow_heif import register_heif_opener

    register_heif_opener()
    return ("HEIF",)


def _decode(stream: BinaryIO, name: str, resize: Resize) -> Bytes:
    formats = _formats(stream, name)
    _refuse_many_scans(stream, name)
    with image_errors(name), Image.open(stream, formats=formats) as image:
        _refuse_bomb(image.height, image.width, name)  # Pillow itself only warns up to twice its limit
        return np.asarray(resize.apply(upright_rgb(image), name))


def _refuse_many_scans(stream: BinaryIO, name: str) -> None:
    """Every scan of a progressive JPEG costs a pass over all pixels, and a few bytes of the file."""
    start = stream.tell()
    content = stream.read()
    stream.seek(start)
    if scan_count(content) > MAX_SCANS:
        raise HugeImageError(f"{name}: more than {MAX_SCANS} scans. Save the photo again with another program.")


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


def upright_rgb(image: Image.Image) -> Image.Image:
    """Turned as its EXIF tag says, in three channels, on white where it is transparent."""
    image.load()  # in a PNG the tag may come after the pixels
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" and not image.has_transparency_data:
        return image  # not a copy: a large photo takes hundreds of megabytes
    if image.mode.startswith("I"):  # 16-bit grayscale: Pillow's own conversion clips instead of scaling
        wide = np.asarray(image, np.float64)
        return Image.fromarray((wide / 257.0 + 0.5).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


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
