"""Base training, as every method's begins: a backbone under a classifier, trained on the base classes as a recipe says.

What differs between the systems is in the recipe: one view or two, class augmentation, a projection, a linear or a
cosine classifier, the loss. Methods whose recipes agree can share one trained network.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fscil.augment import PairClasses, mix_classes
from fscil.config import Config
from fscil.data.images import Images
from fscil.features import FeatureExtractor
from fscil.gallery import class_means, cosine_scores
from fscil.losses import LOSSES
from fscil.models import Backbone, CosineHead, Projection
from fscil.runtime.files import load_tensors
from fscil.training.build import preprocess_of, views_of
from fscil.training.loop import Batch, Step, Trainer, load_state

PLAIN_SCALE = 16.0  # of the cosines, where nothing but cross-entropy is asked for


class BaseNetwork(nn.Module):
    """Backbone, projection and classifier as they are trained together."""

    def __init__(self, backbone: Backbone, config: Config, outputs: int) -> None:
        super().__init__()
        hidden = config.model.projection
        self.backbone = backbone
        self.projection = Projection(backbone.feature_dim, hidden, hidden) if hidden else nn.Identity()
        head = CosineHead if config.model.head == "cosine" else nn.Linear
        self.head = head(hidden or backbone.feature_dim, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, outputs)"""
        scores: Tensor = self.head(self.projection(self.backbone(images)))
        return scores


def plain_recipe(config: Config) -> Config:
    """Cross-entropy on one view, the classifier directly on the features: how every system but ALICE begins here."""
    return replace(
        config,
        views=replace(config.views, count=1),
        mixing=replace(config.mixing, repeats=0),
        model=replace(config.model, projection=0, head="cosine"),
        loss=replace(config.loss, kind="softmax", scale=PLAIN_SCALE, margin=0.0, margin_warmup=0.0),
    )


def base_network(config: Config, trainer: Trainer, backbone: Backbone, classes: int) -> BaseNetwork:
    """The network to train on this many base classes; with class augmentation, each pair has an output too."""
    outputs = pair_classes(config, classes).outputs if config.mixing.repeats else classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        return BaseNetwork(backbone, config, outputs).to(trainer.device)


def pair_classes(config: Config, classes: int) -> PairClasses:
    return PairClasses(classes, config.mixing.pairs, config.train.seed)


def base_step(config: Config, network: BaseNetwork, classes: int) -> Step:
    """The loss of one batch: the mean over its views, each of which passes the network on its own, there and back."""
    mixing, loss = config.mixing, LOSSES[config.loss.kind]
    compiled = config.train.compile
    run = network if compiled == "off" else torch.compile(network, backend=compiled)
    pairs = pair_classes(config, classes)
    scale, full_margin, warmup = config.loss.scale, config.loss.margin, config.loss.margin_warmup

    def step(batch: Batch) -> Iterator[Tensor]:
        margin = full_margin * min(1.0, batch.progress / warmup) if warmup else full_margin
        labels = batch.labels
        views = views_of(config, batch.progress)(batch.pixels, batch.sizes, batch.generator)
        mixed = mixing.repeats > 0 and batch.progress >= mixing.start
        if mixed:
            views, labels = mix_classes(views, labels, pairs, mixing.repeats, mixing.lam, batch.generator)
        target = labels.to(views.device, non_blocking=True)
        outputs = pairs.outputs if mixed else classes
        for view in views:
            scores = run(view.contiguous(memory_format=torch.channels_last))[:, :outputs].float()
            yield loss(scores, target, scale, margin) / len(views)

    return step


def pretrain(config: Config, trainer: Trainer, backbone: Backbone, base: Images) -> BaseNetwork:
    """Train backbone in place under a classifier; where the trainer's run is finished, take its result instead."""
    classes = len(base.counts)
    network = base_network(config, trainer, backbone, classes)
    if trainer.run and trainer.run.finished:
        _load(network, trainer)
        return network
    train, held_out = validation_split(config, base)
    validate = _validation(config, trainer, backbone, train, held_out) if held_out else None
    trainer.fit(network, train, base_step(config, network, classes), validate)
    return network


def _load(network: BaseNetwork, trainer: Trainer) -> None:
    run = trainer.run
    assert run is not None
    weights, _ = load_tensors(run.weights)
    load_state(network.backbone, weights, str(run.weights))
    if run.head.is_file():  # one that stood on a projection was thrown away with it
        head, _ = load_tensors(run.head)
        load_state(network.head, head, str(run.head))


def validation_split(config: Config, base: Images) -> tuple[Images, Images | None]:
    """A share of each base class, held out where the recipe chooses the result by validation."""
    if config.train.selection == "last":
        return base, None
    chosen = np.zeros(len(base), bool)
    random = np.random.default_rng(config.train.seed)
    for label, count in base.counts.items():
        members = random.permutation(np.flatnonzero(base.labels == label))
        chosen[members[: min(count - 1, max(1, round(count * config.train.validation_share)))]] = True
    return base.select(~chosen), base.select(chosen)


def _validation(
    config: Config, trainer: Trainer, backbone: Backbone, train: Images, held_out: Images
) -> Callable[[], float]:
    """Accuracy of the nearest class mean, which is what the features are for."""
    features = FeatureExtractor(backbone, preprocess_of(config), trainer.device, quiet=trainer.quiet)

    def validate() -> float:
        features.forget()
        means = class_means(features(train), torch.from_numpy(train.labels), len(train.counts))
        nearest = cosine_scores(features(held_out), means).argmax(1)
        return float((nearest == torch.from_numpy(held_out.labels)).float().mean())

    return validate
