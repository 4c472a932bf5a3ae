"""Base training, with which every method begins: a backbone and a classifier, trained on the base classes.

What differs between the methods is in the recipe: one view or two, class augmentation, a projection, a linear or a
cosine classifier, the loss, or an objective with a step of its own. Methods whose recipes agree can share one trained
network.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fscil.config import Config
from fscil.data.images import Images
from fscil.features import FeatureCache
from fscil.gallery import class_means, cosine_scores
from fscil.losses import LOSSES
from fscil.mixing import PairClasses, draw_mixtures
from fscil.models import Backbone
from fscil.models.state import load_state
from fscil.runtime.distributed import gather_rows, share, world_size
from fscil.runtime.files import load_tensors
from fscil.runtime.seeding import seeded
from fscil.training.base_network import BaseNetwork, new_head
from fscil.training.build import backbone_of, preprocess_of, views_of
from fscil.training.context import Context
from fscil.training.loop import Batch, Step, Trainer
from fscil.training.run_folder import Run

VALIDATION_PROBE = 64  # images that an estimate passes through the network
PLAIN_SCALE = 16.0  # of the cosines under plain cross-entropy

StepFactory: TypeAlias = Callable[[Config, BaseNetwork, int], Step]


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """The result of base training.

    head: None where it was trained on a projection, as both are discarded then. extras: what the recipe's objective
    leaves for the method, by name. stopped_after: epochs, where a deadline ended its training.
    """

    backbone: Backbone
    head: nn.Linear | None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    stopped_after: float | None = None

    @classmethod
    def of(cls, recipe: Config, network: BaseNetwork) -> "TrainedNetwork":
        """What is left of a network when its training has ended."""
        extras = network.objective.extras() if network.objective else {}
        kept = {name: value.detach().clone() for name, value in extras.items()}
        return cls(network.backbone, None if recipe.model.projection else network.head, kept)


def plain_recipe(config: Config) -> Config:
    """Plain base training: cross-entropy on one view, the classifier directly on the features.

    Views are padded crops, mirrored where the recipe mirrors, without changes of colour, as in the papers of the
    methods that start from it. These are all but ALICE, whose recipe is the given one, and FACT, SAVC, CLOSER, NC-FSCIL
    and OrCo, which change this one to base trainings of their own.
    """
    return replace(
        config,
        views=replace(config.views, count=1, kind="crops", jitter=0.0, grayscale=0.0),
        mixing=replace(config.mixing, repeats=0),
        model=replace(config.model, projection=0, head="cosine"),
        loss=replace(config.loss, kind="softmax", scale=PLAIN_SCALE, margin=0.0, margin_warmup=0.0),
    )


def new_base_network(recipe: Config, classes: int, context: Context, backbone: Backbone | None = None) -> BaseNetwork:
    """The network to train on this many base classes; with class augmentation, each pair has an output too.

    backbone: the recipe's, initialised from its seed or its weights, where none is given.
    """
    outputs = pair_classes(recipe, classes).outputs if recipe.mixing.repeats else classes
    backbone = backbone or backbone_of(recipe)
    with seeded(recipe.train.seed):
        return BaseNetwork(backbone, recipe, outputs).to(context.device)


def pair_classes(recipe: Config, classes: int) -> PairClasses:
    return PairClasses(classes, recipe.mixing.pairs, recipe.train.seed)


def base_step(recipe: Config, network: BaseNetwork, classes: int, log_prior: Tensor | None = None) -> Step:
    """The loss of one batch: the mean over its views, each of which is passed forward and backward on its own.

    log_prior: (outputs,) of the classes, added to the logits: balanced softmax (Ren et al., NeurIPS 2020).
    """
    mixing, loss = recipe.mixing, LOSSES[recipe.loss.kind]
    compiled = recipe.train.compile
    run = network if compiled == "off" else torch.compile(network, backend=compiled)
    pairs = pair_classes(recipe, classes)
    scale, full_margin, warmup = recipe.loss.scale, recipe.loss.margin, recipe.loss.margin_warmup

    def step(batch: Batch) -> Iterator[Tensor]:
        margin = full_margin * min(1.0, batch.progress / warmup) if warmup else full_margin
        labels, total = batch.labels[batch.part], len(batch.labels)
        views = views_of(recipe, batch.progress)(batch.pixels, batch.sizes, batch.generator, batch.part)
        mixed = mixing.repeats > 0 and batch.progress >= mixing.start
        if mixed:
            drawn = draw_mixtures(batch.labels, pairs, mixing.repeats, mixing.lam, batch.generator)
            own = drawn[share(len(drawn))]
            views = own.added_to(gather_rows(views, total), batch.part)
            labels, total = torch.cat([labels, own.labels]), total + len(drawn)
        target = labels.to(views.device, non_blocking=True)
        # Gradients are averaged over the processes: this makes them those of the mean loss of all rows.
        weight = len(labels) * world_size() / total
        outputs = pairs.outputs if mixed else classes
        for view in views:
            scores = run(view.contiguous(memory_format=torch.channels_last))[:, :outputs].float()
            if log_prior is not None:
                scores = scores + log_prior.to(scores.device) / scale  # the loss multiplies by the scale
            yield loss(scores, target, scale, margin) * weight / len(views)

    return step


def recipe_step(recipe: Config, network: BaseNetwork, classes: int) -> Step:
    """The step of the recipe's objective, or base_step where it names none."""
    if network.objective is None:
        return base_step(recipe, network, classes)
    return partial(network.objective.losses, network)


