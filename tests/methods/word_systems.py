"""What the tests of both methods that use word vectors share: a small data set, and vectors for its class names."""

from copy import deepcopy
from functools import cache

import numpy as np

from fscil.protocol import Protocol
from fscil.training.base_training import train_base_network
from fscil.training.build import base_images
from helpers import CONTEXT, NAMES, small_config, tiny_dataset

DATA = tiny_dataset(12, train=6, test=3)
PROTOCOL = Protocol(6, 2, 3, 2)
BASE = base_images(DATA, PROTOCOL)
TABLE = np.random.default_rng(0).normal(size=(12, 5))


def write(path, table=TABLE, names=NAMES):
    lines = [" ".join([name, *map(str, vector)]) for name, vector in zip(names, table, strict=False)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@cache
def base_network(method):
    return train_base_network(method.base_recipe(small_config("train.epochs=1")), BASE, CONTEXT)


def build_method(method, path, *assignments):
    """On a trained base network of its own, before fit_base."""
    config = small_config("train.epochs=1", f"data.word_vectors={path}", *assignments)
    return method(config, deepcopy(base_network(method)), CONTEXT, NAMES)


@cache
def fitted_state(method, path):
    fitted = build_method(method, path)
    fitted.fit_base(BASE, (2,))
    return fitted.state()


def fitted_method(method, path):
    """After fit_base, from a state made once."""
    fitted = build_method(method, path)
    fitted.load_state(fitted_state(method, path))
    return fitted


def record_trainings(method):
    """In place of training: a list of what is trained, on which examples, with which loss."""
    trainings = []

    def recorded(part, examples, loss, schedule, generator):
        trainings.append((part, examples, loss))

    method.train_part = recorded
    return trainings


def session(number):
    return DATA.train.select(PROTOCOL.samples(DATA.train.labels, number, 0)).relabel(PROTOCOL.seen(number))
