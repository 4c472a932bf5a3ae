"""Model folders as somebody might forge them: JSON, tensors and journals changed at random, checksums made to fit."""

import base64
import copy
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fscil.classifier import Classifier
from fscil.runtime.files import load_tensors, pack_tensors
from fscil.runtime.validation import MAX_DEPTH

DEEP: Any = 0
for _ in range(MAX_DEPTH + 20):
    DEEP = [DEEP]

VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 64, 224, 1024, 100_000, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.5, 1e-320),
    *(1e9, 1e308, -1e308, float("nan"), float("inf"), "", "a", "nan", "resnet18", "efficientnet_lite0", "timm:vit"),
    *("../../etc/passwd", "/dev/zero", "=1+1", "\x1b[2J", "\ud800", "\u202e", "x" * 5000, "cosine", "two_covariance"),
    *([], {}, [[]], [None], {"a": {}}, [1, 2, 3], ["a", "b", "c"], {"weights": "/etc/passwd"}, DEEP),
]
ODD_NUMBERS = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45, 1e20, -1.0, 0.0)
DTYPES = (torch.float64, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64)


def changed(content: Any, choose: random.Random) -> Any:
    """Plain JSON with one value replaced, removed, doubled or put elsewhere."""
    content = copy.deepcopy(content)
    places = list(_places(content))
    if not places:
        return choose.choice(VALUES)
    holder, key = choose.choice(places)
    match choose.randrange(7):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case 1:
            holder[choose.choice(["weights", "pretrained", "width", "more", "decision", "do"])] = choose.choice(VALUES)
        case 2:
            other, there = choose.choice(places)
            if there in other if isinstance(other, dict) else there < len(other):
                holder[key] = copy.deepcopy(other[there])
        case 3 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = choose.choice([-holder[key], holder[key] * 1000, holder[key] + 1, float(holder[key])])
        case _:
            holder[key] = copy.deepcopy(choose.choice(VALUES))
    return content


def _places(content: Any) -> Any:
    if isinstance(content, dict | list):
        for key in list(content) if isinstance(content, dict) else range(len(content)):
            yield content, key
            yield from _places(content[key])


def changed_tensors(tensors: dict[str, torch.Tensor], choose: random.Random) -> dict[str, torch.Tensor]:
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    name = choose.choice(list(found))
    tensor = found[name]
    match choose.randrange(7):
        case 0:
            del found[name]
        case 1:
            found[name] = tensor.to(choose.choice(DTYPES))
        case 2:
            found[name] = tensor[: choose.randrange(len(tensor) + 1)] if tensor.ndim else tensor[None]
        case 3:
            found[name] = torch.cat([tensor, tensor]) if tensor.ndim else tensor[None, None]
        case 4:
            found[name] = tensor[None] if choose.random() < 0.5 else tensor.reshape(-1)
        case 5:
            found[choose.choice([*found, "more"])] = tensor
        case _ if tensor.numel():
            number = choose.choice(ODD_NUMBERS)
            where = slice(None) if choose.random() < 0.3 else choose.randrange(tensor.numel())
            if tensor.dtype.is_floating_point:
                found[name].view(-1)[where] = number
            else:
                found[name].view(-1)[where] = choose.choice([-1, 0, 1, 127])
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}  # safetensors shares no memory


def forge(source: Path, target: Path, choose: random.Random) -> None:
    """Write a changed copy of the model in source. One to three changes, each in any of its parts."""
    about = json.loads((source / "model.json").read_bytes())
    files = {kind: load_tensors(source / file["name"])[0] for kind, file in about["files"].items()}
    lines = (source / about["journal"]).read_bytes().splitlines()
    records = [json.loads(line.partition(b" ")[2]) for line in lines]
    classes = json.loads(bytes(files["gallery"]["classes"].tolist()))
    features = dict(files["gallery"])
    parts: list[Callable[[], None]] = []
    state: dict[str, Any] = {"about": about["about"], "records": records, "classes": classes, "more": {}}

    def change(key: str) -> Callable[[], None]:
        return lambda: state.__setitem__(key, changed(state[key], choose))

    def change_file(kind: str) -> Callable[[], None]:
        return lambda: files.__setitem__(kind, changed_tensors(files[kind], choose)) if files[kind] else None

    def change_feature() -> None:
        """Base64 of a record, which a changed text would only tear."""
        photos = [
            photo
            for record in (state["records"] if isinstance(state["records"], list) else [])
            if isinstance(record, dict) and isinstance(record.get("photos"), list)
            for photo in record["photos"]
            if isinstance(photo, dict) and isinstance(photo.get("feature"), str)
        ]
        if photos:
            number = torch.tensor([choose.choice(ODD_NUMBERS)] * choose.choice([0, 1, features["features"].shape[1]]))
            choose.choice(photos)["feature"] = base64.b64encode(number.numpy().tobytes()).decode()

    parts = [change("about"), change("about"), change("records"), change("classes"), change("more"), change_feature]
    parts += [change_file(kind) for kind in files]
    for _ in range(choose.choice([1, 1, 2, 3])):
        choose.choice(parts)()
    packed = json.dumps(state["classes"]).encode()
    if "classes" in files["gallery"] and choose.random() < 0.95:
        files["gallery"]["classes"] = torch.tensor(list(packed), dtype=torch.uint8)
    _write(target, about, state, files, choose)