def train_base_network(
    recipe: Config,
    base: Images,
    context: Context,
    run: Run | None = None,
    network: BaseNetwork | None = None,
    make_step: StepFactory = recipe_step,
    deadline: float | None = None,
) -> TrainedNetwork:
    """Train on the base images. With a run folder: from its checkpoint, if it has one, and the result is saved there.

    network: the one to train, if it has been created already. make_step: recipe, network and number of classes -> the
    step of training. deadline: by time.monotonic(); training ends there, with the best state so far if the recipe
    selects one.
    """
    classes = len(base.counts)
    network = network or new_base_network(recipe, classes, context)
    train, held_out = validation_split(recipe, base)
    validate = _validation(recipe, network.backbone, train, held_out, context) if held_out else None
    trainer = Trainer(recipe.train, context, run, deadline)
    trainer.train(network, train, make_step(recipe, network, classes), validate)
    trained = replace(TrainedNetwork.of(recipe, network), stopped_after=trainer.stopped_after)
    if run:
        run.note(seconds=round(trainer.seconds, 3))
        about = {"backbone": recipe.model.backbone, "preprocess": preprocess_of(recipe).to_dict()}
        head = trained.head.state_dict() if trained.head else None
        run.finish(trained.backbone.state_dict(), about, head, trained.extras)
    return trained


def estimate_base_training(recipe: Config, base: Images, context: Context, network: BaseNetwork | None = None) -> float:
    """Seconds that train_base_network will take on this machine: its steps, and the validation after every epoch.

    A few steps are timed. network: the one to be trained, if it has been created already; it is left as it was.
    """
    classes = len(base.counts)
    network = network or new_base_network(recipe, classes, context)
    train, held_out = validation_split(recipe, base)
    seconds = Trainer(recipe.train, context).estimate(network, train, recipe_step(recipe, network, classes))
    if held_out:
        seconds += recipe.train.epochs * _validation_seconds(recipe, network.backbone, base, context)
    return seconds


def _validation_seconds(recipe: Config, backbone: Backbone, base: Images, context: Context) -> float:
    """Of one: all images pass the network. Some are timed, of all classes, after others that warm it up."""
    order = np.random.default_rng(0).permutation(len(base))
    count = min(VALIDATION_PROBE, len(base))
    features = FeatureCache(backbone, preprocess_of(recipe), context.device, quiet=True)
    for timed in (False, True):
        features.clear()
        began = time.perf_counter()
        features(base.select(np.sort(order[: count if timed else max(1, count // 4)])))
    return (time.perf_counter() - began) * len(base) / count


def load_base_network(recipe: Config, run: Run, context: Context) -> TrainedNetwork:
    """The network in a finished run folder. recipe: the one it was trained by."""
    run.require_finished()
    backbone = backbone_of(recipe, blank=True).to(context.device)
    load_state(backbone, load_tensors(run.weights)[0], str(run.weights))
    head: nn.Linear | None = None
    if run.head.is_file():
        state, _ = load_tensors(run.head)
        head = new_head(recipe, backbone.feature_dim, len(state["weight"])).to(context.device)
        load_state(head, state, str(run.head))
    extras = load_tensors(run.extras)[0] if run.extras.is_file() else {}
    return TrainedNetwork(backbone, head, {name: value.to(context.device) for name, value in extras.items()})


def validation_split(recipe: Config, base: Images) -> tuple[Images, Images | None]:
    """Training and validation images: a fraction of each base class, where the recipe selects the result by them."""
    if recipe.train.selection == "last":
        return base, None
    chosen = np.zeros(len(base), bool)
    random = np.random.default_rng(recipe.train.seed)
    for label, count in base.counts.items():
        members = random.permutation(np.flatnonzero(base.labels == label))
        chosen[members[: min(count - 1, max(1, round(count * recipe.train.validation_share)))]] = True
    return base.select(~chosen), base.select(chosen)


def _validation(
    recipe: Config, backbone: Backbone, train: Images, held_out: Images, context: Context
) -> Callable[[], float]:
    """Accuracy of the nearest class mean: the features are trained for it."""
    features = FeatureCache(backbone, preprocess_of(recipe), context.device, quiet=context.quiet)

    def validate() -> float:
        features.clear()
        means = class_means(features(train), torch.from_numpy(train.labels), len(train.counts))
        nearest = cosine_scores(features(held_out), means).argmax(1)
        return float((nearest == torch.from_numpy(held_out.labels)).float().mean())

    return validate
