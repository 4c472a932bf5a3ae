"""The targets of benchmarks/fuzz.py that read model folders: damaged ones, and forged ones whose checksums fit.

    python benchmarks/fuzz_models.py [--folders 3000] [--seed 0]

forges folders by numbers, so that a finding can be repeated, and counts what came of them: refused with a message, or
answered with finite numbers. Anything else, also more than five CPU-seconds, is a finding, and the exit code is 1.
"""

import argparse
import hashlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from forge import example_model, forge, pictured, use
from PIL import Image
from torch import Tensor

from fscil.classifier import Classifier
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.errors import FscilError

SLOW = 5.0  # CPU-seconds for one input that are a finding too
MODEL = Path(__file__).parents[1] / "tests" / "fixtures" / "model-schema1" / "model"


class RememberedEncoders:
    """Networks built before: most inputs leave the network as it is, and building it takes nearly all the time."""

    def __init__(self) -> None:
        self._load = PhotoEncoder.load
        self._known: dict[str, PhotoEncoder] = {}

    def __call__(
        self, config: EncoderConfig, weights: dict[str, Tensor], device: torch.device, *rest: object
    ) -> PhotoEncoder:
        key = hashlib.sha256(repr(config).encode())
        for name, tensor in weights.items():
            key.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
        if key.hexdigest() not in self._known:
            if len(self._known) > 100:
                self._known.clear()
            self._known[key.hexdigest()] = self._load(config, weights, device, *rest)  # type: ignore[arg-type]
        return self._known[key.hexdigest()]


@cache
def _remember_encoders() -> None:
    PhotoEncoder.load = RememberedEncoders()  # type: ignore[method-assign,assignment]


def _load(model: Path) -> None:
    _remember_encoders()
    Classifier.load(model, "cpu")


def model_json(content: bytes, folder: Path) -> None:
    """Forged: with the right checksum, if it is JSON at all."""
    model = _model(folder)
    with suppress(ValueError, RecursionError):
        about = json.loads(content)
        if isinstance(about, dict):
            about.pop("sha256", None)
            plain = json.dumps(about, sort_keys=True).encode()
            content = json.dumps({**about, "sha256": hashlib.sha256(plain).hexdigest()}).encode()
            (model / "journal-1.jsonl").write_bytes(b"")  # its checksums begin with that of model.json
    (model / "model.json").write_bytes(content)
    _load(model)


def journal(content: bytes, folder: Path) -> None:
    """Forged: every line, without its checksum in the input, gets the right one."""
    model = _model(folder)
    digest = json.loads((model / "model.json").read_bytes())["sha256"]
    lines = []
    for payload in content.split(b"\n"):
        digest = hashlib.sha256(digest.encode() + payload).hexdigest()
        lines.append(digest.encode() + b" " + payload + b"\n")
    (model / "journal-1.jsonl").write_bytes(b"".join(lines))
    _load(model)


def damaged_model(content: bytes, folder: Path) -> None:
    """The journal as it is on the disk."""
    model = _model(folder)
    (model / "journal-1.jsonl").write_bytes(content)
    _load(model)


def forged_model(content: bytes, folder: Path) -> None:
    """The input chooses changes of JSON, tensors and journal, to which the checksums are made to fit."""
    _remember_encoders()
    example = folder / "example"
    if not example.exists():
        example_model(example)
    shutil.rmtree(folder / "forged", ignore_errors=True)
    forge(example, folder / "forged", random.Random(content))
    use(folder / "forged", photo())


@cache
def photo() -> bytes:
    file = io.BytesIO()
    Image.fromarray(pictured("ant", 5)).save(file, "PNG")
    return file.getvalue()


def _model(folder: Path) -> Path:
    model = folder / "model"
    if not model.exists():
        shutil.copytree(MODEL, model)
    for name in ("model.json", "journal-1.jsonl"):
        shutil.copyfile(MODEL / name, model / name)
    return model


MODEL_TARGETS: dict[str, tuple[Callable[[bytes, Path], None], Callable[[], list[bytes]]]] = {
    "model_json": (model_json, lambda: [(MODEL / "model.json").read_bytes()]),
    "journal": (journal, lambda: [re.sub(rb"(?m)^\w+ ", b"", (MODEL / "journal-1.jsonl").read_bytes()).strip()]),
    "forged_model": (forged_model, lambda: [b"", b"0", b"1"]),
    "damaged_model": (damaged_model, lambda: [(MODEL / "journal-1.jsonl").read_bytes()]),
}


def forged(example: Path, target: Path, seed: str) -> str:
    """What came of one forged folder: "refused", "answered" or "finding"."""
    shutil.rmtree(target, ignore_errors=True)
    forge(example, target, random.Random(seed))
    try:
        use(target, photo())
    except FscilError as error:
        return "refused" if str(error).strip() else "finding"
    except Exception:
        print(f"folder {seed}:\n{traceback.format_exc()}", file=sys.stderr)
        return "finding"
    return "answered"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("FSCIL_ENGINE", "torch")  # another one takes seconds to start, for every folder
    warnings.simplefilter("ignore")
    _remember_encoders()
    found, slowest = Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        example_model(Path(folder) / "example")
        for number in range(options.folders):
            began = time.process_time()
            what = forged(Path(folder) / "example", Path(folder) / "forged", f"{options.seed} {number}")
            seconds = time.process_time() - began
            slowest = max(slowest, seconds)
            found["finding" if seconds > SLOW else what] += 1
            if (number + 1) % 500 == 0:
                print(f"{number + 1:,} folders, {found['finding']} findings", file=sys.stderr, flush=True)
    print("| folders | refused | answered | findings | most CPU-seconds |\n|---:|---:|---:|---:|---:|")
    print(
        f"| {options.folders:,} | {found['refused']:,} | {found['answered']:,} | {found['finding']} | {slowest:.2f} |"
    )
    return int(found["finding"] > 0)


if __name__ == "__main__":
    sys.exit(main())
