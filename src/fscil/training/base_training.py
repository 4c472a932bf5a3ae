"""Base training, with which every method begins: a backbone and a classifier, trained on the base classes.

What differs between the methods is in the recipe: one view or two, class augmentation, a projection, a linear or a
cosine classifier, the loss. Methods whose recipes agree can share one trained network.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fscil.augment import PairClasses, mix_classes
from fscil.config import Config
from fscil.data.images import Images
from fscil.features import FeatureCache
from fscil.gallery import class_means, cosine_scores
from fscil.losses import LOSSES
from fscil.models import Backbone, CosineHead, Projection
from fscil.models.state import load_state
from fscil.runtime.files import load_tensors
from fscil.runtime.seeding import seeded
from fscil.training.build import backbone_of, preprocess_of, views_of
from fscil.training.context import Context
from fscil.training.loop import Batch, Step, Trainer
from fscil.training.run_folder import Run

PLAIN_SCALE = 16.0  # of the cosines under plain cross-entropy

StepFactory: TypeAlias = Callable[[Config, "BaseNetwork", int], Step]


class BaseNetwork(nn.Module):
    """Backbone, projection and classifier as they are trained together."""

    def __init__(self, backbone: Backbone, config: Config, outputs: int) -> None:
        super().__init__()
        hidden = config.model.projection
        self.backbone = backbone
        self.projection = Projection(backbone.feature_dim, hidden, hidden) if hidden else nn.Identity()
        self.head = _new_head(config, hidden or backbone.feature_dim, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, outputs)"""
        scores: Tensor = self.head(self.projection(self.backbone(images)))
        return scores


def _new_head(recipe: Config, inputs: int, outputs: int) -> nn.Linear:
    return CosineHead(inputs, outputs) if recipe.model.head == "cosine" else nn.Linear(inputs, outputs)


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """The result of base training. head: None where it was trained on a projection, as both are discarded then."""

    backbone: Backbone
    head: nn.Linear | None


def plain_recipe(config: Config) -> Config:
    """Base training of all methods but ALICE: cross-entropy on one view, the classifier directly on the features.

    Views are padded crops, mirrored where the recipe mirrors, without changes of colour, as in the papers of these
    methods.
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
        labels = batch.labels
        views = views_of(recipe, batch.progress)(batch.pixels, batch.sizes, batch.generator)
        mixed = mixing.repeats > 0 and batch.progress >= mixing.start
        if mixed:
            views, labels = mix_classes(views, labels, pairs, mixing.repeats, mixing.lam, batch.generator)
        target = labels.to(views.device, non_blocking=True)
        outputs = pairs.outputs if mixed else classes
        for view in views:
            scores = run(view.contiguous(memory_format=torch.channels_last))[:, :outputs].float()
            if log_prior is not None:
                scores = scores + log_prior.to(scores.device) / scale  # the loss multiplies by the scale
            yield loss(scores, target, scale, margin) / len(views)

    return step


def train_base_network(
    recipe: Config,
    base: Images,
    context: Context,
    run: Run | None = None,
    network: BaseNetwork | None = None,
    make_step: StepFactory = base_step,
) -> TrainedNetwork:
    """Train on the base images. With a run folder: from its checkpoint, if it has one, and the result is saved there.

    network: the one to train, if it has been created already. make_step: recipe, network and number of classes -> the
    step of training.
    """
    classes = len(base.counts)
    network = network or new_base_network(recipe, classes, context)
    train, held_out = validation_split(recipe, base)
    validate = _validation(recipe, network.backbone, train, held_out, context) if held_out else None
    trainer = Trainer(recipe.train, context, run)
    trainer.train(network, train, make_step(recipe, network, classes), validate)
    trained = TrainedNetwork(network.backbone, None if recipe.model.projection else network.head)
    if run:
        run.note(seconds=round(trainer.seconds, 1))
        about = {"backbone": recipe.model.backbone, "preprocess": preprocess_of(recipe).to_dict()}
        run.finish(trained.backbone.state_dict(), about, trained.head.state_dict() if trained.head else None)
    return trained


def load_base_network(recipe: Config, run: Run, context: Context) -> TrainedNetwork:
    """The network in a finished run folder. recipe: the one it was trained by."""
    run.require_finished()
    backbone = backbone_of(recipe, blank=True).to(context.device)
    load_state(backbone, load_tensors(run.weights)[0], str(run.weights))
    head: nn.Linear | None = None
    if run.head.is_file():
        state, _ = load_tensors(run.head)
        head = _new_head(recipe, backbone.feature_dim, len(state["weight"])).to(context.device)
        load_state(head, state, str(run.head))
    return TrainedNetwork(backbone, head)


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
