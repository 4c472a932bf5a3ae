"""Many clients that predict, enroll and forget at once; then the model must equal a replay of what was acknowledged.

    python benchmarks/soak.py [--model MODEL] [--photos DIR] [--clients 64] [--minutes 10] [--requests N]

The server is a process of its own, on a copy of the model (without --model of the pretrained network). Every client has
classes of its own, which it also forgets, and enrolls into one that all share; so the order of its own requests decides
the result, whatever the others do. Afterwards one thread repeats all acknowledged requests in this process. The exit
code is 1 if an answer was an error, the two differ, or the memory of the server grew.
"""

import argparse
import http.client
import io
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import quote

import numpy as np
from PIL import Image
from service import Service, copied_model, jpeg, run_clients, some_photos

from fscil.classifier import Classifier

CLASSES_PER_CLIENT = 4
SHARED = "shared by all"
SHARES = {"predict": 0.6, "enroll": 0.25, "enroll shared": 0.05, "forget": 0.1}  # of the requests
SAMPLE_SECONDS = 0.5
MAX_GROWTH = 1.15  # of the memory, from the second to the last third of a run
TOLERANCE = 1e-4  # of features: the size of a batch changes the order of additions


class Photos:
    """Photos by number: reproducible, so that the replay has the same ones."""

    def __init__(self, folder: Path | None) -> None:
        self._pixels = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in some_photos(folder, 16)]

    def __call__(self, *seed: int) -> bytes:
        random = np.random.default_rng(seed)
        pixels = self._pixels[random.integers(len(self._pixels))].copy()
        pixels[:16, :16] = random.integers(0, 256, 3)
        return jpeg(pixels)


@dataclass
class Client:
    """Sends one request after the other and notes what changed the model: (class, seed of a photo); None: forgotten."""

    number: int
    address: str
    photos: Photos
    acknowledged: list[tuple[str, tuple[int, int] | None]] = field(default_factory=list)
    requests: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(self.address, timeout=120)
        self._random = np.random.default_rng(self.number)
        self._known: set[str] = set()

    def step(self) -> None:
        kind = self._random.choice(list(SHARES), p=list(SHARES.values()))
        name = f"client {self.number} class {self._random.integers(CLASSES_PER_CLIENT)}"
        seed = (self.number, self.requests)
        self.requests += 1
        if kind == "predict" or (kind == "forget" and name not in self._known):
            self._send("POST", "/predict", self.photos(*seed))
        elif kind == "forget":
            if self._send("DELETE", f"/classes/{quote(name)}"):
                self.acknowledged.append((name, None))
                self._known.discard(name)
        else:
            name = SHARED if kind == "enroll shared" else name
            if self._send("POST", f"/classes/{quote(name)}", self.photos(*seed)):
                self.acknowledged.append((name, seed))
                self._known.add(name)

    def _send(self, method: str, path: str, photo: bytes | None = None) -> bool:
        self._connection.request(method, path, photo, {"Content-Type": "image/jpeg"} if photo else {})
        response = self._connection.getresponse()
        content = response.read()
        if response.status != 200:
            self.errors.append(f"{method} {path}: {response.status} {content[:200]!r}")
        return response.status == 200


def resident_bytes(pid: int) -> int:
    """Of a process and its children."""
    total = 0
    for each in [pid, *_children(pid)]:
        try:
            status = Path(f"/proc/{each}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    return total


def _children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return found


def load(service: Service, clients: list[Client], seconds: float, requests: int) -> list[int]:
    """Let the clients run; returns samples of the memory of the server."""
    end, samples, done = time.monotonic() + seconds, [], threading.Event()

    def work(_: int, client: Client) -> None:
        try:
            while time.monotonic() < end and not (requests and client.requests >= requests):
                client.step()
        except (OSError, http.client.HTTPException) as error:
            client.errors.append(repr(error))

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            samples.append(resident_bytes(service.process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    run_clients(clients, work)  # type: ignore[arg-type]  # takes any kind of client
    done.set()
    sampler.join()
    return [*samples, resident_bytes(service.process.pid)]


def replayed(model: Path, clients: list[Client], photos: Photos) -> Classifier:
    """What one thread makes of the acknowledged requests, client by client."""
    classifier = Classifier.load(model, "cpu")
    for client in clients:
        for name, seed in client.acknowledged:
            if seed is None:
                classifier.forget(name)
            else:
                classifier.enroll(name, [photos(*seed)])
    return classifier


def differences(found: Classifier, expected: Classifier, probes: list[bytes]) -> list[str]:
    here, there = (contents(classifier) for classifier in (found, expected))
    wrong = [f"{name}: is missing or should not be there" for name in sorted(here.keys() ^ there.keys())]
    for name in sorted(here.keys() & there.keys()):
        if here[name].keys() != there[name].keys():
            wrong.append(f"{name}: has other photos")
        elif any(np.abs(here[name][each] - there[name][each]).max() > TOLERANCE for each in here[name]):
            wrong.append(f"{name}: has other features")
    for mine, right in zip(found.predict(probes, top=2), expected.predict(probes, top=2), strict=True):
        if abs(mine.score - right.score) > TOLERANCE or (mine.label != right.label and right.margin > TOLERANCE):
            wrong.append(f"a photo is predicted as {mine.label} ({mine.score}), not {right.label} ({right.score})")
    return wrong


def contents(classifier: Classifier) -> dict[str, dict[str, np.ndarray]]:
    """Class -> digest of a photo -> its feature."""
    gallery = classifier.gallery
    return {
        info.name: {photo.digest: photo.feature.numpy() for photo in gallery.photos(info.name)}
        for info in classifier.classes()
    }


def grew(samples: list[int]) -> bool:
    third = len(samples) // 3
    return third > 10 and median(samples[-third:]) > MAX_GROWTH * median(samples[third : 2 * third])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--photos", type=Path, help="folder of JPEG files; without it, synthetic photos of 640 x 480")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--requests", type=int, default=0, help="of each client at most; 0: as many as there is time for"
    )
    options = parser.parse_args()
    photos = Photos(options.photos)
    with tempfile.TemporaryDirectory() as folder:
        model = copied_model(options.model, Path(folder))
        before = shutil.copytree(model, Path(folder) / "before")
        service = Service(model)
        idle = resident_bytes(service.process.pid)
        clients = [Client(number, service.address, photos) for number in range(options.clients)]
        samples = load(service, clients, options.minutes * 60, options.requests)
        service.end(signal.SIGTERM)
        errors = [error for client in clients for error in client.errors]
        wrong = differences(
            Classifier.load(model, "cpu"), replayed(before, clients, photos), [photos(0, n) for n in range(8)]
        )
    result = {
        "clients": options.clients,
        "requests": sum(client.requests for client in clients),
        "changes": sum(len(client.acknowledged) for client in clients),
        "errors": len(errors),
        "differences": len(wrong),
        "megabytes": {"idle": idle // 10**6, "most": max(samples) // 10**6, "last": samples[-1] // 10**6},
        "memory_grew": grew(samples),
    }
    print(json.dumps(result))
    for line in (errors + wrong)[:10]:
        print(f"- {line}", file=sys.stderr)
    sys.exit(bool(errors or wrong or grew(samples)))


if __name__ == "__main__":
    main()
