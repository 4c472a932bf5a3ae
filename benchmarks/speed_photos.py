"""Photos: speed and memory of the service, of encoding a folder and of fit, side by side in one run.

    python benchmarks/speed_photos.py [--photos DIR] [--only serve folder memory] [--out results/speed-photos]

serve   images per second of `fscil serve`, POST /predict by 8 and 64 clients, against the same network in onnxruntime
        alone, with two threads and the batches that were served; where the CPU time of a photo goes; and the peak
        memory of the service
folder  encoding photos from their files, decoding included, against Pillow and torch eager in one process
memory  peak memory of `fscil fit` on 15 classes x 40 photos, and on a folder with panoramas, a tall screenshot and
        strips, against a process that loads the network and encodes one batch

Rounds of the sides are interleaved and medians compared. Clients share the cores with the service. Without --photos,
JPEG files of smooth noise, 640 x 480, take the place of photos. Leave the machine alone meanwhile.
"""

import argparse
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import service
from PIL import Image
from speed_images import jpeg_files
from speed_table import Row, write
from speed_worker import Worker, interleaved, middle

MB = 2**20
LONG = {
    "class 0/panorama": (8000, 900),
    "class 1/screenshot": (1080, 19000),
    "class 2/wide": (4000, 3),
    "class 3/thin": (3, 4000),
}
FIT = "from fscil.cli import main\ntry: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
ONE_BATCH = (
    "from pathlib import Path\nfrom fscil import Classifier, tune_allocator\n"
    "from fscil.classifier.encoder import BATCH\n"
    "tune_allocator(); files = sorted(Path(sys.argv[1]).rglob('*.jpg'))[:BATCH]\n"
    "Classifier.pretrained('cpu').features(files)\n"
)


def status(process: int, name: str) -> int:
    """Bytes: VmHWM, the most resident memory so far, of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/{process}/status has no {name}.")


def cpu_milliseconds(process: int) -> float:
    """CPU time of a process so far, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(process: int) -> list[int]:
    """Of all threads: decoders are started by others than the first."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(each) for thread in threads for each in thread.read_text().split()]


class CpuTime:
    """CPU time of the service, its decoders and the clients (this process), per photo."""

    def __init__(self, server: int) -> None:
        self.parts = {"service": [server], "decoders": children(server), "clients": [os.getpid()]}
        self.spent = dict.fromkeys(self.parts, 0.0)
        self.photos = 0.0

    def during(self, work: Callable[[], float], seconds: float) -> float:
        """Images per second of `work`, which takes so many seconds."""
        before = {name: sum(map(cpu_milliseconds, each)) for name, each in self.parts.items()}
        speed = work()
        for name, each in self.parts.items():
            self.spent[name] += sum(map(cpu_milliseconds, each)) - before[name]
        self.photos += speed * seconds
        return speed

    def line(self, count: int, alone: float) -> str:
        """alone: images per second of the network on both cores."""
        each = {name: spent / self.photos for name, spent in self.spent.items()}
        network, listed = 2000 / alone, ", ".join(f"{name} {value:.1f}" for name, value in each.items())
        return (
            f"CPU time of a photo, {count} clients, in milliseconds: {listed}; in all {sum(each.values()):.1f} of two "
            f"cores. The network alone takes {network:.1f} of the service's."
        )


def batches(address: str) -> tuple[float, float]:
    """Photos that passed the network, and in how many batches, since the service started."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return float(values["fscil_batch_images_sum"]), float(values["fscil_batch_images_count"])


def requests(address: str, photos: list[bytes], count: int, seconds: float) -> float:
    """Images per second."""
    clients = [service.Client(address) for _ in range(count)]
    end = time.perf_counter() + seconds

    def predict(number: int, client: service.Client) -> None:
        index = number
        while time.perf_counter() < end:
            client.send("/predict", photos[index % len(photos)])
            index += 1

    took = service.run_clients(clients, predict)
    errors = [error for client in clients for error in client.errors]
    if errors:
        sys.exit(f"{len(errors)} requests failed: {errors[0]}")
    return sum(len(client.seconds) for client in clients) / took


