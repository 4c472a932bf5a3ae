"""How long enrolling a class from 5 photos and naming 1 photo take, and where the time goes, by size of the gallery.

    python benchmarks/latency.py --photos photos > latency.md

The network is the pretrained EfficientNet-lite0 at 224 pixels; all classes but the measured ones are random features.
Each figure is the median of repeated calls in milliseconds, after a few that do not count:

decode       from the file to the network's input; for enrolling also the digest and the thumbnail
network      from its input to the feature
gallery      enroll: the new class mean; predict: cosines to all classes, the score for "unknown", the two nearest
bookkeeping  enroll: the journal, flushed to the disk; predict: looking whether another process changed the model
whole        the call as a user makes it, in which photos are decoded by several threads

A journal that has grown as large as its snapshot is folded into a new one; this rare moment is not in the medians.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from PIL import Image

from fscil.classifier import Classifier, StoredClassifier
from fscil.data import photos
from fscil.gallery import Photo
from fscil.openset import DEFAULT_SCORE, Calibration
from fscil.runtime.allocator import tune_allocator
from fscil.training.run_folder import machine

SHOTS = 5
WARM_UP = 3
SIZE = (1600, 1200)  # of photos made up where none are given


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
        feature = torch.rand(model.network.dim, generator=random)
        model.gallery.enroll(f"class {number}", [Photo(str(number), feature, "random", "2026-01-01T00:00:00+00:00")])
    model.calibration = Calibration(DEFAULT_SCORE, 0.5, 0.05, None, 0, 0)
    return model


def predict_times(stored: StoredClassifier, files: list[Path], repeats: int) -> list[float]:
    model = stored.classifier

    def read(file: Path) -> torch.Tensor:
        return model.network.prepare(photos.pixels(file, model.resize))

    inputs = [read(file) for file in files]
    features = [model.network.embed([each]) for each in inputs]
    decode = milliseconds(lambda n: read(files[n % len(files)]), repeats)
    network = milliseconds(lambda n: model.network.embed([inputs[n % len(files)]]), repeats)
    gallery = milliseconds(lambda n: model.answer(features[n % len(files)]), repeats)
    bookkeeping = milliseconds(lambda n: stored.refresh(), repeats)

    def whole(n: int) -> None:
        stored.refresh()
        model.predict(files[n % len(files)])

    return [decode, network, gallery, bookkeeping, milliseconds(whole, repeats)]


def enroll_times(stored: StoredClassifier, files: list[Path], repeats: int) -> list[float]:
    model, chosen = stored.classifier, files[:SHOTS]

    def read() -> list[torch.Tensor]:
        return [model.network.prepare(photos.load(file, model.resize).pixels) for file in chosen]

    inputs, prepared = read(), model.photos(chosen)
    decode = milliseconds(lambda n: read(), repeats)
    network = milliseconds(lambda n: model.network.embed(inputs), repeats)
    gallery = milliseconds(lambda n: model.gallery.enroll(f"in memory {n}", prepared), repeats)
    on_disk = milliseconds(lambda n: stored.enroll_prepared(f"on disk {n}", prepared), repeats)
    whole = milliseconds(lambda n: stored.enroll(f"whole {n}", chosen), repeats)
    return [decode, network, gallery, on_disk - gallery, whole]


def made_up(folder: Path) -> list[Path]:
    """Smooth noise as JPEG, about as hard to decode as photos."""
    files = []
    for number in range(2 * SHOTS):
        small = np.random.default_rng(number).integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), np.uint8)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC).save(files[-1], quality=90)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--photos", type=Path, help=f"a folder with at least {SHOTS} photos; without it some are made up"
    )
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1_000, 100_000])
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    tune_allocator()
    print(", ".join(f"{key} {value}" for key, value in machine().items()), end="\n\n")
    print("| classes | call | decode | network | gallery | bookkeeping | whole | gallery + bookkeeping / network |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as place:
        files = photos.files(options.photos)[:50] if options.photos else made_up(Path(place))
        if len(files) < SHOTS:
            parser.error(f"{options.photos} has {len(files)} photos, {SHOTS} are needed")
        for classes in options.classes:
            model = Path(place) / f"{classes}.fscil"
            filled(classes).save(model)
            with StoredClassifier.open(model, "cpu") as stored:
                measured = {
                    "predict 1": predict_times(stored, files, options.repeats),
                    f"enroll {SHOTS}": enroll_times(stored, files, options.repeats),
                }
            for call, times in measured.items():
                _, network, gallery, bookkeeping, _ = times
                cells = " | ".join(f"{time:.2f}" for time in times)
                print(f"| {classes:,} | {call} | {cells} | {(gallery + bookkeeping) / network:.1%} |", flush=True)


if __name__ == "__main__":
    main()
