"""Throughput and latency of the service, and whether it loses enrollments: real server and sockets, as Markdown.

    python benchmarks/service.py [--model MODEL] [--photos DIR] [--clients 1 8 64] [--seconds 15] [--soak 60]

Without --model the pretrained network is used; in any case a copy is served, so nothing is changed. Clients are threads
of this process and share the cores with the server; each sends its next request after the response. --soak mixes
predictions and enrollments, kills the server with SIGKILL meanwhile, starts it again and counts the photos.
"""

import argparse
import http.client
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

COMMAND = [sys.executable, "-c", "from fscil.cli import main; main()"]
ENROLL_EVERY = 8  # of the soak's requests


class Service:
    """`fscil serve` in a process of its own."""

    def __init__(self, model: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", str(model), "--port", "0", "--no-token", *options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            sys.exit("the service did not start")
        self.address = urlsplit(next(word for word in line.split() if word.startswith("http://"))).netloc

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait()


@dataclass
class Client:
    """One client with one connection."""

    address: str
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection(self.address, timeout=120)

    def send(self, path: str, photo: bytes) -> bool:
        began = time.perf_counter()
        self.connection.request("POST", path, photo, {"Content-Type": "image/jpeg"})
        response = self.connection.getresponse()
        content = response.read()
        self.seconds.append(time.perf_counter() - began)
        if response.status != 200:
            self.errors.append(f"{response.status} {content[:200]!r}")
        return response.status == 200


def jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def some_photos(folder: Path | None, count: int = 64) -> list[bytes]:
    if folder is not None:
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        return [path.read_bytes() for path in found[:: max(1, len(found) // count)][:count]]
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):  # smooth colours with some noise, as large as a small photo
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((640, 480), Image.Resampling.BICUBIC), np.int16)
        made.append(jpeg((smooth + random.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)))
    return made


def run_clients(clients: list[Client], work: Callable[[int, Client], None]) -> float:
    """Seconds until all are done."""
    threads = [threading.Thread(target=work, args=(number, client)) for number, client in enumerate(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def measure(service: Service, photos: list[bytes], count: int, seconds: float) -> str:
    """One row of the table."""
    clients = [Client(service.address) for _ in range(count)]

    def predict(number: int, client: Client) -> None:
        end, index = time.perf_counter() + seconds, number
        while time.perf_counter() < end:
            client.send("/predict", photos[index % len(photos)])
            index += 1

    took = run_clients(clients, predict)
    times = np.concatenate([client.seconds for client in clients]) * 1000
    errors = sum(len(client.errors) for client in clients)
    p50, p99 = np.percentile(times, [50, 99])
    return f"| {count} | {len(times) / took:.1f} | {p50:.0f} | {p99:.0f} | {errors} |"


def soak(model: Path, photos: list[bytes], count: int, seconds: float) -> bool:
    """Whether nothing failed and nothing was lost."""
    service = Service(model)
    clients = [Client(service.address) for _ in range(count)]
    acknowledged = [0] * count
    killed = threading.Event()
    sources = [np.asarray(Image.open(io.BytesIO(photo)).convert("RGB")) for photo in photos]

    def work(number: int, client: Client) -> None:
        turn = number
        while not killed.is_set():
            try:
                if turn % ENROLL_EVERY:
                    client.send("/predict", photos[turn % len(photos)])
                else:
                    fresh = sources[turn % len(sources)].copy()
                    fresh[:16, :16] = np.random.default_rng([number, turn]).integers(0, 256, 3)  # a new photo
                    acknowledged[number] += client.send(f"/classes/client%20{number}", jpeg(fresh))
            except (OSError, http.client.HTTPException) as error:
                if not killed.is_set():
                    client.errors.append(repr(error))
                return
            turn += 1

    def kill() -> None:
        killed.set()
        service.end(signal.SIGKILL)

    timer = threading.Timer(seconds, kill)
    timer.start()
    run_clients(clients, work)
    timer.join()
    again = Service(model)
    connection = http.client.HTTPConnection(again.address, timeout=120)
    connection.request("GET", "/classes")
    kept = {known["name"]: known["photos"] for known in json.loads(connection.getresponse().read())["classes"]}
    again.end(signal.SIGTERM)
    errors = [error for client in clients for error in client.errors]
    lost = sum(max(0, acked - kept.get(f"client {number}", 0)) for number, acked in enumerate(acknowledged))
    requests = sum(len(client.seconds) for client in clients)
    print(
        f"\n{count} clients for {seconds:.0f} s, one request in {ENROLL_EVERY} an enrollment: {requests} requests, "
        f"{sum(acknowledged)} enrollments acknowledged, {len(errors)} errors; after kill -9 and a new start "
        f"{sum(kept.values())} photos are there, {lost} acknowledged ones lost."
    )
    for error in errors[:5]:
        print(f"- {error}")
    return not errors and not lost


def copied_model(model: Path | None, folder: Path) -> Path:
    copy = folder / "model"
    if model is not None:
        shutil.copytree(model, copy)
    else:
        from fscil.classifier import Classifier

        Classifier.pretrained().save(copy)
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--photos", type=Path, help="folder of JPEG files; without it, synthetic photos of 640 x 480")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=15, help="per number of clients")
    parser.add_argument("--soak", type=float, default=0, help="seconds of the mixed run with 64 clients, and the kill")
    options = parser.parse_args()
    photos = some_photos(options.photos)
    with tempfile.TemporaryDirectory() as folder:
        model = copied_model(options.model, Path(folder))
        service = Service(model)
        for number in range(10):
            Client(service.address).send(f"/classes/class%20{number}", photos[number % len(photos)])
        measure(service, photos, 1, 1)  # warm up
        average = sum(map(len, photos)) / len(photos) / 1000
        print(f"`fscil serve`, {os.cpu_count()} cores ({platform.machine()}), photos of {average:.0f} kB on average\n")
        print("| clients | requests/s | p50 ms | p99 ms | errors |\n|---:|---:|---:|---:|---:|")
        for count in options.clients:
            print(measure(service, photos, count, options.seconds), flush=True)
        service.end(signal.SIGTERM)
        if options.soak and not soak(model, photos, 64, options.soak):
            sys.exit(1)


if __name__ == "__main__":
    main()
