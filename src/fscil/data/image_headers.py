"""What the headers of an image file say about the cost of decoding it, read without decoding anything.

Only bytes are looked at, with a few comparisons per segment: safe and cheap for files from anywhere.
"""

import re
from collections.abc import Iterator

MAX_SCANS = 30  # of a progressive JPEG; encoders write about ten, and each costs a pass over all pixels
MAX_SCANNED_PIXELS = 640_000_000  # over all scans: twelve of 53 megapixels, or 30 of 21

START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9
FRAME_HEADERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0 to SOF15; the others are tables
SEQUENTIAL = frozenset({0xC0, 0xC1})
WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})  # markers that no segment follows
# In compressed data 0xFF is followed by 0x00 or by a restart marker; anything else is the marker after the scan.
MARKER = re.compile(rb"\xff([^\x00\xff])")
MARKER_AFTER_SCAN = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")


def image_size(content: bytes) -> tuple[int, int] | None:
    """(height, width) as the header of a JPEG, PNG, GIF, BMP or WebP file has it; None for anything else."""
    if content[:2] == b"\xff\xd8":
        return _jpeg_size(content)
    if content[:8] == b"\x89PNG\r\n\x1a\n" and content[12:16] == b"IHDR":
        return _number(content[20:24]), _number(content[16:20])
    if content[:6] in (b"GIF87a", b"GIF89a"):
        return _little(content[8:10]), _little(content[6:8])
    if content[:2] == b"BM":
        return _bmp_size(content)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _webp_size(content)
    return None


def scan_count(content: bytes, stop_after: int = MAX_SCANS) -> int:
    """How many scans of a JPEG are decoded, counted up to one more than `stop_after`; 0 for other files."""
    scans, sequential, components = 0, False, 0
    for marker, at in _segments(content):
        if marker in FRAME_HEADERS:
            sequential, components = marker in SEQUENTIAL, _number(content[at + 7 : at + 8])
        elif marker == START_OF_SCAN:
            if sequential and _number(content[at + 2 : at + 3]) == components:
                return 1  # a scan with everything in it: as in most photos, whose data need not be searched
            scans += 1
            if scans > stop_after:
                break
    return scans


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """The markers of a JPEG up to its end, each with the position of its segment; what follows the end is no part."""
    if content[:2] != b"\xff\xd8":
        return
    at, pattern = 2, MARKER
    while found := pattern.search(content, at):
        marker, at = found[1][0], found.end()
        if marker == END_OF_IMAGE:
            return
        yield marker, at
        if marker not in WITHOUT_LENGTH:
            at += max(2, _number(content[at : at + 2]))
        pattern = MARKER_AFTER_SCAN if marker == START_OF_SCAN else MARKER


def _jpeg_size(content: bytes) -> tuple[int, int] | None:
    """The largest of its frame headers: there should be one, and which of several counts is up to the decoder."""
    sizes = []
    for marker, at in _segments(content):
        if marker in FRAME_HEADERS:
            sizes.append((_number(content[at + 3 : at + 5]), _number(content[at + 5 : at + 7])))
        if marker == START_OF_SCAN:
            break
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


def _bmp_size(content: bytes) -> tuple[int, int]:
    if _little(content[14:18]) == 12:  # the header of OS/2
        return _little(content[20:22]), _little(content[18:20])
    height = int.from_bytes(content[22:26], "little", signed=True)  # negative: the top row comes first
    return abs(height), _little(content[18:22])


def _webp_size(content: bytes) -> tuple[int, int] | None:
    match content[12:16]:
        case b"VP8X":  # with alpha, animation or metadata
            return _little(content[27:30]) + 1, _little(content[24:27]) + 1
        case b"VP8L":  # lossless: 14 bits each
            bits = _little(content[21:25])
            return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        case b"VP8 ":
            return _little(content[28:30]) & 0x3FFF, _little(content[26:28]) & 0x3FFF
    return None


def _number(content: bytes) -> int:
    return int.from_bytes(content, "big")


def _little(content: bytes) -> int:
    return int.from_bytes(content, "little")
