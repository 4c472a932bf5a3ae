"""How fast fscil is, beside programs that do the same: one table of ratios, measured side by side in one run.

    python benchmarks/speed.py                          # make bench: about a quarter of an hour on two quiet cores
    python benchmarks/speed.py --long --data datasets   # make bench-long DATA=datasets: also the time to accuracy

Every side runs in a process of its own and waits while another one works; rounds are interleaved and medians compared.
Only our sides ask for our allocator setting. Leave the machine alone meanwhile.

steps     a training step of batch 128, two views, four mixtures, against benchmarks/literal.py; and the floating-point
          operations per second in it (2 x multiply-adds of convolutions and linear layers, forward plus twice that
          backward) as a share of a large matrix product's
views     two-view augmentation, 32 px from pixels, 84 and 224 px from the uint8 cache, against Pillow in two workers
features  feature extraction against an ordinary ResNet-18 in torch's default layout
sessions  base prototypes and all CIFAR-100 sessions, 5-shot and 1-shot, 10 draws, against one pass of extraction
memory    peak of a training step against what autograd saves + parameters, gradients and momentum
starts    `fscil --help` and `import fscil` against a bare Python
accuracy  with --long: time to the 5-shot harmonic accuracy of the literal recipe, see speed_accuracy.py
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import speed_accuracy
from speed_images import jpeg_files
from speed_table import Row, milliseconds, write
from speed_worker import Worker, interleaved, middle

from fscil.config import load_recipe
from fscil.errors import FscilError
from fscil.training.build import dataset_of

STEP_GOALS = {64: 1.8, 32: None, 16: 2.5}  # by width; against the literal program, where it is compared
FLOP_GOALS = {64: 0.85, 32: 0.80, 16: 0.70}
QUICK_NOTE = "A trial with tiny sizes: the figures mean nothing."


@dataclass(frozen=True)
class Sizes:
    """How much work a round is."""

    batch: int = 128
    hidden: int = 2048
    narrowest: int = 0  # quick: every network has this width
    rounds: int = 5
    slow_rounds: int = 3  # where a round takes some ten seconds
    slowest_rounds: int = 2  # and where it takes a minute
    matmul: int = 4096
    views: int = 1024
    photos: int = 128
    images: int = 2048  # of feature extraction at width 16
    train: int = 500  # per class, of the sessions
    test: int = 100

    def width(self, width: int) -> int:
        return self.narrowest or width

    def step(self, width: int) -> dict[str, int]:
        return {"width": self.width(width), "batch": self.batch, "hidden": self.hidden}


QUICK = Sizes(8, 64, 8, 1, 1, 1, 128, 16, 4, 8, 6, 2)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def seconds_of(rounds: dict[str, list[dict[str, float]]]) -> dict[str, list[float]]:
    return {side: [each["seconds"] for each in figures] for side, figures in rounds.items()}


def faster(what: str, rounds: dict[str, list[dict[str, float]]], against: str, goal: float) -> Row:
    """rounds: of "ours", of the side called `against`, and maybe of others."""
    rounds = {side: rounds[side] for side in ("ours", against)}
    ours, theirs = (middle(figures) for figures in rounds.values())
    cells = milliseconds(ours), f"{milliseconds(theirs)} ({against})"
    return Row(what, *cells, theirs / ours, goal, "times faster", seconds_of(rounds))


def steps(sizes: Sizes) -> list[Row]:
    speed, share = [], []
    for width, goal in STEP_GOALS.items():
        say(f"training step, width {width} …")
        count = {64: sizes.slowest_rounds, 32: sizes.slow_rounds}.get(width, sizes.rounds)
        options = {**sizes.step(width), "steps": 1 if width > 16 or sizes.narrowest else 3}
        sides = {"ours": Worker("ours", "training_step", **options)}
        sides["matrix product"] = Worker("baselines", "matmul", size=sizes.matmul)
        if goal:
            sides["literal"] = Worker("baselines", "training_step", **options)
        rounds = interleaved(sides, count)
        if goal:
            speed.append(faster(f"training step, width {width}", rounds, "literal", goal))
        ours, peak = middle(rounds["ours"], "flops"), middle(rounds["matrix product"], "flops")
        cells = f"{ours / 1e9:.3g} GFLOP/s", f"{peak / 1e9:.3g} GFLOP/s (matrix product)"
        every = {side: [each["flops"] for each in rounds[side]] for side in ("ours", "matrix product")}
        what = f"operations per second in the step, width {width}"
        share.append(Row(what, *cells, ours / peak, FLOP_GOALS[width], "share", every))
    return speed[::-1] + share


def views(sizes: Sizes) -> list[Row]:
    say("two views, 32 px …")
    options = {"size": 32, "batch": min(128, sizes.views), "count": sizes.views}
    sides = {"ours": Worker("ours", "two_views", **options)}
    sides["Pillow in two workers"] = Worker("baselines", "two_views", **options)
    rows = [faster("two views, 32 px, per image", interleaved(sides, sizes.rounds), "Pillow in two workers", 5.0)]
    for size, resize, width, height in ((84, [92, 92], 100, 100), (224, 256, 500, 375)):
        say(f"two views, {size} px …")
        with tempfile.TemporaryDirectory() as place:
            files = jpeg_files(Path(place) / "photos", sizes.photos, width, height)
            count = 4 * sizes.photos if size == 84 else 2 * sizes.photos
            options = {"size": size, "batch": min(64, count), "count": count, "files": files, "resize": resize}
            sides = {"ours": Worker("ours", "two_views", **options, cache=place)}
            sides["Pillow in two workers, from JPEG"] = Worker("baselines", "two_views", **options)
            rounds = interleaved(sides, sizes.rounds)
        rows.append(faster(f"two views, {size} px, per image", rounds, "Pillow in two workers, from JPEG", 4.0))
    return rows


def features(sizes: Sizes) -> list[Row]:
    rows = []
    for width in (16, 64):
        say(f"feature extraction, width {width} …")
        count = sizes.images if width == 16 else max(8, sizes.images // 8)
        options = {"width": sizes.width(width), "count": count}
        sides = {"ours": Worker("ours", "features", **options)}
        sides["plain eager NCHW"] = Worker("baselines", "features", **options)
        what = f"feature extraction, width {width}, per image"
        rows.append(faster(what, interleaved(sides, sizes.rounds), "plain eager NCHW", 2.0))
    return rows


def sessions(sizes: Sizes, data: Path | None) -> list[Row]:
    say("all sessions …")
    options = {"width": sizes.width(16), "train": sizes.train, "test": sizes.test, "data": str(data) if data else None}
    sides = {name: Worker("ours", name, **options) for name in ("sessions", "one_pass")}
    rounds = interleaved(sides, sizes.slowest_rounds)
    ours, one = middle(rounds["sessions"]), middle(rounds["one_pass"])
    cells = milliseconds(ours), f"{milliseconds(one)} (one pass of feature extraction)"
    what = "all sessions, 5-shot and 1-shot, 10 draws, width 16"
    return [Row(what, *cells, ours / one, 1.1, "times at most", seconds_of(rounds))]


def memory(sizes: Sizes) -> list[Row]:
    say("memory of a training step …")
    rounds = []
    for _ in range(sizes.slow_rounds):  # a fresh process each: memory that was kept would not be taken again
        with Worker("ours", "step_memory", **sizes.step(16)) as worker:
            rounds.append(worker.round())
    names = ("peak", "needed", "needed at once")
    peak, needed, at_once = (middle(rounds, name) for name in names)
    theirs = (
        f"{needed / 2**20:.0f} MiB (saved tensors of both views, parameters, gradients, momentum; "
        f"{at_once / 2**20:.0f} MiB of it at once)"
    )
    cells = f"{peak / 2**20:.0f} MiB", theirs
    every = {name: [each[name] for each in rounds] for name in names}
    return [Row("peak memory of a training step, width 16", *cells, peak / needed, 1.3, "times at most", every)]


def starts(sizes: Sizes) -> list[Row]:
    say("starts …")
    command = Path(sys.executable).with_name("fscil")
    from_source = [sys.executable, "-c", "from fscil.cli import main; main()"]
    calls = {
        "bare Python": [sys.executable, "-c", "pass"],
        "import fscil": [sys.executable, "-c", "import fscil"],
        "fscil --help": [*([str(command)] if command.exists() else from_source), "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(2 * sizes.rounds + 1):
        for name, call in calls.items():
            began = perf_counter()
            subprocess.run(call, check=True, stdout=subprocess.DEVNULL)
            if number:  # the first time, files come from the disk
                times[name].append(perf_counter() - began)
    bare = median(times["bare Python"])
    rows = []
    for name in ("fscil --help", "import fscil"):
        took = median(times[name])
        every = {side: times[side] for side in (name, "bare Python")}
        cells = f"`{name}`", milliseconds(took), f"{milliseconds(bare)} (bare Python)"
        rows.append(Row(*cells, took - bare, 0.5, "seconds more", every))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = ("steps", "views", "features", "sessions", "memory", "starts")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=groups,
        default=groups,
        help="these parts of the table; --only --long: none of them",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: does it run? The figures are void")
    parser.add_argument(
        "--out", type=Path, default=Path("results/speed"), help="two files, .json and .md (default: %(default)s)"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of CIFAR-100, for the sessions (else random pixels) and --long"
    )
    parser.add_argument("--long", action="store_true", help="add the time to accuracy: about an hour more")
    speed_accuracy.add_options(parser)
    given = parser.parse_args()
    if given.long and not given.data and not given.quick:
        parser.error("--long trains on CIFAR-100: give its folder with --data DIR (make bench-long DATA=DIR)")
    if given.data:
        try:
            dataset_of(load_recipe("cifar100"), given.data)
        except FscilError as error:  # now, not after a quarter of an hour
            parser.error(str(error))
    sizes = QUICK if given.quick else Sizes()
    measure: dict[str, Callable[[], list[Row]]] = {
        "steps": lambda: steps(sizes),
        "views": lambda: views(sizes),
        "features": lambda: features(sizes),
        "sessions": lambda: sessions(sizes, given.data),
        "memory": lambda: memory(sizes),
        "starts": lambda: starts(sizes),
    }
    began, rows = perf_counter(), []
    try:
        for name in given.only:
            found = measure[name]()
            for row in found:
                say("  " + "  ".join(row.cells()))
            rows += found
        if given.long:
            rows.append(speed_accuracy.measure(given))
    except KeyboardInterrupt:
        say("stopped: nothing was written" + (f"; {given.work} continues where it stopped" if given.long else ""))
        sys.exit(130)
    say(f"{perf_counter() - began:.0f} s")
    print(write(given.out, rows, QUICK_NOTE if given.quick else ""), end="")


if __name__ == "__main__":
    main()