def _write(
    target: Path, about: dict[str, Any], state: dict[str, Any], files: dict[str, dict[str, torch.Tensor]], choose: Any
) -> None:
    target.mkdir(parents=True, exist_ok=True)
    content = {**about, "about": state["about"]}
    for kind, tensors in files.items():
        packed = pack_tensors(tensors)
        (target / content["files"][kind]["name"]).write_bytes(packed)
        digest = hashlib.sha256(packed).hexdigest()
        content["files"][kind] = {**content["files"][kind], "size": len(packed), "sha256": digest}
    content.pop("sha256")
    if state["more"] != {}:
        content = changed(content, choose)
    digest = _sha256(json.dumps(content, sort_keys=True).encode())
    signed = {**content, "sha256": digest} if isinstance(content, dict) else content
    (target / "model.json").write_text(json.dumps(signed), encoding="utf-8")
    lines = []
    for record in state["records"] if isinstance(state["records"], list) else [state["records"]]:
        payload = json.dumps(record).encode()
        digest = _sha256(digest.encode() + payload)
        lines.append(digest.encode() + b" " + payload + b"\n")
    (target / about["journal"]).write_bytes(b"".join(lines))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def use(model: Path, photo: bytes) -> None:
    """Load a model and ask all that a person may ask. Raises an AssertionError for an answer that is not finite."""
    classifier = Classifier.load(model, "cpu")
    names = {info.name for info in classifier.classes()}
    assert all(info.photos > 0 for info in classifier.classes())
    for answer in classifier.predict([photo], top=3):
        numbers = [answer.score, answer.margin, *answer.probabilities, *(score for _, score in answer.ranking)]
        numbers += [each for each in (answer.probability, answer.unknown_probability) if each is not None]
        assert all(abs(number) < float("inf") for number in numbers), f"not finite: {answer}"
        assert {name for name, _ in answer.ranking} <= names
        assert answer.label is None or answer.label in names


def example_model(path: Path) -> None:
    """A small model with probabilities, a threshold, and enrollments in its journal."""
    from fscil.classifier import StoredClassifier
    from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
    from fscil.data.images import Resize
    from fscil.models import build_backbone
    from fscil.preprocess import Preprocess

    torch.manual_seed(0)
    options = {"stem": "cifar", "width": 2}
    config = EncoderConfig("resnet10", options, Resize(16), Preprocess(16))
    classifier = Classifier(PhotoEncoder(config, build_backbone("resnet10", **options), torch.device("cpu")))
    for name in ("ant", "Bär", "鹿", "red panda"):
        classifier.enroll(name, [pictured(name, number) for number in range(3)])
    classifier.estimate()
    classifier.save(path)
    with StoredClassifier.open(path, "cpu") as stored:
        stored.enroll("eel", [pictured("eel", 0), pictured("eel", 1)])
        stored.enroll("ant", pictured("ant", 9))
    for name in (".lock", ".server"):
        (path / name).unlink(missing_ok=True)


def pictured(name: str, number: int) -> Any:
    """(20, 20, 3) uint8: stripes that depend on the name, and noise that depends on the number."""
    import numpy as np

    stripes = np.random.default_rng(list(name.encode())).integers(0, 200, (20, 1, 3))
    noise = np.random.default_rng(number).integers(0, 56, (20, 20, 3))
    return (stripes + noise).astype(np.uint8)
