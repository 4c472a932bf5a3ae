"""What benchmarks/fuzz.py gives random input to: one function per parser, valid inputs to start from, and mutations."""

import hashlib
import io
import json
import random
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from PIL import Image

from fscil.classifier import Classifier
from fscil.config import Config, load_recipe, override
from fscil.data import mini_imagenet, photos
from fscil.data.image_headers import image_size, scan_count
from fscil.data.images import FORMATS, Resize
from fscil.data.word_vectors import load_word_vectors
from fscil.errors import FscilError
from fscil.runtime.files import load_tensors, pack_tensors, read_checked_json, read_json_lines, with_checksum
from fscil.runtime.text import csv_text, printable

MODEL = Path(__file__).parents[1] / "tests" / "fixtures" / "model-schema1" / "model"
SLOW = 5.0  # seconds for one input that are a finding too
INTERESTING = [
    *(b"\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"nan", b"-1", b'"', b"\n", b"1e999"),
    *(b"9" * 400, b"[" * 3000, b"{" * 2000),
]
MAX_PIXELS = 10_000_000  # so that an input takes milliseconds


def settings(content: bytes, folder: Path) -> None:
    override(_glyphs(), content.decode(errors="replace").split("\n"))


@cache
def _glyphs() -> Config:
    return load_recipe("glyphs")


def recipe(content: bytes, folder: Path) -> None:
    (folder / "recipe.toml").write_bytes(content)
    load_recipe(folder / "recipe.toml")


def word_vectors(content: bytes, folder: Path) -> None:
    (folder / "words.txt").write_bytes(content)
    load_word_vectors(folder / "words.txt", ["red panda", "001.Black_footed_Albatross", "cat"])


def csv_list(content: bytes, folder: Path) -> None:
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_bytes(content)
    mini_imagenet.load(folder)


def run_file(content: bytes, folder: Path) -> None:
    (folder / "run.json").write_bytes(content)
    read_checked_json(folder / "run.json")


def metrics(content: bytes, folder: Path) -> None:
    (folder / "metrics.jsonl").write_bytes(content)
    read_json_lines(folder / "metrics.jsonl")


def tensors(content: bytes, folder: Path) -> None:
    (folder / "x.safetensors").write_bytes(content)
    load_tensors(folder / "x.safetensors")


def image(content: bytes, folder: Path) -> None:
    scan_count(content)
    height, width = image_size(content) or (0, 0)
    if height * width <= MAX_PIXELS:
        photos.load(content, Resize(32))


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
    Classifier.load(model, "cpu")


def journal(content: bytes, folder: Path) -> None:
    """Forged: every line, without its checksum in the input, gets the right one."""
    model = _model(folder)
    digest = json.loads((model / "model.json").read_bytes())["sha256"]
    lines = []
    for payload in content.split(b"\n"):
        digest = hashlib.sha256(digest.encode() + payload).hexdigest()
        lines.append(digest.encode() + b" " + payload + b"\n")
    (model / "journal-1.jsonl").write_bytes(b"".join(lines))
    Classifier.load(model, "cpu")


def damaged_model(content: bytes, folder: Path) -> None:
    """The journal as it is on the disk."""
    model = _model(folder)
    (model / "journal-1.jsonl").write_bytes(content)
    Classifier.load(model, "cpu")


def _model(folder: Path) -> Path:
    model = folder / "model"
    if not model.exists():
        shutil.copytree(MODEL, model)
    for name in ("model.json", "journal-1.jsonl"):
        shutil.copyfile(MODEL / name, model / name)
    return model


def text(content: bytes, folder: Path) -> None:
    plain = content.decode(errors="surrogateescape")
    assert printable(plain).isprintable() or not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", printable(plain))
    assert not csv_text(plain).startswith(("=", "+", "-", "@"))


def valid_images() -> list[bytes]:
    found = []
    for kind in FORMATS:
        for mode in ("RGB", "L"):
            file = io.BytesIO()
            Image.radial_gradient("L").resize((24, 18)).convert(mode).save(file, kind)
            found.append(file.getvalue())
    file = io.BytesIO()
    Image.radial_gradient("L").resize((24, 18)).convert("RGB").save(file, "JPEG", progressive=True)
    return [*found, file.getvalue()]


def valid_tensors() -> bytes:
    import torch

    return pack_tensors({"a": torch.arange(3), "b": torch.zeros(2, 2)}, {"step": 1})


TARGETS: dict[str, tuple[Callable[[bytes, Path], None], Callable[[], list[bytes]]]] = {
    "settings": (
        settings,
        lambda: [b"train.lr=0.1\nprotocol.shots=[5,1]", b"model.stem=imagenet", b"data.resize=none"],
    ),
    "recipe": (recipe, lambda: [b'[train]\nlr = 0.1\n[protocol]\nshots = [5, 1]\n[data]\nname = "folder"\n']),
    "word_vectors": (word_vectors, lambda: [b"red 1 2 3\npanda 2 3 4\nblack_footed_albatross 0 1 0\ncat 1 0 0\n"]),
    "csv_list": (csv_list, lambda: [b"filename,label\nn0153282900000005.jpg,n01532829\na.jpg,n01532830\n"]),
    "run_file": (run_file, lambda: [json.dumps(with_checksum({"schema": 1, "data": None, "cores": [2]})).encode()]),
    "metrics": (metrics, lambda: [(json.dumps(with_checksum({"step": 1, "loss": 0.5})) + "\n").encode() * 3]),
    "tensors": (tensors, lambda: [valid_tensors()]),
    "image": (image, valid_images),
    "model_json": (model_json, lambda: [(MODEL / "model.json").read_bytes()]),
    "journal": (journal, lambda: [re.sub(rb"(?m)^\w+ ", b"", (MODEL / "journal-1.jsonl").read_bytes()).strip()]),
    "damaged_model": (damaged_model, lambda: [(MODEL / "journal-1.jsonl").read_bytes()]),
    "text": (text, lambda: ["=1+1 \x1b[2J Käfer \u202e".encode()]),
}


def check(target: str, content: bytes, folder: Path) -> None:
    """Raises whatever is a finding."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            TARGETS[target][0](content, folder)
        except FscilError as error:
            if not str(error).strip():
                raise AssertionError("an error without a message") from error
    if time.process_time() - began > SLOW:
        raise AssertionError(f"took more than {SLOW} CPU-seconds")


def mutated(content: bytes, choose: random.Random) -> bytes:
    """One to four changes: a flipped bit, a part removed, repeated or replaced."""
    found = bytearray(content)
    for _ in range(choose.randint(1, 4)):
        start = choose.randrange(len(found) + 1)
        end = min(len(found), start + choose.choice([1, 2, 4, 16, 100]))
        match choose.randrange(5):
            case 0 if found:
                found[start % len(found)] ^= 1 << choose.randrange(8)
            case 1:
                del found[start:end]
            case 2:
                found[start:start] = found[start:end] * choose.choice([1, 2, 50])
            case 3:
                found[start:end] = choose.randbytes(end - start)
            case _:
                found[start:end] = choose.choice(INTERESTING)
    return bytes(found)


def at_random(target: str, seconds: float, most: int = 10**12, seed: int | None = None) -> int:
    """How many inputs were tried. Raises at the first finding, of which the message has the input."""
    choose, seeds, tried, end = random.Random(seed), TARGETS[target][1](), 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end and tried < most:
            content = choose.choice(seeds) if tried < len(seeds) else mutated(choose.choice(seeds), choose)
            tried += 1
            try:
                check(target, content, Path(folder))
            except Exception as error:
                raise AssertionError(f"{target}: {type(error).__name__}: {error}; input: {content!r}") from error
    return tried
