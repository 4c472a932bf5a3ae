"""Decoded images kept in one memory-mapped file per data set and size, so that no epoch decodes a JPEG again.

Such a file is a magic number, the pixels of one image after the other, a JSON index, and a trailer with the index's
length and checksum. The index comes last because sizes and damaged images are known only after decoding. It has a
checksum per image, which is checked when the image is first read: to check all at the start would read the whole file.

Of an image that is longer than MAX_ASPECT times its short side only the central part is kept, because one such image
would make every batch as long. Published data sets are kept whole.
"""

import hashlib
import json
import os
import struct
import warnings
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image

from fscil.data.images import (
    AS_IT_IS,
    HEIC_NEEDED,
    ArrayPixels,
    Bytes,
    Dataset,
    FilePixels,
    Images,
    Ints,
    Pixels,
    Resize,
    cut,
    decode,
    reads_heic,
)
from fscil.errors import BadImageError, DataError, FscilWarning, StoreError
from fscil.runtime.files import replacing
from fscil.runtime.progress import ProgressBar
from fscil.runtime.text import first_few

MAGIC = b"fscil pixels 2\n\n"  # the number changes with the layout, and with how images are decoded
TRAILER = struct.Struct("<Q32s")  # length of the index, its SHA-256
CHUNK = 4  # images per task: few, because a window of tasks is in memory
WORKERS = min(8, max(2, os.cpu_count() or 1))


