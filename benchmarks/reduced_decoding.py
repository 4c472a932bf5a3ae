"""Large JPEGs decoded at a fraction of their size (Pillow's draft): how far features move, and what CPU time it saves.

    python benchmarks/reduced_decoding.py FOLDER
    python benchmarks/reduced_decoding.py FOLDER --model MODEL --enlarge 2048

fscil decodes every photo whole; this is why. A JPEG is decoded at a half, a quarter or an eighth, if so many times the
stored size are left. CPU time of this process, interleaved, the best of three. With --model, how many answers change.
--enlarge: small photos are enlarged to this short side first, with noise (deviation 8 of 255), as JPEG of quality 92.
Prints Markdown.
"""

import argparse
from io import BytesIO
from pathlib import Path
from statistics import mean, median
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fscil.classifier import Classifier
from fscil.classifier.backbones import encoder_of
from fscil.data import photos
from fscil.data.images import Resize

TIMES = (4, 3, 2, 1)  # the stored size that must be left
REPEATS = 3
QUALITY, NOISE = 92, 8.0


def enlarged(path: Path, short: int, generator: np.random.Generator) -> bytes:
    """A JPEG whose sides are multiples of 8."""
    with Image.open(path) as image:
        ratio = short / min(image.size)
        width, height = (max(short, round(side * ratio / 8) * 8) for side in image.size)
        pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    pixels += generator.normal(0, NOISE, pixels.shape)
    file = BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def reduction(size: tuple[int, int], enough: int) -> int:
    """The largest that leaves enough pixels, and every pixel in its place."""
    fits = (by for by in (8, 4, 2) if min(size) >= by * enough and not size[0] % by and not size[1] % by)
    return next(fits, 1)


def decode(content: bytes, resize: Resize, by: int) -> tuple[NDArray[np.uint8], float]:
    """Pixels as the network gets them, and CPU seconds."""
    seconds = []
    for _ in range(REPEATS):
        began = process_time()
        image = Image.open(BytesIO(content))
        if by > 1:
            image.draft(image.mode, (image.width // by, image.height // by))
        pixels = photos.pixels(image, resize)
        seconds.append(process_time() - began)
    return pixels, min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--enlarge", type=int)
    parser.add_argument("--each", type=int, help="photos of each folder")
    args = parser.parse_args()
    model = Classifier.load(args.model) if args.model else None
    encoder = model.encoder if model else encoder_of("efficientnet_lite0")
    resize, generator = encoder.config.resize, np.random.default_rng(0)
    side = resize.size if isinstance(resize.size, int) else max(resize.size or (1,))
    taken: dict[Path, int] = {}
    rows: dict[int, list[tuple[float, float, bool]]] = {times: [] for times in TIMES}
    for path in photos.files(args.folder):
        taken[path.parent] = taken.get(path.parent, 0) + 1
        if path.suffix.lower() not in (".jpg", ".jpeg") or (args.each and taken[path.parent] > args.each):
            continue
        content = enlarged(path, args.enlarge, generator) if args.enlarge else path.read_bytes()
        size = Image.open(BytesIO(content)).size
        found = {by: decode(content, resize, by) for by in {1, *(reduction(size, times * side) for times in TIMES)}}
        features = {by: encoder.encode([encoder.preprocess(pixels)])[0] for by, (pixels, _) in found.items()}
        nearest = {
            by: model.predict_features(row[None])[0].ranking[0][0] if model else "" for by, row in features.items()
        }
        for times in TIMES:
            if (by := reduction(size, times * side)) > 1:
                cosine = float(torch.cosine_similarity(features[by], features[1], dim=0))
                rows[times].append((cosine, found[by][1] / found[1][1], nearest[by] != nearest[1]))
    print(
        "| left, times the stored size | photos | cosine, mean | lowest | CPU time, median | largest | other answers |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for times, values in rows.items():
        if values:
            cosines, ratios, other = zip(*values, strict=True)
            figures = f"{mean(cosines):.5f} | {min(cosines):.5f} | {median(ratios):.2f} | {max(ratios):.2f}"
            print(f"| {times} | {len(values)} | {figures} | {sum(other) if model else '-'} |")


if __name__ == "__main__":
    main()
