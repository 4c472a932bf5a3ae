"""What benchmarks/fuzz.py gives random input to: one function per parser, valid inputs to start from, and mutations.

Those of model folders are in fuzz_models.py.
"""

import io
import json
import os
import random
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from fuzz_models import MODEL_TARGETS, SLOW
from PIL import Image

from fscil.cli.sorting import COLUMNS, RECORD, Sorter
from fscil.config import Config, load_recipe, override
from fscil.config.session_lists import session_settings
from fscil.data import cifar100, cub200, mini_imagenet, photos
from fscil.data.image_headers import image_size, scan_count
from fscil.data.images import FORMATS, Resize, reads_heic
from fscil.data.label_list import read_label_list
from fscil.data.word_vectors import load_word_vectors
from fscil.errors import FscilError
from fscil.models.weights import read_weights
from fscil.runtime.files import load_tensors, pack_tensors, read_checked_json, read_json_lines, with_checksum
from fscil.runtime.text import csv_text, printable
from fscil.serve.keys import Keys

os.environ.setdefault("FSCIL_ENGINE", "torch")  # another one takes seconds to start, for every input
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


def weights(content: bytes, folder: Path) -> None:
    name = "x.safetensors" if content[8:9] == b"{" else "x.pt"
    (folder / name).write_bytes(content)
    read_weights(folder / name)


def arrays(content: bytes, folder: Path) -> None:
    (folder / "cifar100.npz").write_bytes(content)
    cifar100.load(folder)


def label_list(content: bytes, folder: Path) -> None:
    (folder / "labels.csv").write_bytes(content)
    read_label_list(folder / "labels.csv")


def session_list(content: bytes, folder: Path) -> None:
    (folder / "sessions.csv").write_bytes(content)
    override(_glyphs(), session_settings(folder / "sessions.csv"))


def bird_lists(content: bytes, folder: Path) -> None:
    """The three lists of CUB-200, parted by form feeds."""
    parts = [*content.split(b"\f"), b"", b""]
    for name, part in zip(("images", "image_class_labels", "train_test_split"), parts, strict=False):
        (folder / f"{name}.txt").write_bytes(part)
    for name in ("001.Ant/a.jpg", "002.Bee/b.jpg"):
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "images" / name).touch()
    cub200.load(folder)


def sort_record(content: bytes, folder: Path) -> None:
    (folder / RECORD).write_bytes(content)
    Sorter(folder).todo([folder / "a.jpg"])


def keys(content: bytes, folder: Path) -> None:
    (folder / "keys.txt").write_bytes(content)
    Keys.load(folder / "keys.txt").permission(content[-20:])


def image(content: bytes, folder: Path) -> None:
    scan_count(content)
    height, width = image_size(content) or (0, 0)
    if height * width <= MAX_PIXELS:
        photos.load(content, Resize(32))


def text(content: bytes, folder: Path) -> None:
    plain = content.decode(errors="surrogateescape")
    assert printable(plain).isprintable() or not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", printable(plain))
    assert not csv_text(plain).startswith(("=", "+", "-", "@"))


def valid_images() -> list[bytes]:
    """Small ones of all formats, and of kinds that decoders treat on their own."""
    plain = Image.radial_gradient("L").resize((24, 18))
    turned = Image.Exif()
    turned[0x0112] = 6
    some: list[tuple[str, Image.Image, dict[str, object]]] = [
        *((kind, plain.convert(mode), {}) for kind in FORMATS for mode in ("RGB", "L")),
        ("JPEG", plain.convert("RGB"), {"progressive": True}),
        ("JPEG", plain.convert("CMYK"), {"exif": turned}),
        ("PNG", plain.convert("LA"), {}),
        ("PNG", plain.convert("P"), {"transparency": 3}),
        ("PNG", plain.convert("I;16"), {}),
        ("PNG", plain.convert("1"), {"exif": turned}),
        ("GIF", plain.convert("P"), {"save_all": True, "append_images": [plain.rotate(90)]}),
        ("WEBP", plain.convert("RGBA"), {"lossless": True}),
    ]
    if reads_heic():
        from pillow_heif import register_heif_opener

        register_heif_opener()
        some.append(("HEIF", plain.resize((64, 64)).convert("RGB"), {}))
    return [_saved(picture, kind, options) for kind, picture, options in some]


def _saved(picture: Image.Image, kind: str, options: dict[str, object]) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def valid_tensors() -> bytes:
    import torch

    return pack_tensors({"a": torch.arange(3), "b": torch.zeros(2, 2)}, {"step": 1})


def valid_weights() -> list[bytes]:
    import torch
    from safetensors.torch import save

    state = {"conv1.weight": torch.zeros(2, 3, 1, 1), "fc.bias": torch.zeros(2)}
    pickled = [io.BytesIO(), io.BytesIO()]
    torch.save({"state_dict": state}, pickled[0])
    torch.save(state, pickled[1], _use_new_zipfile_serialization=False)
    return [save(state), valid_tensors(), *(file.getvalue() for file in pickled)]


def valid_arrays() -> bytes:
    file = io.BytesIO()
    some = {"x": np.zeros((2, 32, 32, 3), np.uint8), "y": np.array([0, 99])}
    np.savez_compressed(file, **{f"{part}_{name}": each for part in ("train", "test") for name, each in some.items()})
    return file.getvalue()


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
    "weights": (weights, valid_weights),
    "arrays": (arrays, lambda: [valid_arrays()]),
    "label_list": (label_list, lambda: [b'path,label\nants/1.jpg,ant\n~/2.jpg,"b, e"\n']),
    "session_list": (session_list, lambda: [b"class,session\nant,0\nbee,0\ncat,1\ndog,2\n"]),
    "bird_lists": (bird_lists, lambda: [b"1 001.Ant/a.jpg\n2 002.Bee/b.jpg\n\f1 1\n2 2\n\f1 1\n2 0\n"]),
    "sort_record": (sort_record, lambda: [f"{','.join(COLUMNS)}\n/a.jpg,known,ant,0.9,0.1,ant/a.jpg\n".encode()]),
    "keys": (keys, lambda: [b"# friends\nread 0123456789abcdef\nenroll abcdefghijklmnopq\n"]),
    **MODEL_TARGETS,
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
