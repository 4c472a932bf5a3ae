"""A base training of nine steps, whose step a test may change."""

import os
import signal

import numpy as np
import torch

from fscil.data.images import ArrayPixels, Images
from fscil.training.base_training import base_step, new_base_network
from fscil.training.loop import Trainer
from helpers import CONTEXT, SIZE, part, small_config

CLASSES = 4
BASE = part([7, 7, 6, 6], 0)  # 26 images: 3 steps of 8 per epoch
EPOCHS = 3
STEPS = 9


def config(*assignments):
    return small_config(f"train.epochs={EPOCHS}", "train.lr=0.05", *assignments)


class Training:
    """One training of a new network; `step` may be replaced before it."""

    def __init__(self, *assignments, run=None):
        self.config = config(*assignments)
        self.trainer = Trainer(self.config.train, CONTEXT, run)
        self.network = new_base_network(self.config, CLASSES, CONTEXT)
        self.step = base_step(self.config, self.network, CLASSES)
        self.calls = 0

    def train(self, before=None, validate=None, images=BASE):
        """before: called with the number of each step, before it. Returns the state of the network."""

        def step(batch):
            self.calls += 1
            if before:
                before(self.calls)
            return self.step(batch)

        self.trainer.train(self.network, images, step, validate)
        return self.state()

    def state(self):
        return {name: value.clone() for name, value in self.network.state_dict().items()}


def interrupt_in(step, number=signal.SIGINT):
    """To be called before each step: Ctrl-C in this one."""
    return lambda call: os.kill(os.getpid(), number) if call == step else None


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def numbered(count):
    """Images that carry their own number in their first pixel."""
    pixels = np.zeros((count, SIZE, SIZE, 3), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(count)
    return Images.of(ArrayPixels(pixels), np.arange(count) % CLASSES)