def cache_folder() -> Path:
    """$FSCIL_CACHE, or fscil's folder among this system's caches, as ~/.cache/fscil on Linux."""
    if chosen := os.environ.get("FSCIL_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("fscil", appauthor=False)


class CachedPixels:
    """Images in a file of the cache, mapped into memory."""

    def __init__(self, path: Path, offset: int, sizes: Ints, checksums: Ints, names: Sequence[str]) -> None:
        """sizes: (n, 2) height, width; checksums: (n,) CRC-32 of each image's bytes."""
        lengths = sizes.prod(axis=1) * 3
        self._path, self._sizes, self._checksums, self._names = path, sizes, checksums, names
        self._starts = np.cumsum(lengths) - lengths
        self._flat: Bytes = np.asarray(np.memmap(path, np.uint8, "r", offset, (int(lengths.sum()),)))
        self._equal = bool((sizes == sizes[0]).all())
        self._checked = np.zeros(len(sizes), bool)

    def __len__(self) -> int:
        return len(self._sizes)

    def read(self, rows: Ints) -> Bytes | list[Bytes]:
        """Raises a StoreError for an image whose bytes have changed since they were written."""
        for row in np.unique(rows[~self._checked[rows]]).tolist():
            if zlib.crc32(self._image(row).data) != self._checksums[row]:
                raise self._damaged(row)
            self._checked[row] = True
        if self._equal:
            return self._flat.reshape(len(self), *self._sizes[0].tolist(), 3)[rows]
        return [self._image(row) for row in rows.tolist()]

    def _image(self, row: int) -> Bytes:
        height, width = self._sizes[row].tolist()
        start = int(self._starts[row])
        return self._flat[start : start + height * width * 3].reshape(height, width, 3)

    def _damaged(self, row: int) -> StoreError:
        """The file is removed, so that it is made again."""
        self._path.unlink(missing_ok=True)
        return StoreError(
            f"{self._path}: the decoded pixels of {self.name(row)} were damaged on the disk. The file was removed: run "
            f"the same command again, and check the disk if this repeats."
        )

    def name(self, row: int) -> str:
        return self._names[row]


@dataclass(frozen=True)
class _Decoded:
    """A decoded pixel store: its good images, and what is wrong with the others."""

    pixels: Pixels
    place: Ints  # (n,) row in the original store -> row in pixels
    bad: Mapping[int, str] = field(default_factory=dict)  # row in the original store -> what is wrong


def prepare(dataset: Dataset, resize: Resize, folder: Path | None = None, quiet: bool = False) -> Dataset:
    """The data set with every image decoded and resized once; from then on its pixels are mapped from the cache.

    Parameters
    ----------
    dataset : Dataset
        As `fscil.data.load` returns it.
    resize : Resize
        The size at which images are stored.
    folder : Path, optional
        Of the cache; by default $FSCIL_CACHE, or fscil's folder among the system's caches.
    quiet : bool
        Show no progress.

    Returns
    -------
    Dataset
        Without the images that cannot be decoded, of which an FscilWarning says how many and which.

    Raises
    ------
    DataError
        Where no image can be decoded, or one in the test part of a published data set cannot.
    StoreError
        Where the cache cannot be written.

    Examples
    --------
    >>> from fscil.data import Resize, load, prepare
    >>> small = prepare(load("glyphs"), Resize((16, 16)), quiet=True)
    >>> small.train.pixels.read(small.train.rows[:2]).shape
    (2, 16, 16, 3)
    """
    folder = folder or cache_folder()
    train = _decoded(dataset, "train", resize, folder, quiet)
    if dataset.test.pixels is dataset.train.pixels:
        test = train
    else:
        test = _decoded(dataset, "test", resize, folder, quiet)
    if dataset.benchmark:
        _require_decoded(dataset, test)
    return replace(dataset, train=_good(dataset, "train", train), test=_good(dataset, "test", test))


def _require_decoded(dataset: Dataset, decoded: _Decoded) -> None:
    bad = [row for row in dataset.test.rows.tolist() if row in decoded.bad]
    if bad:
        names = first_few([dataset.test.pixels.name(row) for row in bad])
        raise DataError(
            f"{dataset.name}: {len(bad)} of {len(dataset.test)} test images cannot be decoded: {names} "
            f"(the first: {decoded.bad[bad[0]]}). Results without them could not be compared with published ones: "
            "restore these files from the original archive."
        )


def _good(dataset: Dataset, part: str, decoded: _Decoded) -> Images:
    """A part of the data set over its decoded images, without those that could not be decoded."""
    images: Images = getattr(dataset, part)
    lost = np.isin(images.rows, list(decoded.bad))
    if lost.any():
        rows = images.rows[lost].tolist()
        text = (
            f"{dataset.name}: {len(rows)} of {len(images)} {part} images cannot be decoded and are left out: "
            f"{first_few([images.pixels.name(row) for row in rows])} (the first: {decoded.bad[rows[0]]})."
        )
        if dataset.benchmark:
            classes = [dataset.class_names[label] for label in np.unique(images.labels[lost])]
            text += f" The few-shot samples drawn for {first_few(classes)} are then not the published ones."
        warnings.warn(text, FscilWarning, stacklevel=3)
    kept = images.select(~lost)
    return Images(decoded.pixels, kept.labels, decoded.place[kept.rows])


def _decoded(dataset: Dataset, part: str, resize: Resize, folder: Path, quiet: bool) -> _Decoded:
    images: Images = getattr(dataset, part)
    pixels, name = images.pixels, dataset.name
    if len(pixels) == 0 or _is_ready(pixels, resize):
        return _Decoded(pixels, np.arange(len(pixels)))
    origin = [str(pixels.root.resolve()), asdict(pixels.resize)] if isinstance(pixels, FilePixels) else []
    identity = json.dumps([name, part, origin, asdict(resize)])
    path = folder / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.pixels"
    key = _fingerprint(pixels, name)
    found = _open(path, key, pixels)
    if found is None:
        try:
            decoder = _Decoder(pixels, resize, whole=dataset.benchmark)
            _build(path, key, decoder, f"{name}: decoding {part} images", quiet)
        except StoreError as error:
            raise StoreError(f"{error} The environment variable FSCIL_CACHE chooses another folder.") from error
        found = _open(path, key, pixels)
    if found is None:
        raise StoreError(f"{path}: was written but cannot be read back. Check the disk, and run again.")
    return found


def _is_ready(pixels: Pixels, resize: Resize) -> bool:
    """Whether the images are in memory (or mapped) at the wanted size already."""
    if isinstance(pixels, ArrayPixels):
        height, width = pixels.array.shape[1:3]
        return resize.target(height, width) == (height, width)
    return isinstance(pixels, CachedPixels) and resize.size is None


def _fingerprint(pixels: Pixels, name: str) -> str:
    """Changes when the source does: path, size and time of files, the bytes of arrays."""
    found = hashlib.sha256()
    if isinstance(pixels, FilePixels):
        for path in pixels.paths:
            try:
                state = os.stat(os.path.join(pixels.root, path))  # noqa: PTH116, PTH118 (half the time for 60,000 files)
            except OSError as error:
                raise DataError(f"{name}: {pixels.root / path} cannot be read ({error.strerror}).") from error
            found.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    else:
        for row in range(len(pixels)):
            image = pixels.read(np.array([row]))[0]
            found.update(f"{image.shape}".encode() + image.tobytes())
    return found.hexdigest()


def _open(path: Path, key: str, pixels: Pixels) -> _Decoded | None:
    """The file's content if it is whole and of this source."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(0)
            magic = file.read(len(MAGIC))
            file.seek(length - TRAILER.size)
            index_length, digest = TRAILER.unpack(file.read())
            file.seek(length - TRAILER.size - index_length)
            text = file.read(index_length)
        if magic != MAGIC or hashlib.sha256(text).digest() != digest:
            return None
        index = json.loads(text)
    except (OSError, ValueError, OverflowError, struct.error):
        return None
    sizes = np.array(index["sizes"], np.int64).reshape(-1, 2)
    ends = np.cumsum(sizes.prod(axis=1) * 3)
    total = length - len(MAGIC) - index_length - TRAILER.size
    if index["key"] != key or total != ends[-1]:
        return None
    bad = {int(row): what for row, what in index["bad"]}
    if reads_heic() and any(HEIC_NEEDED in what for what in bad.values()):  # the extra was installed since
        return None
    good = np.ones(len(pixels), bool)
    good[list(bad)] = False
    names = [pixels.name(row) for row in np.flatnonzero(good).tolist()]
    images = CachedPixels(path, len(MAGIC), sizes, np.array(index["crc32"], np.int64), names)
    return _Decoded(images, np.cumsum(good) - 1, bad)


def _build(path: Path, key: str, decoder: "_Decoder", what: str, quiet: bool) -> None:
    """Decode everything into the file, one window of images in memory at a time."""
    sizes: list[tuple[int, ...]] = []
    checksums: list[int] = []
    bad: list[tuple[int, str]] = []
    with (
        replacing(path) as file,
        ThreadPoolExecutor(WORKERS) as pool,
        ProgressBar(what, len(decoder.pixels), quiet=quiet) as bar,
    ):
        file.write(MAGIC)
        for row, image in enumerate(_images(pool, decoder)):
            if isinstance(image, str):
                bad.append((row, image))
            else:
                sizes.append(image.shape[:2])
                checksums.append(zlib.crc32(image.data))
                file.write(image.data)
            bar.advance()
        if not sizes:
            raise DataError(f"None of {len(decoder.pixels)} images can be decoded (the first: {bad[0][1]}).")
        index = json.dumps({"key": key, "sizes": sizes, "crc32": checksums, "bad": bad}).encode()
        file.write(index + TRAILER.pack(len(index), hashlib.sha256(index).digest()))


def _images(pool: ThreadPoolExecutor, decoder: "_Decoder") -> Iterator[Bytes | str]:
    """Every image in order, or what is wrong with it; Pillow releases the GIL while it decodes."""
    total = len(decoder.pixels)
    waiting: deque[Future[list[Bytes | str]]] = deque()
    for start in range(0, total, CHUNK):
        waiting.append(pool.submit(lambda rows: [*map(decoder, rows)], range(start, min(start + CHUNK, total))))
        if len(waiting) > 2 * WORKERS:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()


@dataclass(frozen=True)
class _Decoder:
    """One image of a pixel store as it is kept, or what is wrong with it."""

    pixels: Pixels
    resize: Resize
    whole: bool  # also of a long image

    def __call__(self, row: int) -> Bytes | str:
        try:
            return np.ascontiguousarray(self._central(self._resized(row)))
        except BadImageError as error:
            return str(error)

    def _resized(self, row: int) -> Bytes:
        if isinstance(self.pixels, FilePixels) and self.pixels.resize == AS_IT_IS:  # without a copy at full size
            return decode(self.pixels.root / self.pixels.paths[row], self.resize, self.whole)
        image = Image.fromarray(self.pixels.read(np.array([row]))[0])
        return np.asarray(self.resize.apply(image, self.pixels.name(row), self.whole))

    def _central(self, image: Bytes) -> Bytes:
        """Of an image that is kept at its own size."""
        if self.whole or self.resize.size is not None:
            return image
        short = min(image.shape[:2])
        top, left = (cut(length, short) for length in image.shape[:2])
        return image[top : image.shape[0] - top, left : image.shape[1] - left]
