"""What fit, train and predict say how long they will take, and how long they take.

    python benchmarks/estimates.py PHOTOS
    python benchmarks/estimates.py PHOTOS --sizes 5x20,15x40 --finetune

PHOTOS: one folder of photos per class. Of it, folders of several sizes (classes x photos of each) are made from
symbolic links, and `fscil fit` is run on each; with --finetune also `fit --finetune` for two epochs, on the smallest.
`fscil train glyphs` is run for one epoch. Estimate and time are from the line "time on this machine" to the end of the
command. `fscil predict` has no such line: its estimate is what its first line of progress says, which comes after 20
seconds, so the photos are given often enough to last longer (--repeat). Wall time: nothing else should run. Prints
Markdown.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fscil.data import photos

ABOUT = re.compile(r"time on this machine .*: about (.+)$")
PROGRESS = re.compile(r"^photos: (\d+)/(\d+), (.+) left")
UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86400}


def seconds_of(text: str) -> float:
    """Of "12 s", "3 min 05 s", "2 h 10 min", "4.2 days"."""
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", text))


def measure(arguments: Sequence[str | os.PathLike[str]]) -> tuple[float, float] | None:
    """Estimated and actual seconds of a command; None where it said no time, because it was done before."""
    command = [sys.executable, "-m", "fscil", *map(os.fspath, arguments)]
    began, estimated, since = time.monotonic(), None, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if estimated is None and (found := ABOUT.search(line)):
                estimated, since = seconds_of(found[1]), time.monotonic()
            elif estimated is None and (found := PROGRESS.match(line)):
                estimated, since = time.monotonic() - began + seconds_of(found[3]), began
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return None if estimated is None else (estimated, time.monotonic() - since)


def linked(source: Path, target: Path, classes: int, each: int) -> Path:
    """A folder of so many classes with so many photos, the first ones that have them."""
    folders = [folder for folder in sorted(source.iterdir()) if folder.is_dir()]
    found = ((folder.name, photos.files(folder)) for folder in folders)
    enough = [(name, files) for name, files in found if len(files) >= each][:classes]
    if len(enough) < classes:
        raise SystemExit(f"{source}: only {len(enough)} of {classes} classes have {each} photos.")
    for name, files in enough:
        (target / name).mkdir(parents=True)
        for file in files[:each]:
            (target / name / file.name).symlink_to(file.resolve())
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="5x20,15x40,60x20,50x50", help="of folders: classes x photos of each")
    parser.add_argument("--finetune", action="store_true")
    parser.add_argument("--repeat", type=int, default=10, help="how often predict gets the last folder")
    args = parser.parse_args()
    print("| command | estimate | time | estimate / time |")
    print("|---|---:|---:|---:|")

    def row(name: str, arguments: Sequence[str | os.PathLike[str]]) -> None:
        found = measure(arguments)
        text = f"{found[0]:.0f} s | {found[1]:.1f} s | {found[0] / found[1]:.2f}" if found else "none | |"
        print(f"| {name} | {text} |", flush=True)

    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        sizes = args.sizes.split(",")
        for size in sizes:
            classes, each = map(int, size.split("x"))
            folder = linked(args.folder, work / size, classes, each)
            row(f"`fit`, {classes} classes x {each} photos", ["fit", folder, "-o", work / f"{size}.fscil"])
        if args.finetune:
            tuned = ["fit", work / sizes[0], "-o", work / "tuned.fscil", "--finetune", "--set", "train.epochs=2"]
            row(f"`fit --finetune --set train.epochs=2`, {sizes[0]}", tuned)
        train = ["train", "glyphs", "--set", "train.epochs=1"]
        row(f"`{' '.join(train)}`", [*train, "--out", work / "run"])
        last = sizes[-1]
        row(
            f"`predict`, {last} photos, {args.repeat} times",
            ["predict", work / f"{sizes[0]}.fscil", *[work / last] * args.repeat, "--json"],
        )


if __name__ == "__main__":
    main()
