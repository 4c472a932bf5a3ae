"""A step of an objective on a network that does not change, to be compared with formulas."""

import math

import numpy as np
import torch

from fscil.methods import METHODS
from fscil.training.base_training import new_base_network
from fscil.training.batches import Batches
from helpers import CONTEXT, part, small_config

IMAGES = part([4, 3, 2], 0)


def recipe_of(name, *assignments):
    return METHODS[name].base_recipe(small_config("model.width=4", *assignments))


def network_of(recipe, classes=3):
    """In evaluation mode, so that a feature does not depend on the other images; it has seen some before."""
    network = new_base_network(recipe, classes, CONTEXT).train()
    with torch.no_grad():
        network.backbone(torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(5)))
    return network.eval()


def batch_of(recipe, step=3, images=IMAGES, progress=0.5):
    """The same for the same step, with a new generator each time."""
    return Batches(images, recipe.train, CONTEXT.device).of_images(np.arange(len(images)), step, progress)


def log_softmax(row, place):
    return row[place] - math.log(sum(math.exp(value) for value in row))
