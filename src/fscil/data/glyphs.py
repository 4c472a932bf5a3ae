"""The embedded data set: a hundred characters of five scripts, drawn from the fonts that come with matplotlib.

Each image is one character in a random face, stroke, pose and colour among clutter and noise. No class is another one
seen through these transforms: shapes shared between scripts, cases or turns appear once.
"""

import hashlib
import io
import unicodedata
import warnings
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont, features

from fscil.data.images import ArrayPixels, Bytes, Dataset, Images
from fscil.errors import DataError, FscilWarning, StoreError
from fscil.runtime.files import replacing

Floats: TypeAlias = NDArray[np.float32]

# In class order. Every twenty hold 3 Latin, 2 Greek, 3 Cyrillic, 3 Georgian and 4 Armenian letters and 5 signs, mixed
# in every five, so that novel classes are of the same kinds as base classes.
CHARACTERS = (
    "kыცՔ₦" "iτѣջ2" "Pψრվ¥" "ъჟե§⋄" "yЊფՊ%" "GΩЯԴ©" "Hνდբ5" "мჩՀ∫±" "fЏჰԸ&" "ßαжՇ⊠"
    "Eςგխ@" "Лჭց#⊕" "xљწֆ¶" "ŋΓђթ₹" "Aμჯփ€" "дოչ?4" "tщშԾ₴" "øξЋԿ√" "æζტձ£" "юვճ$∞"
)  # fmt: skip
TRAIN_FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Italic",
)
TEST_ONLY_FACES = ("DejaVuSans-BoldOblique", "DejaVuSansMono-Bold", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic")
FACES = TRAIN_FACES + TEST_ONLY_FACES

SIDE = 32
TRAIN_PER_CLASS = 100
TEST_PER_CLASS = 50
MAX_ROTATION = 15.0  # degrees either way
MAX_SHEAR = 0.15
MAX_STRETCH = 1.15  # of one axis against the other

SEED = 2022
TILE = 64  # pixels of a drawn character, margin included
INK = 52  # its longest side without the margin
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


def load(root: Path | None = None) -> Dataset:
    """The data set, drawn in a few seconds and cached in root (the user's cache folder if None)."""
    if root is None:
        from fscil.data.cache import cache_folder

        root = cache_folder()
    path = root / f"glyphs-{_version()}.npy"
    pixels = _read(path)
    if pixels is None:
        pixels = _draw()
        try:
            _write(path, pixels)
        except StoreError as error:
            warnings.warn(f"glyphs: drawn but not cached. {error}", FscilWarning, stacklevel=2)
    classes = np.arange(len(CHARACTERS))
    split = len(classes) * TRAIN_PER_CLASS
    return Dataset(
        name="glyphs",
        train=Images.of(ArrayPixels(pixels[:split], "glyphs train image"), classes.repeat(TRAIN_PER_CLASS)),
        test=Images.of(ArrayPixels(pixels[split:], "glyphs test image"), classes.repeat(TEST_PER_CLASS)),
        class_names=tuple(map(class_name, CHARACTERS)),
        benchmark=True,
    )


def class_name(character: str) -> str:
    """Its Unicode name without "letter": "Greek small xi", "Georgian las", "Percent sign"."""
    return unicodedata.name(character).replace(" LETTER", "").capitalize()


def face_path(face: str) -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf")


def _version() -> str:
    """Changes with whatever the pixels depend on: this file, the fonts and the libraries."""
    found = hashlib.sha256(f"{np.__version__} {features.version('pil')} {features.version('freetype2')}".encode())
    for path in (Path(__file__), *map(face_path, FACES)):
        try:
            found.update(path.read_bytes())
        except OSError as error:
            raise DataError(
                f"glyphs: {path} cannot be read ({error.strerror}). The data set is drawn from the fonts that "
                "come with matplotlib; reinstall matplotlib."
            ) from error
    return found.hexdigest()[:16]


def _write(path: Path, pixels: Bytes) -> None:
    """An .npy file followed by its SHA-256, which readers of .npy ignore."""
    content = io.BytesIO()
    np.save(content, pixels, allow_pickle=False)
    with replacing(path) as file:
        file.write(content.getbuffer())
        file.write(hashlib.sha256(content.getbuffer()).digest())


def _read(path: Path) -> Bytes | None:
    """What _write wrote; None where there is no file or a damaged one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body = memoryview(content)[:-32]
    if hashlib.sha256(body).digest() != content[-32:]:
        return None
    pixels: Bytes = np.load(io.BytesIO(body), allow_pickle=False)
    return pixels


def _draw() -> Bytes:
    """(n, SIDE, SIDE, 3): the train part class by class, then the test part."""
    fonts = [ImageFont.truetype(face_path(face), 2 * INK, layout_engine=ImageFont.Layout.BASIC) for face in FACES]
    tiles = np.stack([[_tiles(character, font) for font in fonts] for character in CHARACTERS])
    parts = [
        _images(np.random.default_rng((SEED, part, number)), tiles[number, :faces], count)
        for part, (count, faces) in enumerate([(TRAIN_PER_CLASS, len(TRAIN_FACES)), (TEST_PER_CLASS, len(FACES))])
        for number in range(len(CHARACTERS))
    ]
    return np.ascontiguousarray(np.concatenate(parts))


def _tiles(character: str, font: ImageFont.FreeTypeFont) -> Bytes:
    """(3, TILE, TILE): one character in one face with thin, plain and heavy strokes, centred, INK pixels long."""
    left, top, right, bottom = font.getbbox(character)
    unit = max(right - left, bottom - top) / INK  # drawn pixels to one of the tile
    side = round(TILE * unit)
    at = (side - left - right) / 2, (side - top - bottom) / 2

    def draw(stroke: float) -> Image.Image:
        canvas = Image.new("L", (side, side))
        ImageDraw.Draw(canvas).text(at, character, fill=255, font=font, stroke_width=stroke)
        return canvas

    thin = draw(0).filter(ImageFilter.MinFilter(2 * round(0.5 * unit) + 1))
    drawn = (thin, draw(0), draw(1.5 * unit))
    return np.stack([np.asarray(image.resize((TILE, TILE), Image.Resampling.BOX)) for image in drawn])


def _images(rng: np.random.Generator, tiles: Bytes, count: int) -> Bytes:
    """tiles: (faces, 3, TILE, TILE) of one class. Returns (count, SIDE, SIDE, 3)."""
    ink_mask = _pose(rng, tiles, count)
    paper, ink = _colours(rng, count)
    # Channels first until the end: numpy is several times faster when the last axis is a long one.
    image = paper[:, :, None, None] + _gradient(rng, count) + _texture(rng, count)
    for _ in range(3):
        _paint(image, _blob(rng, count), _between(rng, paper, ink, 0.1, 0.6))
    for _ in range(4):
        _paint(image, _curve(rng, count), _between(rng, paper, ink, 0.3, 0.9))
    _paint(image, ink_mask, ink)
    _paint(image, _curve(rng, count), _between(rng, paper, ink, -0.2, 0.5))
    image = _blur(rng, image)
    image += rng.standard_normal(image.shape, np.float32) * _uniform(rng, 0.01, 0.08, count, 1, 1, 1)
    return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8).transpose(0, 2, 3, 1)


def _uniform(rng: np.random.Generator, low: float, high: float, *shape: int) -> Floats:
    return rng.uniform(low, high, shape).astype(np.float32)


def _grid(side: int) -> tuple[Floats, Floats]:
    """The x (1, side) and y (side, 1) of pixel centres, the image spanning -1 to 1."""
    line = ((np.arange(side) + 0.5) * 2 / side - 1).astype(np.float32)
    return line[None, :], line[:, None]


def _pose(rng: np.random.Generator, tiles: Bytes, count: int) -> Floats:
    """(count, 1, SIDE, SIDE) in 0..1: the class in a random face and stroke, slanted, stretched, turned and placed."""
    chosen = rng.integers(tiles.shape[0] * tiles.shape[1], size=count)
    size = _uniform(rng, 0.5, 0.8, count)
    angle = np.deg2rad(_uniform(rng, -MAX_ROTATION, MAX_ROTATION, count))
    shear = _uniform(rng, -MAX_SHEAR, MAX_SHEAR, count)
    stretch = np.sqrt(MAX_STRETCH ** _uniform(rng, -1, 1, count))
    shift = _uniform(rng, -1, 1, 2, count) * (1 - size)

    # From the image back to the tile: shift, turn, slant, stretch undone in this order, at 2 x 2 points a pixel.
    wide, high = _grid(2 * SIDE)
    x, y = wide - shift[0, :, None, None], high - shift[1, :, None, None]
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    x, y = cos * x + sin * y, cos * y - sin * x
    x = x - shear[:, None, None] * y
    scale = INK / 2 / size
    x = x * (scale / stretch)[:, None, None] + (TILE - 1) / 2
    y = y * (scale * stretch)[:, None, None] + (TILE - 1) / 2

    # Bilinear; the margin of a tile is empty, so clipping outside points to it is right.
    x, y = x.clip(0, TILE - 1.001), y.clip(0, TILE - 1.001)
    column, row = x.astype(np.int32), y.astype(np.int32)
    x -= column
    y -= row
    corner = chosen[:, None, None] * TILE * TILE + (row * TILE + column)
    source = tiles.ravel()
    above = source.take(corner) * (1 - x) + source.take(corner + 1) * x
    below = source.take(corner + TILE) * (1 - x) + source.take(corner + TILE + 1) * x
    fine = (above + y * (below - above)) / (4 * 255)
    mask: Floats = fine[:, ::2, ::2] + fine[:, ::2, 1::2] + fine[:, 1::2, ::2] + fine[:, 1::2, 1::2]
    return mask[:, None]


def _colours(rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Paper and ink, (count, 3) each, either the lighter, with luminance at least 0.3 apart before clipping."""
    contrast = _uniform(rng, 0.3, 0.7, count)
    low = _uniform(rng, 0, 1, count) * (1 - contrast)
    both = np.stack([low, low + contrast])
    both = np.where(rng.integers(2, size=count) == 0, both, both[::-1])
    hue = _uniform(rng, -0.3, 0.3, 2, count, 3)
    hue -= (hue @ LUMINANCE)[..., None]
    paper, ink = (both[..., None] + hue).clip(0, 1)
    return paper, ink


def _between(rng: np.random.Generator, paper: Floats, ink: Floats, low: float, high: float) -> Floats:
    """(count, 3): a colour part of the way from paper to ink, off to a side."""
    share = _uniform(rng, low, high, len(paper), 1)
    return paper + share * (ink - paper) + _uniform(rng, -0.15, 0.15, len(paper), 3)


def _gradient(rng: np.random.Generator, count: int) -> Floats:
    """(count, 3, SIDE, SIDE): a ramp in a random direction."""
    x, y = _grid(SIDE)
    slopes = _uniform(rng, -0.1, 0.1, 2, count, 3, 1, 1)
    ramp: Floats = slopes[0] * x + slopes[1] * y
    return ramp


def _texture(rng: np.random.Generator, count: int) -> Floats:
    """(count, 1, SIDE, SIDE): soft patches of light and shade."""
    knots = 7
    at = np.linspace(0, knots - 1, SIDE)[:, None]
    weights = (1 - abs(at - np.arange(knots))).clip(0).astype(np.float32)  # (SIDE, knots), linear interpolation
    heights = rng.standard_normal((count, 1, knots, knots), np.float32) * _uniform(rng, 0, 0.1, count, 1, 1, 1)
    return weights @ heights @ weights.T


def _blob(rng: np.random.Generator, count: int) -> Floats:
    """(count, 1, SIDE, SIDE): a disc somewhere, in half of the images."""
    x, y = _grid(SIDE)
    at = _uniform(rng, -1, 1, 2, count, 1, 1, 1)
    radius = _uniform(rng, 0.1, 0.5, count, 1, 1, 1) * (rng.random((count, 1, 1, 1)) < 0.5)
    inside: Floats = (radius - np.sqrt((x - at[0]) ** 2 + (y - at[1]) ** 2)) * (SIDE / 2)
    return inside.clip(0, 1)


def _curve(rng: np.random.Generator, count: int) -> Floats:
    """(count, 1, SIDE, SIDE): a piece of a circle, from small and round to nearly straight, in half of the images."""
    x, y = _grid(SIDE)
    at = _uniform(rng, -1, 1, 2, count, 1, 1, 1)
    direction = _uniform(rng, 0, 2 * np.pi, count, 1, 1, 1)
    radius = 0.25 * 16 ** _uniform(rng, 0, 1, count, 1, 1, 1)
    reach = (_uniform(rng, 0.2, 0.7, count, 1, 1, 1) / radius).clip(0, 2)  # angle from the middle to either end
    width = _uniform(rng, 0.5, 1.6, count, 1, 1, 1) * (rng.random((count, 1, 1, 1)) < 0.5)  # half of it, in pixels
    cos, sin = np.cos(direction), np.sin(direction)
    dx, dy = x - at[0] + radius * cos, y - at[1] + radius * sin
    distance = np.sqrt(dx**2 + dy**2)
    along = (dx * cos + dy * sin) >= distance * np.cos(reach)
    covered: Floats = (width - abs(distance - radius) * (SIDE / 2)).clip(0, 1) * along
    return covered


def _paint(image: Floats, mask: Floats, colour: Floats) -> None:
    """Lay colour (count, 3) over image (count, 3, SIDE, SIDE) where mask (count, 1, SIDE, SIDE) is."""
    image += mask * (colour[:, :, None, None] - image)


def _blur(rng: np.random.Generator, image: Floats) -> Floats:
    """Three taps each way, of a strength from none to 1-2-1."""
    side = _uniform(rng, -0.15, 0.25, len(image), 1, 1, 1).clip(0)
    for axis in (2, 3):
        before, after = image.take(np.r_[0, : SIDE - 1], axis), image.take(np.r_[1:SIDE, SIDE - 1], axis)
        image = image + side * (before + after - 2 * image)
    return image
