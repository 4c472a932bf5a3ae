"""From a recipe to a run folder: load images, train on the base classes, evaluate every session, write the results."""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from fscil.config import Config, difference, flatten, override
from fscil.data import DATASETS, Dataset, Images
from fscil.errors import ConfigError, FscilError, ProtocolError
from fscil.experiments.base_networks import base_key
from fscil.experiments.feature_files import KeptFeatures, keep_features
from fscil.experiments.pretrained_accuracy import pretrained_accuracy
from fscil.experiments.provenance import PROVENANCE, RESULTS, Provenance, data_fingerprint, read_results
from fscil.experiments.results import result_header, save_predictions, walk_record
from fscil.experiments.sessions import evaluation_images, walk_all
from fscil.losses import LOSSES
from fscil.methods import METHODS
from fscil.methods.toolkit.frozen_features import FrozenFeatureMethod
from fscil.models import parameter_count
from fscil.protocol import Draw, Protocol
from fscil.runtime import torchrun
from fscil.runtime.distributed import local_main_first, raise_in_all, world_size
from fscil.runtime.files import write_json
from fscil.runtime.text import count, duration
from fscil.training.base_network import OBJECTIVES, BaseNetwork, passes_per_image
from fscil.training.base_training import (
    estimate_base_training,
    load_base_network,
    new_base_network,
    train_base_network,
)
from fscil.training.build import backbone_of, base_images, dataset_of, protocol_of, require_whole_test_images
from fscil.training.context import Context
from fscil.training.loop import Trainer
from fscil.training.optimizers import OPTIMIZERS
from fscil.training.run_folder import Run

NOT_OF_THE_NETWORK = ("about", "method", "data.word_vectors", "train.checkpoint_minutes")
LONG_TRAINING = 6 * 3600.0  # seconds on a CPU beyond which a shorter way is suggested


def train(config: Config, run: Run | None, root: Path | None, context: Context, say: Callable[[str], None]) -> None:
    """Base training into a run folder, from its checkpoint where it has one.

    run: None in all processes of a torchrun job but the first, which alone reads and writes the folder.
    """
    with ExitStack() as stack:
        with raise_in_all():
            if run:
                stack.enter_context(run.locked())
        try:
            with raise_in_all():
                recipe = installed_base_recipe(config)
                backbone = backbone_of(recipe)  # before the data: its weights may be missing
            dataset = local_main_first(lambda: dataset_of(config, root, context.quiet))
            with raise_in_all():
                protocol = protocol_of(config, dataset)
                require_enough_images(dataset, protocol, config.protocol.shots)
                require_whole_test_images(recipe, dataset.train)
                if run:
                    run.replace_config(with_sessions_resolved(config, dataset, protocol))
                base = base_images(dataset, protocol)
                network = new_base_network(recipe, protocol.base_classes, context, backbone)
            for lines in describe_training(recipe, network, base, dataset, protocol, context):
                say(lines)
        except FscilError:
            if run:
                run.discard_unbegun()
            raise
        train_base_network(recipe, base, context, run, network)


def installed_base_recipe(config: Config) -> Config:
    """The recipe of the method's base network. Names in it that are not installed raise here, before any work."""
    recipe = METHODS[config.method].base_recipe(config)
    DATASETS[recipe.data.name]
    LOSSES[recipe.loss.kind]
    OPTIMIZERS[recipe.train.optimizer]
    if recipe.train.objective and not OBJECTIVES[recipe.train.objective].divisible and world_size() > 1:
        raise ConfigError(
            f'train.objective = "{recipe.train.objective}" does not divide its batches among processes: start fscil '
            f"without torchrun, or see docs/extending.md how an objective does."
        )
    return recipe


def changed_config(run: Run, changes: Sequence[str]) -> Config:
    """The run's settings with these changed. Those that decide its network must stay: it is not trained again."""
    before = run.config()
    config = override(before, changes)
    ours, theirs = (METHODS[one.method].base_recipe(one) for one in (config, before))
    if base_key(ours) != base_key(theirs):
        words = ["fscil", "train", str(run.folder / "config.toml")]
        words += ["--data", data] if (data := run.about().get("data")) else []
        words += [word for change in changes for word in ("--set", change)]
        raise ConfigError(
            f"{run.folder}: its network was trained otherwise than this evaluation needs: "
            f"{difference(ours, theirs, NOT_OF_THE_NETWORK)}. Train one with: {shlex.join(words)} --out …"
        )
    return config


def evaluation_folder(run: Run, changes: Sequence[str]) -> Path:
    """Of results under changed settings: RUN/evaluate-METHOD, and a few letters for changes of other settings."""
    before, config = run.config(), changed_config(run, changes)
    ours, theirs = flatten(config), flatten(before)
    others = {key: value for key, value in ours.items() if value != theirs[key] and key != "method"}
    letters = hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()[:6] if others else ""
    return run.folder / "-".join(filter(None, ["evaluate", config.method, letters]))


