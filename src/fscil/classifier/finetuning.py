"""Base training on a folder's classes: planned to fit into the minutes there are, ended by them, stoppable."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from fscil.config import Config, flatten
from fscil.data.images import Images
from fscil.errors import StoreError
from fscil.features import FeatureCache
from fscil.losses import LOSSES
from fscil.models import Backbone
from fscil.runtime.text import count, duration
from fscil.training.base_network import BaseNetwork
from fscil.training.base_training import (
    estimate_base_training,
    load_base_network,
    new_base_network,
    train_base_network,
)
from fscil.training.build import preprocess_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

HEAD_RATE, HEAD_EPOCHS = 10, 20  # of the classifier alone: times the learning rate of the recipe
PLANNED_SHARE = 0.9  # of the time there is: the estimate may be too low
FINISHING_SHARE = 0.05  # of the minutes, at least, for the decision rule and the check
# In units of encoding all photos once: after training a validation (by torch, which takes longer) and the encoding by
# the trained network; before it the features for the classifier alone.
ENCODINGS_AFTER, ENCODINGS_BEFORE = 3, 2

Say: TypeAlias = Callable[[str], None]  # what messages for the user are given to


@dataclass(frozen=True)
class TimeLimit:
    """The minutes that all the work may take, from its beginning, training being what is shortened."""

    minutes: float | None
    began: float = field(default_factory=time.monotonic)
    encoding: float = 0.0  # seconds that all photos take to pass the network
    deciding: float = 0.0  # seconds for the decision rule and the check

    @property
    def end_of_training(self) -> float:
        """By time.monotonic(): what comes after it still fits in."""
        if self.minutes is None:
            return math.inf
        finishing = max(60 * self.minutes * FINISHING_SHARE, self.deciding)
        return self.began + 60 * self.minutes - finishing - ENCODINGS_AFTER * self.encoding

    @property
    def seconds_to_train(self) -> float:
        """From now on."""
        return self.end_of_training - time.monotonic() - ENCODINGS_BEFORE * self.encoding


@dataclass(frozen=True)
class TrainingPlan:
    """How long to train, and on how many photos."""

    config: Config
    limit: int | None  # photos per class, where there is no time for all
    seconds: float  # estimated


def finetune(
    config: Config,
    base: Images,
    limit: TimeLimit,
    context: Context,
    say: Say,
    work: Path | None,
    source: Mapping[str, Any],
    head_first: bool = False,
) -> tuple[Backbone, dict[str, Any]]:
    """The backbone, trained on the base classes within the limit, and a record of how.

    Training is planned to end in time. Where it takes longer than estimated it is stopped, and the best state so far is
    the result.

    head_first: train projection and classifier on the untouched backbone's features before, so that their random
    weights do not spoil it.

    With a run folder (`work`) training can be stopped. The same call again, with the same `source` (a description of
    the base images) and settings, continues it by the plan made at first.
    """
    request = {**source, "settings": flatten(config), "minutes": limit.minutes}
    run = _existing_run(work, request) if work else None
    if run:
        plan = TrainingPlan(run.config(), run.about()["limit"], run.about()["estimate"])
        say(f"continuing the training in {run.folder}")
    else:
        plan = make_plan(config, base, limit.seconds_to_train, context)
        _announce(say, plan, base, limit, context)
        if work:
            run = Run.create(work, plan.config, {"asked": request, "limit": plan.limit, "estimate": plan.seconds})
    chosen = limit_per_class(base, plan.limit)
    started, deadline = time.monotonic(), limit.end_of_training
    stopped_after: float | None = None
    with run.locked() if run else nullcontext():
        if run and run.finished:  # stopped between the end of training and the writing of the model
            backbone = load_base_network(plan.config, run, context).backbone
        else:
            network = new_base_network(plan.config, len(chosen.counts), context)
            if head_first and not (run and run.has("checkpoint")):
                train_head(network, chosen, plan.config, context, deadline)
            trained = train_base_network(plan.config, chosen, context, run, network, deadline=deadline)
            backbone, stopped_after = trained.backbone, trained.stopped_after
    seconds = run.about()["seconds"] if run else round(time.monotonic() - started, 1)
    trained_on = {"classes": len(base.counts), "photos": len(chosen)}
    record = {"settings": flatten(plan.config), "trained on": trained_on, "seconds": seconds}
    if stopped_after is None:
        return backbone, record
    say(
        f"training was stopped after {stopped_after:.2g} of {count(plan.config.train.epochs, 'epoch')}, to stay within "
        f"{limit.minutes:g} min: the best it had until then is kept"
    )
    return backbone, {**record, "stopped after epochs": stopped_after}


def train_head(
    network: BaseNetwork, images: Images, config: Config, context: Context, deadline: float = math.inf
) -> None:
    """Projection and classifier alone, in place, on features that are computed once.

    deadline: by time.monotonic(); no epoch begins after it.
    """
    settings, loss, classes = config.train, LOSSES[config.loss.kind], len(images.counts)
    features = FeatureCache(network.backbone, preprocess_of(config), context.device, quiet=context.quiet)(images)
    features, labels = features.to(context.device), torch.from_numpy(images.labels).to(context.device)
    parameters = [*network.projection.parameters(), *network.head.parameters()]
    optimizer = torch.optim.SGD(
        parameters, lr=HEAD_RATE * settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    generator = torch.Generator().manual_seed(settings.seed)
    network.train()
    for _ in range(HEAD_EPOCHS):
        if time.monotonic() >= deadline:
            return
        for rows in torch.split(torch.randperm(len(features), generator=generator), settings.batch):
            if len(rows) < 2:  # BatchNorm needs two
                continue
            scores = network.head(network.projection(features[rows]))[:, :classes]
            optimizer.zero_grad(set_to_none=True)
            loss(scores, labels[rows], config.loss.scale, config.loss.margin).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def make_plan(config: Config, base: Images, available: float, context: Context) -> TrainingPlan:
    """The recipe, or as much of it as fits into these seconds: fewer epochs, and if not even one fits, fewer photos."""
    seconds = estimate_base_training(config, base, context)
    if seconds <= available * PLANNED_SHARE:
        return TrainingPlan(config, None, seconds)
    epoch, budget = seconds / config.train.epochs, available * PLANNED_SHARE
    epochs = max(1, int(budget / epoch))
    shorter = replace(config, train=replace(config.train, epochs=epochs))
    if epoch <= budget:
        return TrainingPlan(shorter, None, epochs * epoch)
    limit = largest_limit(list(base.counts.values()), budget / epoch)
    return TrainingPlan(shorter, limit, epoch * len(limit_per_class(base, limit)) / len(base))


def largest_limit(counts: Sequence[int], share: float) -> int:
    """The largest number of photos per class that keeps at most this share of all, and never less than one."""
    numbers = np.array(counts)
    kept = np.minimum(numbers[:, None], np.arange(1, numbers.max() + 1)).sum(0)  # with a limit of 1, 2, …
    return max(1, int((kept <= share * numbers.sum()).sum()))


def limit_per_class(base: Images, limit: int | None) -> Images:
    """Of each class a seeded draw of at most this many photos."""
    if limit is None:
        return base
    order = np.random.default_rng(0).permutation(len(base))
    chosen = np.concatenate([order[base.labels[order] == label][:limit] for label in base.counts])
    return base.select(np.sort(chosen))


def _existing_run(work: Path, request: Mapping[str, Any]) -> Run | None:
    """The run that the same request started before, if there is one."""
    if not (work / "run.json").is_file():
        return None
    run = Run.open(work)
    before = run.about().get("asked", {})
    differing = [key for key in request if before.get(key) != request[key]]
    if differing:
        raise StoreError(
            f"{work} holds an unfinished training that was started with other {' and '.join(differing)}. Give the same "
            f"to continue it, or delete that folder to start again."
        )
    return run


def _announce(say: Say, plan: TrainingPlan, base: Images, limit: TimeLimit, context: Context) -> None:
    epochs, photos = plan.config.train.epochs, len(limit_per_class(base, plan.limit))
    at_most = f" (at most {plan.limit} per class)" if plan.limit else ""
    within = "" if limit.minutes is None else f", to stay within {limit.minutes:g} min"
    say(
        f"training {plan.config.model.backbone} on {len(base.counts)} classes: "
        f"{count(epochs, 'epoch')} of {photos} photos{at_most}{within}"
    )
    rest = (ENCODINGS_BEFORE + 1) * limit.encoding + limit.deciding  # of the command
    say(f"time on this machine ({machine(context)}): about {duration(plan.seconds + rest)}")


def machine(context: Context) -> str:
    """What an estimate of time is for, in words."""
    return f"{context.device.type}, {count(torch.get_num_threads(), 'thread')}"
