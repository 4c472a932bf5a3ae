"""A decoded image as three channels, upright, on white: what it costs is bounded, because files come from anywhere."""

from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image, ImageOps

MAX_DECODE_BYTES = 2**29  # that decoding an image may take
BAND_PIXELS = 2**20  # converted at once: a copy of a large photo takes hundreds of megabytes

# Of Pillow's images; only these have less than four.
BYTES_PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
RGB_BYTES = 4
BAND_BYTES = 2**24  # copies of a band
# What decoders allocate beside the image: of a progressive JPEG all coefficients; WebP and HEIC whole frames.
PROGRESSIVE_JPEG_BYTES, FRAME_BYTES = 6, 12


def decode_bytes(image: Image.Image) -> int:
    """About how much memory decoding and converting takes; image: opened, not loaded."""
    own = BYTES_PER_PIXEL.get(image.mode, 4)
    if image.format in ("WEBP", "HEIF"):
        loading = own + FRAME_BYTES
    else:
        loading = own + (PROGRESSIVE_JPEG_BYTES if image.info.get("progressive") else 0)
    copies = image.mode != "RGB" or "transparency" in image.info
    return image.width * image.height * max(loading, own + RGB_BYTES * copies) + BAND_BYTES


def upright_rgb(image: Image.Image) -> Image.Image:
    """Turned as its EXIF tag says, in three channels, on white where it is transparent."""
    image.load()  # in a PNG the tag may come after the pixels
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" and not image.has_transparency_data:
        return image  # not a copy
    if image.width * image.height <= BAND_PIXELS:
        return _rgb(image)
    converted = Image.new("RGB", image.size)
    for top, band in bands(image):
        converted.paste(_rgb(band), (0, top))
    return converted


def bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The image from top to bottom in parts of some rows, each with the number of its first row."""
    rows = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grayscale: Pillow's own conversion clips instead of scaling
        wide = np.asarray(image).astype(np.int32).clip(0, 65535)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGB", rgba.size, "white")
        white.paste(rgba, mask=rgba)
        return white
    return image.convert("RGB")
