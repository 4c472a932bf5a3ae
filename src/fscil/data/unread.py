"""Picture files that are not read, TIFF and AVIF among them: they are named, never skipped in silence."""

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from fscil.errors import FscilWarning
from fscil.runtime.text import count, first_few

# Not decoded: each decoder is code that files of others reach (SECURITY.md).
KINDS = {
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".avif", ".avifs"), "AVIF"),
    **dict.fromkeys((".heic", ".heif"), "HEIC"),  # without its extra
    **dict.fromkeys((".jp2", ".j2k", ".jpf", ".jpx"), "JPEG 2000"),
    **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"), "raw"),
    ".jxl": "JPEG XL",
    ".svg": "SVG",
    ".psd": "PSD",
}
INSTEAD = "to JPEG or PNG"


def kind_of_content(start: bytes) -> str | None:
    """TIFF or AVIF, by the first 12 bytes of a file; None for anything else."""
    if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "TIFF"
    return "AVIF" if start[4:8] == b"ftyp" and start[8:12] in (b"avif", b"avis") else None


def warn_of_unread(files: Sequence[str | os.PathLike[str]], advice: str = "", stacklevel: int = 2) -> None:
    """How many files of which kind were skipped. advice: another way than converting them."""
    if not files:
        return
    kinds = Counter(KINDS[PurePath(file).suffix.lower()] for file in files)
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    were = count(len(files), "file was", "files were")
    warnings.warn(
        f"{were} skipped: {listed} ({first_few([str(file) for file in files])}); convert them {INSTEAD}{advice}.",
        FscilWarning,
        stacklevel + 1,
    )
