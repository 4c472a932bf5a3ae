"""What each pretrained network is worth on birds and costs: results/backbones.md, and what `fscil backbones` shows.

    python benchmarks/backbones.py --data CUB_200_2011 --work WORK [--backbones NAME …] [--photos 32]

Every photo of CUB-200 passes the network as `fscil fit --backbone NAME` does it. Then as results/readout.md: the
two-covariance model of the 100 base classes, its constants chosen on base training images, names the test images after
ten sessions of ten new classes, from 5 photos and from 1, under the published draw and 10 seeded ones. Features are
kept in WORK, so that a run that was stopped continues. Times are the median of interleaved rounds, one image at a time;
leave the machine alone for them, or leave them out with --photos 0.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fscil.classifier.backbones import encoder_of
from fscil.classifier.encoder import PhotoEncoder, with_progress
from fscil.config import load_recipe
from fscil.data import load
from fscil.data.images import FilePixels, Images
from fscil.experiments.readout import SHOTS, measure, search
from fscil.methods.toolkit.readouts import READOUTS
from fscil.models import EXTRAS, parameter_count
from fscil.protocol import Draw
from fscil.runtime.files import load_tensors, save_tensors, write_text
from fscil.training.build import protocol_of

ROOT = Path(__file__).parents[1]
DRAWS = 10


def features(encoder: PhotoEncoder, images: Images) -> torch.Tensor:
    assert isinstance(images.pixels, FilePixels)
    paths = [images.pixels.root / images.name(place) for place in range(len(images))]
    rows = (row for batch in encoder.batches(paths) for row in batch)
    found = []
    for row in with_progress(rows, len(paths), quiet=not sys.stderr.isatty()):
        if not isinstance(row, torch.Tensor):
            raise row
        found.append(row)
    return torch.stack(found)


def extracted(name: str, data: Path, work: Path) -> dict[str, torch.Tensor]:
    """Features and labels of both parts, read from WORK if they are there."""
    path = work / f"{name.replace(':', '-')}.safetensors"
    if not path.exists():
        dataset, encoder = load("cub200", data), encoder_of(name)
        parts = {}
        for part, images in (("train", dataset.train), ("test", dataset.test)):
            parts[part], parts[f"{part}_labels"] = features(encoder, images), torch.from_numpy(images.labels.copy())
        save_tensors(path, parts, {"backbone": name, "engine": encoder.engine})
    return load_tensors(path)[0]


def accuracy(name: str, data: Path, work: Path) -> dict[str, Any]:
    """Percentages of the last session; AUROC over the sessions before; mean of the seeded draws, published draw."""
    parts = extracted(name, data, work)
    config = load_recipe("cub200")
    protocol = protocol_of(config, load("cub200", data))
    mine = parts["train_labels"] < protocol.base_classes
    base, labels = parts["train"][mine], parts["train_labels"][mine]
    constants = search("PLDA", base, labels, work / f"{name.replace(':', '-')}.trials.jsonl")
    model = READOUTS["PLDA"](**constants)
    model.fit(base, labels)
    draws: list[Draw] = ["published", *range(DRAWS)]
    walks = list(measure(model, parts, protocol, SHOTS, draws))
    found: dict[str, Any] = {}
    for shots in SHOTS:
        some = [walk for walk in walks if walk["shots"] == shots]
        seeded = [walk for walk in some if walk["draw"] != "published"]
        published = next(walk for walk in some if walk["draw"] == "published")
        found[f"{shots}-shot"] = round(100 * mean(walk["average"] for walk in seeded), 1)
        for key in ("harmonic", "auroc"):
            found[f"{shots}-shot {key}"] = round(100 * mean(walk[key] for walk in seeded), 1)
        found[f"{shots}-shot published"] = round(100 * published["average"], 1)
    found["session 0"] = round(100 * walks[0]["session 0"], 1)
    return found


def times(names: list[str], photos: int) -> dict[str, dict[str, float]]:
    """Milliseconds of one image by engine, rounds interleaved."""
    sides: dict[tuple[str, str], PhotoEncoder] = {}
    for name in names:
        made = encoder_of(name)
        for engine in ("torch", "onnxruntime"):
            sides[name, engine] = PhotoEncoder(made.config, made.backbone, made.device, engine)
    taken: dict[tuple[str, str], list[float]] = {side: [] for side in sides}
    for number in range(photos + 1):
        for side, encoder in sides.items():
            size = encoder.config.preprocess.crop
            images = [torch.from_numpy(np.random.default_rng(number).random((3, size, size), np.float32))]
            began = perf_counter()
            encoder.encode(images)
            if number:  # the first one starts the engine
                taken[side].append(1000 * (perf_counter() - began))
    return {name: {engine: median(taken[name, engine]) for engine in ("torch", "onnxruntime")} for name in names}


def table(names: list[str], found: dict[str, dict[str, Any]], speed: dict[str, dict[str, float]]) -> str:
    lines = [
        "# Pretrained networks on birds",
        "",
        "CUB-200 (photos of 112 pixels, enlarged), the network as it comes from ImageNet, the two-covariance model",
        "decides: percentages after the last of ten sessions, 100 + 10 x 10 classes, mean of 10 draws; AUROC of known",
        "against unknown; session 0: the 100 base classes alone. The protocol is that of [readout.md](readout.md);",
        "here photos pass the network as `fscil fit --backbone` does it, each at the size it was trained for.",
        "",
        f"    python benchmarks/backbones.py --data CUB_200_2011 --work WORK --backbones {' '.join(names)}"
        + ("" if speed else " --photos 0"),
        "",
        "| network | extra | parameters | pixels | session 0 | 5-shot average / harmonic / AUROC | "
        + "1-shot average / harmonic / AUROC |"
        + (" torch, ms | onnxruntime, ms |" if speed else ""),
        "|---|---|---:|---:|---:|---:|---:|" + ("---:|---:|" if speed else ""),
    ]
    for name in names:
        encoder, row = encoder_of(name), found[name]
        shots = [f"{row[k]} / {row[f'{k} harmonic']} / {row[f'{k} auroc']}" for k in ("5-shot", "1-shot")]
        cells = [name, EXTRAS.get(name, "timm"), f"{parameter_count(encoder.backbone):,}"]
        cells += [str(encoder.config.preprocess.crop), str(row["session 0"]), *shots]
        cells += [f"{each:.1f}" for each in speed.get(name, {}).values()]
        lines.append(f"| {' | '.join(cells)} |")
    if speed:
        lines += ["", f"Milliseconds: one image, {torch.get_num_threads()} threads, decoding not included."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CUB-200-2011")
    parser.add_argument("--work", type=Path, required=True, help="folder for features")
    parser.add_argument("--backbones", nargs="+", default=list(EXTRAS))
    parser.add_argument("--photos", type=int, default=32, help="images by which the speed is measured; 0: not at all")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "backbones.md")
    parser.add_argument(
        "--record", type=Path, default=ROOT / "src" / "fscil" / "classifier" / "backbones.json", help="for the command"
    )
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in given.backbones:
        found[name] = accuracy(name, given.data, given.work)
        print(name, found[name], flush=True)
    speed = times(given.backbones, given.photos) if given.photos else {}
    write_text(given.out, table(given.backbones, found, speed))
    write_text(given.record, json.dumps(found, indent=1) + "\n")
    print(given.out.read_text())


if __name__ == "__main__":
    main()
