"""Results as they are written down: what produced them, the figures of every session, every prediction."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fscil.config import Config, flatten, load_recipe
from fscil.data import Dataset
from fscil.experiments.sessions import Walk
from fscil.methods import METHODS
from fscil.metrics import confusion_matrix, performance_drop
from fscil.models import parameter_count
from fscil.protocol import Protocol
from fscil.runtime.files import save_tensors, write_text
from fscil.training.build import backbone_of, base_images
from fscil.training.run_folder import Run, machine

PAPER_DATA = ("cifar100", "mini_imagenet", "cub200")  # whose recipes here are the paper's
NOT_DECISIVE = (  # settings that make no result differ from the paper's
    *("about", "train.seed", "train.checkpoint_minutes", "protocol.shots", "data.test_share", "data.word_vectors"),
)


def result_header(config: Config, dataset: Dataset, protocol: Protocol, run: Run) -> dict[str, Any]:
    """What a reader of figures must know of how they came about. run: where the base network was trained."""
    base, method = base_images(dataset, protocol), METHODS[config.method]
    return {
        "schema": 1,
        "data": config.data.name,
        "images": {"base training": len(base), "test": len(dataset.test)},
        "protocol": {"base_classes": protocol.base_classes, "way": protocol.way, "sessions": protocol.sessions},
        "method": config.method,
        "shown": {
            "title": method.title or config.method,
            "table_order": method.table_order,
            "highlighted": method.highlighted,
            "images_seen_note": method.images_seen_note,
        },
        "prototypes": config.test.prototypes,
        "backbone": config.model.backbone,
        "parameters": parameter_count(backbone_of(config, blank=True)),
        "training": {
            "epochs": config.train.epochs,
            "seed": config.train.seed,
            "seconds": run.about().get("seconds"),
            "images_seen": round(method.images_seen(config, base, protocol)),
        },
        "departures": unlike_paper_recipe(config),
        "machine": machine(),
    }


def unlike_paper_recipe(config: Config) -> dict[str, list[Any]]:
    """Settings in which a run differs from the paper's recipe for the same data: key -> [here, in the paper]."""
    if config.data.name not in PAPER_DATA:
        return {}
    here, paper = flatten(config), flatten(load_recipe(config.data.name))
    ignored = [*NOT_DECISIVE]
    if not METHODS[config.method].trains_in_sessions:
        ignored += [key for key in here if key.startswith("incremental.")]
    if paper["model.init"] == "pretrained":
        ignored.append("model.weights")
    return {key: [here[key], paper[key]] for key in here if here[key] != paper[key] and key not in ignored}


def walk_record(walk: Walk) -> dict[str, Any]:
    """One way through all sessions, as JSON."""
    sessions = [
        {
            "session": result.session,
            "classes": result.classes,
            "images": len(result.target),
            **asdict(result.scores),
            "alternatives": {name: scores.average for name, scores in result.alternatives.items()},
            **({"openset": {name: asdict(found) for name, found in result.openset.items()}} if result.openset else {}),
        }
        for result in walk.sessions
    ]
    return {
        "shots": walk.shots,
        "draw": walk.draw,
        "pd": performance_drop([result.scores.average for result in walk.sessions]),
        "memory": asdict(walk.sessions[-1].memory),
        "sessions": sessions,
    }


def save_predictions(folder: Path, walks: Sequence[Walk], names: Sequence[str]) -> None:
    """Every prediction behind the table, and per number of shots the last session's confusion over all draws."""
    tensors = {}
    for walk in walks:
        for result in walk.sessions:
            name = f"{walk.shots}-shot.draw-{walk.draw}.session-{result.session}"
            tensors[name] = torch.tensor(result.predicted)  # copied: session 0 is the same one on every way
            tensors[f"target.session-{result.session}"] = torch.from_numpy(result.target)
    save_tensors(folder / "predictions.safetensors", tensors, {"classes": list(names)})
    for stale in folder.glob("confusion-*-shot.csv"):
        stale.unlink()
    for shots in dict.fromkeys(walk.shots for walk in walks):
        last = [walk.sessions[-1] for walk in walks if walk.shots == shots]
        matrix = sum(confusion_matrix(result.predicted, result.target, result.classes) for result in last)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["true \\ predicted", *names])
        writer.writerows([name, *row] for name, row in zip(names, np.asarray(matrix).tolist(), strict=True))
        write_text(folder / f"confusion-{shots}-shot.csv", text.getvalue())
