"""How good a pretrained network is before it is trained further, so that a training which harms it is noticed."""

import torch

from fscil.config import Config
from fscil.data import Dataset
from fscil.experiments.sessions import evaluation_images
from fscil.features import FeatureCache
from fscil.gallery import class_means, cosine_scores
from fscil.metrics import accuracy
from fscil.protocol import Protocol
from fscil.training.build import backbone_of, base_images, preprocess_of
from fscil.training.context import Context


def pretrained_accuracy(recipe: Config, dataset: Dataset, protocol: Protocol, context: Context) -> float | None:
    """Of session 0, by the nearest class mean of the network as base training finds it; None if that is not pretrained
    (by its weights or a file of them), or not trained at all.
    """
    pretrained = recipe.model.init == "pretrained" or recipe.model.weights
    if not pretrained or not recipe.train.epochs:
        return None
    features = FeatureCache(backbone_of(recipe), preprocess_of(recipe), context.device, quiet=context.quiet)
    base, asked = base_images(dataset, protocol), evaluation_images(dataset, protocol, 0)
    means = class_means(features(base), torch.from_numpy(base.labels), protocol.base_classes)
    return accuracy(cosine_scores(features(asked), means).argmax(1).numpy(), asked.labels)