def serve(photos: list[bytes], counts: list[int], seconds: float, rounds: int) -> tuple[list[Row], list[str]]:
    rows, lines = [], []
    with tempfile.TemporaryDirectory() as place:
        server = service.Service(service.copied_model(None, Path(place)))
        for number in range(10):
            service.Client(server.address).send(f"/classes/class%20{number}", photos[number % len(photos)])
        idle = status(server.process.pid, "VmHWM")
        for count in counts:
            requests(server.address, photos, count, min(2, seconds))  # warm up
            before, spent = batches(server.address), CpuTime(server.process.pid)
            speeds: dict[str, list[float]] = {"ours": [], "onnxruntime alone": []}
            with_worker: Callable[[], float] | None = None
            for _ in range(rounds):
                speeds["ours"].append(
                    spent.during(lambda count=count: requests(server.address, photos, count, seconds), seconds)
                )
                if with_worker is None:
                    after = batches(server.address)
                    size = max(1, round((after[0] - before[0]) / (after[1] - before[1])))
                    with_worker = alone(size, seconds)
                speeds["onnxruntime alone"].append(with_worker())
            ours, theirs = (median(each) for each in speeds.values())
            cells = f"{ours:.1f} images/s", f"{theirs:.1f} images/s (onnxruntime alone, two threads, batches of {size})"
            rows.append(Row(f"`fscil serve`, {count} clients", *cells, ours / theirs, 0.85, "share", speeds))
            lines.append(spent.line(count, theirs))
        peak = status(server.process.pid, "VmHWM")
        server.end(signal.SIGTERM)
    cells = f"{peak / MB:.0f} MB", f"{idle / MB:.0f} MB (after ten enrollments by one client)"
    memory = {"ours": [float(peak)], "one client": [float(idle)]}
    what = f"peak memory of `fscil serve`, {max(counts)} clients, decoders not counted"
    return [*rows, Row(what, *cells, peak / idle, 2.0, "times at most", memory)], lines


def alone(size: int, seconds: float) -> Callable[[], float]:
    """The same network in onnxruntime with its defaults; images per second."""
    import onnxruntime
    import torch

    from fscil.classifier.backbones import encoder_of
    from fscil.models.engines import converted

    encoder = encoder_of("efficientnet_lite0")
    pixels = encoder.config.preprocess.crop
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    content = converted(encoder.network, torch.zeros(2, 3, pixels, pixels))
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    images = {"images": np.random.default_rng(0).random((size, 3, pixels, pixels), np.float32)}
    session.run(None, images)

    def work() -> float:
        began, done = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            session.run(None, images)
            done += size
        return done / (time.perf_counter() - began)

    return work


def folder(files: list[str], rounds: int) -> list[Row]:
    sides = {"ours": Worker("ours", "encode_folder", files=files)}
    sides["Pillow and torch eager"] = Worker("baselines", "encode_folder", files=files)
    found = interleaved(sides, rounds)
    ours, theirs = (middle(each) for each in found.values())
    every = {side: [each["seconds"] for each in figures] for side, figures in found.items()}
    cells = f"{1000 * ours:.1f} ms", f"{1000 * theirs:.1f} ms (Pillow and torch eager)"
    return [Row("encoding a folder, per photo", *cells, theirs / ours, 3.0, "times faster", every)]


def peak(program: str, *arguments: str) -> float:
    """Bytes that a program takes at most; not by getrusage, which counts what this process had when it was forked."""
    text = f"import sys\n{program}\nprint(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return 1024.0 * int(done.stdout.split("VmHWM:")[-1].split()[0])


def memory(place: Path, classes: int, each: int) -> list[Row]:
    ordinary, elongated = place / "ordinary", place / "elongated"
    for number in range(classes):
        some = [Path(file) for file in jpeg_files(ordinary / f"class {number}", each, 1600, 1200)]
        for index, path in enumerate(some):  # no two classes may have the same photo
            image = Image.open(path)
            image.paste((number, index, 0), (0, 0, 64, 64))
            image.save(path, quality=90)
    for number in range(4):
        jpeg_files(elongated / f"class {number}", 4, 640 + 16 * number, 480)
    for name, size in LONG.items():
        Image.effect_noise(size, 80).convert("RGB").save(elongated / f"{name}.png")
    rows = []
    for what, where in ((f"{classes} classes x {each} photos", ordinary), ("elongated photos", elongated)):
        one = peak(ONE_BATCH, str(ordinary))
        fitted = peak(FIT, "fit", str(where), "-o", str(place / f"{where.name}.fscil"), "--quiet")
        cells = f"{fitted / MB:.0f} MB", f"{one / MB:.0f} MB (a process with the network, one batch)"
        every = {"ours": [fitted], "one batch": [one]}
        rows.append(Row(f"peak memory of `fscil fit`, {what}", *cells, fitted / one, 2.0, "times at most", every))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="folder of JPEG files")
    groups = ("serve", "folder", "memory")
    parser.add_argument("--only", nargs="+", choices=groups, default=groups)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: does it run? The figures are void")
    parser.add_argument("--out", type=Path, default=Path("results/speed-photos"))
    given = parser.parse_args()
    rounds, seconds, count = (1, 0.5, 4) if given.quick else (3, 15.0, 200)
    rows: list[Row] = []
    notes: list[str] = ["A trial with tiny sizes: the figures mean nothing."] if given.quick else []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if given.photos:
            files = [str(path) for path in sorted(given.photos.rglob("*.jpg"))[:count]]
        else:
            files = jpeg_files(place / "some", count, 640, 480)
        if "serve" in given.only:
            found, lines = serve([Path(file).read_bytes() for file in files], given.clients, seconds, rounds)
            rows += found
            notes += lines
        if "folder" in given.only:
            rows += folder(files, rounds)
        if "memory" in given.only:
            rows += memory(place, *((2, 3) if given.quick else (15, 40)))
    print(write(given.out, rows, " ".join(notes)), end="")


if __name__ == "__main__":
    main()
