"""How cost grows with classes, image size, images, shots and sessions, and with which power of each.

    python benchmarks/scaling.py                 # writes results/scaling.json and results/scaling.svg

classes     a training step of batch 128, width 16, two views, four mixtures, on random images: seconds and peak memory.
            With class augmentation the head has C + C(C-1)/2 outputs; what this machine's memory cannot hold is left
            out, with what it would take. Then with at most as many pairs as 200 classes have, drawn by the seed
image size  the same step at batch 32
images      extracting their features, width 16
shots       enrolling a session of 5 classes in a gallery of 100
sessions    enrolling one more session of 5 classes with 5 images, and naming 1,000 images, after so many

Every training step and extraction runs in a fresh process. An exponent is the slope of a least-squares line through the
logarithms. Leave the machine alone meanwhile: a few minutes.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from speed_ours import recipe
from speed_worker import Worker, middle

from fscil.gallery import Gallery, Photo
from fscil.report.figures import COLOURS, MARKERS, draw
from fscil.runtime.files import write_json, write_text
from fscil.training.base_training import new_base_network
from fscil.training.context import Context
from fscil.training.run_folder import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAY, SHOTS, QUERIES, DIM = 5, 5, 1000, 512
HEAD_COPIES = 9  # of the head's weight at the worst moment of a step: itself, gradient, momentum, unit vectors, …
SCORE_COPIES = 8  # of the scores of a batch


@dataclass(frozen=True)
class Sizes:
    classes: tuple[int, ...] = (60, 100, 200, 400, 1000)
    few_pairs: int = 19900  # where pairs are sampled; the first number of sampled_classes has no more
    sampled_classes: tuple[int, ...] = (200, 400, 1000)
    sizes: tuple[int, ...] = (32, 64, 96, 128)
    images: tuple[int, ...] = (512, 1024, 2048, 4096)
    shots: tuple[int, ...] = (1, 5, 25, 125)
    sessions: tuple[int, ...] = (8, 80, 800, 8000)
    width: int = 16
    batch: int = 128
    small_batch: int = 32
    hidden: int = 2048
    rounds: int = 3
    repeats: int = 20  # of what takes milliseconds


QUICK = Sizes((4, 8), 6, (4, 8), (16, 32), (8, 16), (1, 5), (2, 8), 8, 8, 4, 64, 1, 1)


@dataclass(frozen=True)
class Series:
    """One cost against one size."""

    grows: str  # the size
    cost: str
    unit: str
    points: list[tuple[float, float]]

    @property
    def exponent(self) -> float:
        x, y = np.log(self.points).T
        return float(np.polyfit(x, y, 1)[0])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def available_memory() -> int:
    """Bytes that can be taken before the machine swaps."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/meminfo has no MemAvailable: run this on Linux.")


def head_memory(classes: int, batch: int) -> int:
    """About what the head of a step takes, from its shape alone."""
    config = recipe("model.width=8")
    with torch.device("meta"):
        head = new_base_network(config, classes, Context(torch.device("meta"))).head
    through = batch * (1 + config.mixing.repeats)
    return 4 * (HEAD_COPIES * head.weight.numel() + SCORE_COPIES * through * head.out_features)


def steps(sizes: Sizes, left_out: list[str]) -> Iterator[Series]:
    """Seconds and memory of a step by classes and by image size."""

    def measured(**options: int) -> tuple[float, float]:
        with Worker("ours", "training_step", **options, steps=1) as worker:
            seconds = middle([worker.round() for _ in range(sizes.rounds)])
        with Worker("ours", "step_memory", **options) as worker:
            peak = worker.round()["peak"]
        return seconds, peak

    model = {"width": sizes.width, "hidden": sizes.hidden}
    found: list[tuple[int, float, float]] = []
    for classes in sizes.classes:
        needed, there = head_memory(classes, sizes.batch), available_memory()
        if needed > 0.8 * there:
            left_out.append(
                f"{classes:,} classes: the head of a step would take about {needed / 1e9:.0f} GB, there are "
                f"{there / 1e9:.0f} GB"
            )
            say(f"left out, {left_out[-1]}")
            continue
        found.append((classes, *measured(**model, batch=sizes.batch, classes=classes)))
        say(f"{classes} classes: {found[-1][1]:.2f} s, {found[-1][2] / 1e9:.2f} GB per step")
    yield from _two_series("base classes", found)
    found = []
    for classes in sizes.sampled_classes:
        found.append((classes, *measured(**model, batch=sizes.batch, classes=classes, pairs=sizes.few_pairs)))
        say(f"{classes} classes, sampled pairs: {found[-1][1]:.2f} s, {found[-1][2] / 1e9:.2f} GB per step")
    yield from _two_series(f"base classes, at most {sizes.few_pairs:,} pairs", found)
    found = []
    for size in sizes.sizes:
        found.append((size, *measured(**model, batch=sizes.small_batch, size=size)))
        say(f"{size} px: {found[-1][1]:.2f} s, {found[-1][2] / 1e9:.2f} GB per step")
    yield from _two_series("image size", found)


