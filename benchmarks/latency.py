"""How long enrolling and predicting photos take, and where the time goes, by size of the gallery.

    python benchmarks/latency.py --photos photos > latency.md

The network is the pretrained EfficientNet-lite0 at 224 pixels; all classes but the measured ones are random features.
Each figure is the median of repeated calls in milliseconds, after a few that do not count. Two tables:

calls        predict and enroll of 1 and of 16 photos as a user calls them, in which several threads decode
parts        predict of 1 photo and enroll of 5, step by step:
decode       from the file to the network's input; for enrolling also the digest and the thumbnail
network      from its input to the feature
gallery      enroll: the new class mean; predict: cosines to all classes, the score for "unknown", the two nearest
bookkeeping  enroll: the journal, flushed to the disk; predict: checking whether another process changed the model
whole        the call

A journal that has grown as large as its snapshot is compacted into a new one; this rare call is not in the medians.

The first table needs public names only, so that another version can be measured with the same program:

    PYTHONPATH=other/src python benchmarks/latency.py --calls-only
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from PIL import Image

import fscil
from fscil import Classifier, tune_allocator
from fscil.classifier import StoredClassifier
from fscil.gallery import Photo
from fscil.openset import DEFAULT_SCORE, Calibration

COUNTS = (1, 16)  # photos of a call
SHOTS = 5  # photos of an enrollment whose parts are measured
WARM_UP = 3
SIZE = (1600, 1200)  # of generated photos


def milliseconds(call: Callable[[int], object], repeats: int) -> float:
    """The median over calls, each with its number."""
    times = []
    for number in range(WARM_UP + repeats):
        start = perf_counter()
        call(number)
        times.append(perf_counter() - start)
    return 1000 * median(times[WARM_UP:])


def filled(classes: int) -> Classifier:
    """The pretrained network with this many classes of one random feature each, and a threshold."""
    model = Classifier.pretrained("cpu")
    random = torch.Generator().manual_seed(0)
    for number in range(classes):
        feature = torch.rand(model.gallery.dim, generator=random)
        model.gallery.enroll(f"class {number}", [Photo(str(number), feature, "random", "2026-01-01T00:00:00+00:00")])
    model.calibration = Calibration(DEFAULT_SCORE, 0.5, 0.05, None, 0, 0)
    return model


def predict_call(stored: StoredClassifier, files: list[Path], count: int, repeats: int) -> float:
    def predict(number: int) -> None:
        stored.refresh()
        stored.classifier.predict([files[(number + place) % len(files)] for place in range(count)])

    return milliseconds(predict, repeats)


def enroll_call(stored: StoredClassifier, files: list[Path], count: int, repeats: int) -> float:
    def enroll(number: int) -> None:
        photos = stored.classifier.photos(files[:count])
        stored.enroll_photos(f"{count} photos, call {number}", distinct(photos, f"{count} {number}"))

    return milliseconds(enroll, repeats)


def distinct(photos: list[Photo], mark: str) -> list[Photo]:
    """As if they were other pictures: one that is enrolled again moves to the new class."""
    return [replace(photo, digest=f"{mark} {photo.digest}") for photo in photos]


def predict_parts(stored: StoredClassifier, files: list[Path], repeats: int) -> list[float]:
    model, encoder = stored.classifier, stored.classifier.encoder
    inputs = [encoder.read(file) for file in files]
    features = [encoder.encode([each]) for each in inputs]
    decode = milliseconds(lambda n: encoder.read(files[n % len(files)]), repeats)
    network = milliseconds(lambda n: encoder.encode([inputs[n % len(files)]]), repeats)
    gallery = milliseconds(lambda n: model.predict_features(features[n % len(files)]), repeats)
    bookkeeping = milliseconds(lambda n: stored.refresh(), repeats)
    return [decode, network, gallery, bookkeeping, predict_call(stored, files, 1, repeats)]


def enroll_parts(stored: StoredClassifier, files: list[Path], repeats: int) -> list[float]:
    model, encoder, chosen = stored.classifier, stored.classifier.encoder, files[:SHOTS]

    def read() -> list[torch.Tensor]:
        return [encoder.read_to_keep(file)[0] for file in chosen]

    inputs, photos = read(), model.photos(chosen)
    decode = milliseconds(lambda n: read(), repeats)
    network = milliseconds(lambda n: encoder.encode(inputs), repeats)
    gallery = milliseconds(lambda n: model.gallery.enroll(f"in memory {n}", photos), repeats)
    on_disk = milliseconds(lambda n: stored.enroll_photos(f"on disk {n}", distinct(photos, str(n))), repeats)
    return [decode, network, gallery, on_disk - gallery, enroll_call(stored, files, SHOTS, repeats)]


def generated(folder: Path) -> list[Path]:
    """Smooth noise as JPEG, about as hard to decode as photos."""
    files = []
    for number in range(max(COUNTS)):
        small = np.random.default_rng(number).integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), np.uint8)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC).save(files[-1], quality=90)
    return files


def calls_table(models: dict[int, Path], files: list[Path], repeats: int) -> None:
    print("| classes | photos | predict | enroll |\n|---:|---:|---:|---:|")
    for classes, model in models.items():
        with StoredClassifier.open(model, "cpu") as stored:
            for count in COUNTS:
                times = predict_call(stored, files, count, repeats), enroll_call(stored, files, count, repeats)
                print(f"| {classes:,} | {count} | {times[0]:.2f} | {times[1]:.2f} |", flush=True)


def parts_table(models: dict[int, Path], files: list[Path], repeats: int) -> None:
    print("| classes | call | decode | network | gallery | bookkeeping | whole | gallery + bookkeeping / network |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for classes, model in models.items():
        with StoredClassifier.open(model, "cpu") as stored:
            for call, measure in (("predict 1", predict_parts), (f"enroll {SHOTS}", enroll_parts)):
                times = measure(stored, files, repeats)
                _, network, gallery, bookkeeping, _ = times
                cells = " | ".join(f"{time:.2f}" for time in times)
                print(f"| {classes:,} | {call} | {cells} | {(gallery + bookkeeping) / network:.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--photos", type=Path, help=f"a folder with at least {max(COUNTS)} photos; by default some are generated"
    )
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1_000, 100_000])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--calls-only", action="store_true", help="print the first table only")
    options = parser.parse_args()
    tune_allocator()
    print(
        f"{platform.system()} {platform.machine()}, cores {os.cpu_count()}, threads {torch.get_num_threads()}, "
        f"torch {torch.__version__}, fscil {fscil.__version__} in {Path(fscil.__file__).parent}\n"
    )
    with tempfile.TemporaryDirectory() as place:
        if options.photos:
            kinds = (".jpg", ".jpeg", ".png", ".webp")
            files = sorted(each for each in options.photos.rglob("*") if each.suffix.lower() in kinds)[:50]
        else:
            files = generated(Path(place))
        if len(files) < max(COUNTS):
            parser.error(f"{options.photos} has {len(files)} photos, {max(COUNTS)} are needed")
        models = {classes: Path(place) / f"{classes}.fscil" for classes in options.classes}
        for classes, model in models.items():
            filled(classes).save(model)
        calls_table(models, files, options.repeats)
        if not options.calls_only:
            print()
            parts_table(models, files, options.repeats)


if __name__ == "__main__":
    main()