def evaluate(
    run: Run,
    root: Path | None,
    context: Context,
    shots: Sequence[int] | None = None,
    draws: int = 0,
    prototypes: Literal["balanced", "all"] | None = None,
    openset: bool = False,
    changes: Sequence[str] = (),
    out: Path | None = None,
) -> dict[str, Any]:
    """All sessions for each number of shots, under the recipe's draw or `draws` seeded ones; returns the results.

    openset: also how well the classes seen so far are separated from those of later sessions. changes: settings
    ("key=value") to evaluate instead of the run's, such as another method, on the run's network. out: the folder of
    the results; the run's own by default.
    """
    with ExitStack() as stack:
        with raise_in_all():
            if torchrun.is_main():
                stack.enter_context(run.locked())
            config = changed_config(run, changes)
            if prototypes:
                config = replace(config, test=replace(config.test, prototypes=prototypes))
            shots = tuple(dict.fromkeys(shots or config.protocol.shots))
            run.require_finished()
        dataset = local_main_first(lambda: dataset_of(config, root, context.quiet))
        with raise_in_all():
            protocol = protocol_of(config, dataset)
            require_enough_images(dataset, protocol, shots)
            names = [dataset.class_names[label] for label in protocol.seen(protocol.sessions)]
            kind = METHODS[config.method]
            network = load_base_network(kind.base_recipe(config), run, context)
            method = kind(config, network, context, names)
            fingerprint = data_fingerprint(dataset)
        if isinstance(method, FrozenFeatureMethod):
            keep_features(KeptFeatures(run, config, fingerprint, method.features), dataset, protocol)
        method.fit_base(base_images(dataset, protocol), shots)
        chosen: list[Draw] = list(range(draws)) if draws else [config.protocol.draw]
        walks = list(walk_all(method, dataset, protocol, shots, chosen, openset))
        header = result_header(config, dataset, protocol, fingerprint)
        header["untouched"] = pretrained_accuracy(kind.base_recipe(config), dataset, protocol, context)
        results = {**header, "walks": [walk_record(walk) for walk in walks]}
        if not torchrun.is_main():
            return results
        folder = out or run.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROVENANCE).unlink(missing_ok=True)  # of an earlier evaluation
        Provenance(folder).note(training={"seconds": run.about().get("seconds")})
        write_json(folder / RESULTS, results)
        save_predictions(folder, walks, names)
    return read_results(folder)


def with_sessions_resolved(config: Config, dataset: Dataset, protocol: Protocol) -> Config:
    """The recipe with its sessions written out, so that classes added to a folder later change no earlier run."""
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


def require_enough_images(dataset: Dataset, protocol: Protocol, shots: Sequence[int]) -> None:
    """Raise before any training, not after it, where a class has too few images for its session."""
    evaluation_images(dataset, protocol, protocol.sessions)
    needed = [1] * protocol.base_classes + [max(shots)] * (protocol.classes - protocol.base_classes)
    counts = [dataset.train.counts.get(label, 0) for label in protocol.seen(protocol.sessions)]
    short = [place for place, need in enumerate(needed) if counts[place] < need]
    if short:
        first = short[0]
        raise ProtocolError(
            f"{dataset.name}: {len(short)} classes have too few training images (first: "
            f'"{dataset.class_names[protocol.seen(protocol.sessions)[first]]}" has {counts[first]}, needed are '
            f"{needed[first]}). Add images, ask for fewer shots, or leave the classes out with protocol.order."
        )


def describe_training(
    recipe: Config, network: BaseNetwork, base: Images, dataset: Dataset, protocol: Protocol, context: Context
) -> Iterator[str]:
    """What training will do; then, as that may take a minute itself, an estimate of how long on this machine."""
    steps = Trainer(recipe.train, context).steps_per_epoch(base)
    if recipe.train.objective:
        views = f"each passes a network {passes_per_image(recipe):g} times ({recipe.train.objective})"
    else:
        mixing = f", {count(recipe.mixing.repeats, 'mixture')} each" if recipe.mixing.repeats else ""
        views = f"{count(recipe.views.count, 'view')}{mixing}"
    yield (
        f"{dataset.name}: {protocol.base_classes} base classes with {len(base)} images, then {protocol.sessions} "
        f"sessions of {'/'.join(map(str, protocol.ways or [protocol.way]))} classes{_left_out(dataset, protocol)}\n"
        f"{recipe.model.backbone}: {parameter_count(network.backbone):,} parameters in the backbone, "
        f"{parameter_count(network) - parameter_count(network.backbone):,} in the heads\n"
        f"{count(recipe.train.epochs, 'epoch')} of {count(steps, 'step')}: {recipe.train.batch} images, {views}"
    )
    seconds = estimate_base_training(recipe, base, context, network)
    yield f"time on this machine ({context.device.type}, {torch.get_num_threads()} threads): about {duration(seconds)}"
    if seconds > LONG_TRAINING and context.device.type == "cpu":
        yield f"That is long for a CPU. Shorter, and not comparable with the paper: {_shorter(recipe)}"
        if dataset.name == "cifar100":
            yield "In an hour on two cores: fscil train cifar100_cpu --data DIR"
        yield "In minutes: fscil demo"


def _shorter(recipe: Config) -> str:
    """Options that reduce a training from days to hours."""
    if recipe.model.init == "pretrained":
        wanted = "train.epochs=4 train.batch=64 train.schedule=onecycle data.resize=128 views.size=112"
    else:
        wanted = (
            "model.backbone=resnet18 model.width=16 mixing.repeats=0 train.epochs=10 train.schedule=onecycle "
            "train.lr=0.1 loss.scale=16 loss.margin_warmup=0.5"
        )
    return " ".join(f"--set {setting}" for setting in wanted.split())


def _left_out(dataset: Dataset, protocol: Protocol) -> str:
    left = len(dataset.class_names) - protocol.classes
    return f" ({left} classes of the data are in no session)" if left else ""