def _two_series(grows: str, found: list[tuple[int, float, float]]) -> Iterator[Series]:
    yield Series(grows, "training step", "s", [(size, seconds) for size, seconds, _ in found])
    yield Series(grows, "its peak memory", "GB", [(size, peak / 1e9) for size, _, peak in found])


def images(sizes: Sizes) -> Series:
    points = []
    for count in sizes.images:
        with Worker("ours", "features", width=sizes.width, count=count) as worker:
            points.append((count, count * middle([worker.round() for _ in range(sizes.rounds)])))
        say(f"{count} images: features in {points[-1][1]:.2f} s")
    return Series("images", "feature extraction", "s", points)


def photos(name: str, count: int, random: torch.Generator) -> list[Photo]:
    features = torch.rand(count, DIM, generator=random)
    return [Photo(f"{name} {place}", feature, "random", "2026-01-01") for place, feature in enumerate(features)]


def filled(classes: int, random: torch.Generator) -> Gallery:
    gallery = Gallery(DIM)
    for number in range(classes):
        gallery.enroll(f"class {number}", photos(f"class {number}", 1, random))
    return gallery


def timed(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def session_time(gallery: Gallery, shots: int, repeats: int, random: torch.Generator) -> float:
    """Median seconds to enroll one more session; it is forgotten again, which is not timed."""
    session = {f"new {number}": photos(f"new {number}", shots, random) for number in range(WAY)}

    def enroll() -> None:
        for name, content in session.items():
            gallery.enroll(name, content)

    times = []
    for _ in range(repeats + 1):
        times.append(timed(enroll))
        for name in session:
            gallery.forget(name)
    return median(times[1:])


def galleries(sizes: Sizes) -> Iterator[Series]:
    random = torch.Generator().manual_seed(0)
    gallery = filled(100, random)
    points = [(shots, session_time(gallery, shots, sizes.repeats, random)) for shots in sizes.shots]
    for shots, seconds in points:
        say(f"{shots} shots: {1000 * seconds:.3g} ms to enroll a session")
    yield Series("shots", "enrolling a session", "s", points)
    enroll, name = [], []
    queries = torch.rand(QUERIES, DIM, generator=random)
    for sessions in sizes.sessions:
        gallery = filled(sessions * WAY, random)
        enroll.append((sessions, session_time(gallery, SHOTS, sizes.repeats, random)))
        gallery.nearest(queries, 1)
        times = [timed(lambda known=gallery: known.nearest(queries, 1)) for _ in range(sizes.repeats)]
        name.append((sessions, median(times)))
        say(f"{sessions} sessions: {1000 * enroll[-1][1]:.3g} ms to enroll one, {1000 * name[-1][1]:.3g} ms to name")
    yield Series("sessions", "enrolling one more", "s", enroll)
    yield Series("sessions", f"naming {QUERIES:,} images", "s", name)


def figure(series: list[Series]) -> "Figure":
    """A panel per size, costs as multiples of the first one measured, the fitted power in the legend."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys(each.grows for each in series))
    drawing, grid = plt.subplots(2, 3, figsize=(12, 7.5), layout="constrained")
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, grows in zip(grid.flat, panels, strict=False):
        for number, each in enumerate(one for one in series if one.grows == grows):
            x, y = np.array(each.points).T
            label = f"{each.cost} ~ n^{each.exponent:.2f} ({y[0]:.2g} {each.unit} at {x[0]:g})"
            axes.loglog(x, y / y[0], color=COLOURS[(0, 5)[number]], marker=MARKERS[number], label=label)
        axes.set_xticks(x, [f"{value:g}" for value in x])
        low, high = min(0.5, axes.get_ylim()[0]), max(2.0, axes.get_ylim()[1])
        steps_of_ten = (1, 2, 5) if high / low < 100 else (1,)
        ticks = [digit * 10.0**power for power in range(-2, 6) for digit in steps_of_ten]
        ticks = [tick for tick in ticks if low <= tick <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel=grows, ylabel="multiple of the first", ylim=(low, high))
        axes.legend(loc="upper left", bbox_to_anchor=(0, 1.2), fontsize=8)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: does it run? The figures are void")
    parser.add_argument(
        "--out", type=Path, default=Path("results/scaling"), help="two files, .json and .svg (default: %(default)s)"
    )
    given = parser.parse_args()
    sizes, left_out = QUICK if given.quick else Sizes(), []
    try:
        series = [*steps(sizes, left_out), images(sizes), *galleries(sizes)]
    except KeyboardInterrupt:
        say("stopped: nothing was written")
        sys.exit(130)
    about: dict[str, Any] = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    about |= {"command": " ".join(["python", *sys.argv]), "sizes": asdict(sizes), "left out": left_out}
    about["series"] = [{**asdict(each), "exponent": each.exponent} for each in series]
    write_json(given.out.with_suffix(".json"), about)
    write_text(given.out.with_suffix(".svg"), draw("scaling", figure, series))
    print("| grows | cost | exponent | from | to |\n|---|---|---:|---|---|")
    for each in series:
        ends = " | ".join(f"{cost:.3g} {each.unit} at {size:g}" for size, cost in (each.points[0], each.points[-1]))
        print(f"| {each.grows} | {each.cost} | {each.exponent:.2f} | {ends} |")


if __name__ == "__main__":
    main()
