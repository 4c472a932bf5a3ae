"""From a recipe to a run folder: load images, train on the base classes, walk the sessions, write down the results."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
import torch

from fscil import data
from fscil.config import Config, flatten, load_recipe
from fscil.data import Dataset, Resize
from fscil.data.images import Images
from fscil.errors import ConfigError, FscilError, ProtocolError, StoreError
from fscil.experiments.sessions import Walk, base_images, test_images, walk_all
from fscil.methods import METHODS, Alice, Method
from fscil.methods.cec import QUERIES, WAY, episodes_of
from fscil.metrics import confusion_matrix, performance_drop
from fscil.models import Backbone, parameter_count
from fscil.protocol import Draw, Protocol, fit_protocol
from fscil.runtime.files import load_tensors, save_tensors, write_json, write_text
from fscil.runtime.progress import clock
from fscil.training.base_training import BaseNetwork, base_network, base_step, pretrain
from fscil.training.build import backbone_of, preprocess_of
from fscil.training.loop import Trainer
from fscil.training.run_folder import Run, machine

PAPER_DATA = ("cifar100", "mini_imagenet", "cub200")  # whose recipes here are the paper's
LONG = 6 * 3600.0  # seconds of training on a CPU beyond which a shorter way is suggested


def load_data(config: Config, root: Path | None, quiet: bool = False) -> Dataset:
    """The recipe's data set, decoded and stored at the recipe's size."""
    options = {"test_share": config.data.test_share} if config.data.name == "folder" else {}
    dataset = data.load(config.data.name, root, **options)
    return data.prepare(dataset, Resize(config.data.resize, config.data.interpolation), quiet=quiet)


def protocol_of(config: Config, dataset: Dataset) -> Protocol:
    """The recipe's sessions over this data set's classes."""
    wanted = config.protocol
    number = {normalize("NFC", name): label for label, name in enumerate(dataset.class_names)}
    order: list[int] = []
    for name in wanted.order:
        label = number.get(normalize("NFC", name))
        if label is None:
            raise ConfigError(f'protocol.order: {dataset.name} has no class "{name}".')
        if label in order:
            raise ConfigError(f'protocol.order names "{name}" twice: sessions must not overlap. Name each class once.')
        order.append(label)
    count = len(order) or len(number)
    return fit_protocol(count, wanted.base_classes, wanted.way, wanted.sessions, wanted.shots[0], order or None)


def settled(config: Config, dataset: Dataset, protocol: Protocol) -> Config:
    """The recipe with its sessions spelt out, so that a folder that gains classes later changes no earlier run."""
    names = tuple(dataset.class_names[label] for label in protocol.seen(protocol.sessions))
    if dataset.benchmark or any(not _is_unicode(name) for name in names):  # these folders cannot be named in TOML
        names = ()
    chosen = replace(
        config.protocol,
        base_classes=protocol.base_classes,
        way=protocol.way,
        sessions=protocol.sessions,
        order=config.protocol.order or names,
    )
    return replace(config, protocol=chosen)


def _is_unicode(name: str) -> bool:
    return name == name.encode(errors="replace").decode()


def check(dataset: Dataset, protocol: Protocol, shots: Sequence[int]) -> None:
    """Find what would stop a session before any training, not after it: a class with too few images."""
    test_images(dataset, protocol, protocol.sessions)
    needed = [1] * protocol.base_classes + [max(shots)] * (protocol.way * protocol.sessions)
    counts = [dataset.train.counts.get(label, 0) for label in protocol.seen(protocol.sessions)]
    short = [place for place, need in enumerate(needed) if counts[place] < need]
    if short:
        first = short[0]
        raise ProtocolError(
            f"{dataset.name}: {len(short)} classes have too few training images (first: "
            f'"{dataset.class_names[protocol.seen(protocol.sessions)[first]]}" has {counts[first]}, needed are '
            f"{needed[first]}). Add images, ask for fewer shots, or leave the classes out with protocol.order."
        )


def plan(config: Config, trainer: Trainer, network: BaseNetwork, dataset: Dataset, protocol: Protocol) -> str:
    """What training will do and how long that takes on this machine."""
    base, device = base_images(dataset, protocol), trainer.device
    seconds = trainer.estimate(network, base, base_step(config, network, protocol.base_classes))
    mixing = f", {config.mixing.repeats} mixtures each" if config.mixing.repeats else ""
    lines = [
        f"{dataset.name}: {protocol.base_classes} base classes with {len(base)} images, then {protocol.sessions} "
        f"sessions of {protocol.way} classes{_left_out(dataset, protocol)}",
        f"{config.model.backbone}: {parameter_count(network.backbone):,} parameters in the backbone, "
        f"{parameter_count(network) - parameter_count(network.backbone):,} in the heads",
        f"{config.train.epochs} epochs of {trainer.steps_per_epoch(base)} steps: {config.train.batch} images, "
        f"{config.views.count} views{mixing}",
        f"time on this machine ({device.type}, {torch.get_num_threads()} threads): about {clock(seconds)}",
    ]
    if seconds > LONG and device.type == "cpu":
        lines.append(f"That is long for a CPU. Shorter, and not comparable with the paper: {_shorter(config)}")
        if dataset.name == "cifar100":
            lines.append("In an hour on two cores: fscil train cifar100_cpu --data DIR")
        lines.append("In minutes: fscil demo")
    return "\n".join(lines)


def _shorter(config: Config) -> str:
    """Settings that bring a training from days to hours."""
    if config.model.init == "pretrained":
        wanted = "train.epochs=4 train.batch=64 train.schedule=onecycle data.resize=128 views.size=112"
    else:
        wanted = (
            "model.backbone=resnet18 model.width=16 mixing.repeats=0 train.epochs=10 train.schedule=onecycle "
            "train.lr=0.1 loss.scale=16 loss.margin_warmup=0.5"
        )
    return " ".join(f"--set {setting}" for setting in wanted.split())


def _left_out(dataset: Dataset, protocol: Protocol) -> str:
    count = len(dataset.class_names) - protocol.classes
    return f" ({count} classes of the data are in no session)" if count else ""


def train(
    config: Config, run: Run, root: Path | None, device: torch.device, say: Callable[[str], None], quiet: bool
) -> None:
    """Base training into a run folder, from its checkpoint where it has one."""
    recipe = method_class(config).base_recipe(config)
    with run.locked():
        try:
            trainer = Trainer(recipe.train, device, run, quiet)
            backbone = backbone_of(recipe).to(device)
            dataset = load_data(config, root, quiet)
            protocol = protocol_of(config, dataset)
            check(dataset, protocol, config.protocol.shots)
            run.settle(settled(config, dataset, protocol))
            network = base_network(recipe, trainer, backbone, protocol.base_classes)
            say(plan(recipe, trainer, network, dataset, protocol))
        except FscilError:
            run.discard_unbegun()
            raise
        train_base(recipe, trainer, backbone, run, base_images(dataset, protocol))


def train_base(recipe: Config, trainer: Trainer, backbone: Backbone, run: Run, base: Images) -> None:
    """The network a method starts from, into the run folder; a classifier on a projection goes with the projection."""
    network = pretrain(recipe, trainer, backbone, base)
    run.note(seconds=round(trainer.seconds, 1))
    about = {"backbone": recipe.model.backbone, "preprocess": preprocess_of(recipe).to_dict()}
    run.finish(backbone.state_dict(), about, None if recipe.model.projection else network.head.state_dict())


def method_class(config: Config) -> type[Method]:
    if config.method not in METHODS:
        raise ConfigError(f"method = {config.method}: no such method. Known are {', '.join(METHODS)}.")
    return METHODS[config.method]


def check_finished(run: Run) -> None:
    if not run.finished:
        raise StoreError(
            f"{run.folder}: training is not finished. Continue it with: fscil train … --out {run.folder} --resume"
        )


def trained_method(run: Run, config: Config, device: torch.device, quiet: bool) -> Alice:
    """The method of a finished run, ready to describe the base classes."""
    check_finished(run)
    weights, _ = load_tensors(run.weights)
    method = Alice(config, Trainer(config.train, device, quiet=quiet), blank=True)
    method.load_backbone(weights, str(run.weights))
    return method


def evaluate(
    run: Run,
    root: Path | None,
    device: torch.device,
    shots: Sequence[int] | None = None,
    draws: int = 0,
    prototypes: Literal["balanced", "all"] | None = None,
    quiet: bool = False,
    openset: bool = False,
) -> dict[str, Any]:
    """All sessions for each number of shots, under the recipe's draw or `draws` seeded ones; returns the results.

    openset: also how well the classes seen so far are told from those of later sessions.
    """
    config = run.config()
    if prototypes:
        config = replace(config, test=replace(config.test, prototypes=prototypes))
    shots = tuple(dict.fromkeys(shots or config.protocol.shots))
    with run.locked():
        check_finished(run)
        dataset = load_data(config, root, quiet)
        protocol = protocol_of(config, dataset)
        check(dataset, protocol, shots)
        names = [dataset.class_names[label] for label in protocol.seen(protocol.sessions)]
        trainer = Trainer(config.train, device, run, quiet)
        method = method_class(config)(config, trainer, names)
        method.fit_base(base_images(dataset, protocol), shots)
        chosen: list[Draw] = list(range(draws)) if draws else [config.protocol.draw]
        walks = list(walk_all(method, dataset, protocol, shots, chosen, openset))
        results = {**summary(config, dataset, protocol, run), "walks": [record(walk) for walk in walks]}
        write_json(run.folder / "results.json", results)
        save_predictions(run.folder, walks, names)
    return results


def summary(config: Config, dataset: Dataset, protocol: Protocol, run: Run) -> dict[str, Any]:
    """What a reader of figures must know of how they came about. run: where the base network was trained."""
    base = base_images(dataset, protocol)
    return {
        "schema": 1,
        "data": config.data.name,
        "images": {"base training": len(base), "test": len(dataset.test)},
        "protocol": {"base_classes": protocol.base_classes, "way": protocol.way, "sessions": protocol.sessions},
        "method": config.method,
        "prototypes": config.test.prototypes,
        "backbone": config.model.backbone,
        "parameters": parameter_count(backbone_of(config, blank=True)),
        "training": {
            "epochs": config.train.epochs,
            "seed": config.train.seed,
            "seconds": run.about().get("seconds"),
            "images_seen": images_seen(config, base, protocol),
        },
        "departures": departures(config),
        "machine": machine(),
    }


def images_seen(config: Config, base: Images, protocol: Protocol) -> int:
    """How many images pass the network before the sessions, CEC's pretended ones included: every view and mixture.

    joint is a training anew on all data, which is what counts: that of the last session is added.
    """
    recipe = method_class(config).base_recipe(config)
    seen = _seen_in_training(recipe, len(base))
    if config.method == "cec":
        way, each = min(WAY, len(base.counts)), np.mean([min(1 + QUERIES, count) for count in base.counts.values()])
        seen += episodes_of(config, base) * 2 * way * float(each)  # every image as it is, and turned
    if config.method == "joint" and protocol.sessions:
        seen += _seen_in_training(recipe, len(base) + protocol.sessions * protocol.way * protocol.shots)
    return round(seen)


def _seen_in_training(recipe: Config, images: int) -> float:
    steps = recipe.train.epochs * max(1, images // recipe.train.batch)
    mixtures = recipe.mixing.repeats * (1 - recipe.mixing.start)
    return steps * min(recipe.train.batch, images) * recipe.views.count * (1 + mixtures)


def departures(config: Config) -> dict[str, list[Any]]:
    """Settings in which a run differs from the paper's recipe for the same data: key -> [here, in the paper]."""
    if config.data.name not in PAPER_DATA:
        return {}
    here, paper = flatten(config), flatten(load_recipe(config.data.name))
    harmless = [
        "about",
        "train.seed",
        "train.checkpoint_minutes",
        "protocol.shots",
        "data.test_share",
        "data.word_vectors",
    ]
    if config.method == "alice":
        harmless += [key for key in here if key.startswith("incremental.")]
    if paper["model.init"] == "pretrained":
        harmless.append("model.weights")
    return {key: [here[key], paper[key]] for key in here if here[key] != paper[key] and key not in harmless}


def record(walk: Walk) -> dict[str, Any]:
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
    averages = [result.scores.average for result in walk.sessions]
    memory = asdict(walk.sessions[-1].memory)
    return {
        "shots": walk.shots,
        "draw": walk.draw,
        "pd": performance_drop(averages),
        "memory": memory,
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
