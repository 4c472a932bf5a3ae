"""kill -9 at random moments, over and over: nothing that was acknowledged is lost, and the next start works.

python benchmarks/crash.py [--kills 1000] [--seed 0] [SCENARIO …]     kills are of all scenarios together

A process is forked, works and acknowledges what it has done through a pipe, and is killed within a tenth of a
second. Then what it left is read and compared with what was acknowledged, and work goes on in the same folder.
Ends with a table, and with exit code 1 if anything was lost.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fscil.classifier.model_folder import Changed, ModelFolder
from fscil.config import Config
from fscil.data import Resize, prepare
from fscil.data.images import Dataset, FilePixels, Images
from fscil.runtime.files import load_tensors, save_tensors
from fscil.training.run_folder import Run

LONGEST = 0.1  # seconds that a process works


class Scenario:
    """One kind of work in one folder; numbers count up over all processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def work(self, start: int, acknowledge: Callable[[int], None]) -> None:
        """In the process that will be killed: write start, start + 1, … and acknowledge each."""
        raise NotImplementedError

    def survived(self) -> int:
        """In the parent: the last number that is there. Raises for anything torn, lost in between or doubled."""
        raise NotImplementedError


class ReplacedFile(Scenario):
    """A checkpoint that is replaced."""

    def work(self, start: int, acknowledge: Callable[[int], None]) -> None:
        for number in range(start, 10**9):
            save_tensors(self.folder / "x.safetensors", {k: torch.full((2000,), number) for k in "ab"}, {"n": number})
            acknowledge(number)

    def survived(self) -> int:
        path = self.folder / "x.safetensors"
        if not path.exists():
            return 0
        tensors, about = load_tensors(path)
        assert all(tensor.unique().tolist() == [about["n"]] for tensor in tensors.values()), "mixed"
        return int(about["n"])


class MetricLines(Scenario):
    """The log of a training run, which is rewound at every start."""

    def work(self, start: int, acknowledge: Callable[[int], None]) -> None:
        run = Run(self.folder)
        run.rewind(start - 1)
        for number in range(start, 10**9):
            run.log(step=number, loss=1 / number)
            acknowledge(number)

    def survived(self) -> int:
        steps = [line["step"] for line in Run(self.folder).metrics()]
        assert steps == list(range(1, len(steps) + 1)), "lines lost or doubled"
        return len(steps)


class NewRuns(Scenario):
    """Run folders that are created, one after the other."""

    def work(self, start: int, acknowledge: Callable[[int], None]) -> None:
        for number in range(start, 10**9):
            Run.create(self.folder / str(number), Config(), {"number": number})
            acknowledge(number)

    def survived(self) -> int:
        last = max((int(path.name) for path in self.folder.iterdir()), default=0)
        if last:
            place = self.folder / str(last)
            run = Run.open(place) if (place / "run.json").exists() else Run.create(place, Config(), {"number": last})
            assert run.about()["number"] == last
            assert run.config() == Config()
            with run.locked():
                assert not list(place.glob("*.part")), "leftovers"
        return last


class Journal(Scenario):
    """Photos enrolled into a model, which compacts its journal now and then."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        ModelFolder(folder / "model").create({"w": torch.zeros(4)}, {"compacted": []}, {"g": torch.zeros(4)})

    def work(self, start: int, acknowledge: Callable[[int], None]) -> None:
        model = ModelFolder(self.folder / "model")
        for number in range(start, 10**9):
            model.append({"number": number})
            acknowledge(number)
            if number % 7 == 0:
                model.compact(lambda found: Changed({"compacted": _numbers(found)[-1:]}, {"g": torch.zeros(4)}))

    def survived(self) -> int:
        numbers = _numbers(ModelFolder(self.folder / "model").read())
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True, "records lost"
        return numbers[-1] if numbers else 0


def _numbers(found: object) -> list[int]:
    return [*found.about["compacted"], *(record["number"] for record in found.records)]  # type: ignore[attr-defined]


class PixelCache(Scenario):
    """Decoded pixels: either whole or made again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pixels = np.random.default_rng(0).integers(0, 256, (12, 40, 50, 3), np.uint8)
        for number, image in enumerate(self.pixels):
            Image.fromarray(image).save(folder / f"{number}.png")
        images = Images.of(FilePixels(folder, [f"{number}.png" for number in range(12)]), [0] * 12)
        self.dataset = Dataset(images, images.select([]), ("a",), "killed")

    def work(self, start: int, acknowledge: Callable[[int], None]) -> None:
        for number in range(start, 10**9):
            shutil.rmtree(self.folder / "cache", ignore_errors=True)
            prepare(self.dataset, Resize(), self.folder / "cache", quiet=True)
            acknowledge(number)

    def survived(self) -> int:
        found = prepare(self.dataset, Resize(), self.folder / "cache", quiet=True).train
        assert np.array_equal(found.batch(np.arange(12))[0], self.pixels), "other pixels"
        return 10**9  # nothing is promised but that


SCENARIOS: dict[str, type[Scenario]] = {
    "file replaced": ReplacedFile,
    "lines appended": MetricLines,
    "runs created": NewRuns,
    "photos enrolled": Journal,
    "pixels cached": PixelCache,
}


def kill_once(scenario: Scenario, start: int, seconds: float) -> int:
    """The last number that was acknowledged before the process was killed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            scenario.work(start, lambda number: os.write(write, number.to_bytes(8, "big")) and None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # it should have been killed
    os.close(write)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        raise AssertionError("the process ended by itself")
    return int.from_bytes(said[-8:], "big") if said else start - 1


def run(kind: type[Scenario], kills: int, choose: random.Random) -> tuple[int, int]:
    """How many operations were acknowledged, and how many lost."""
    acknowledged = lost = 0
    with tempfile.TemporaryDirectory() as folder:
        scenario = kind(Path(folder))
        last = 0
        for _ in range(kills):
            said = kill_once(scenario, last + 1, choose.uniform(0, LONGEST))
            acknowledged += said - last
            there = scenario.survived()
            if there < said:
                lost += said - there
            last = there if there < 10**9 else said
    return acknowledged, lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"default: all of {', '.join(SCENARIOS)}")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a torn last line is no surprise here
    chosen = options.scenarios or list(SCENARIOS)
    each = max(1, options.kills // len(chosen))
    total = 0
    print("| scenario | kills | acknowledged | lost |\n|---|---:|---:|---:|")
    for name in chosen:
        acknowledged, lost = run(SCENARIOS[name], each, random.Random(options.seed))
        total += lost
        print(f"| {name} | {each} | {acknowledged:,} | {lost} |", flush=True)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
