"""What the tests of both systems that use word vectors share: a small data set, and vectors for its class names."""

import numpy as np
import torch

from fscil.experiments import sessions
from fscil.protocol import Protocol
from fscil.training.loop import Trainer
from helpers import NAMES, small_config, tiny_dataset

CPU = torch.device("cpu")
DATA = tiny_dataset(12, train=6, test=3)
PROTOCOL = Protocol(6, 2, 3, 2)
BASE = sessions.base_images(DATA, PROTOCOL)
TABLE = np.random.default_rng(0).normal(size=(12, 5))


def write(path, table=TABLE, names=NAMES):
    lines = [" ".join([name, *map(str, vector)]) for name, vector in zip(names, table, strict=False)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def build_system(system, path, *assignments):
    config = small_config("train.epochs=1", f"data.word_vectors={path}", *assignments)
    return system(config, Trainer(config.train, CPU, quiet=True), NAMES)


def session(number):
    return DATA.train.select(PROTOCOL.samples(DATA.train.labels, number, 0)).relabel(PROTOCOL.seen(number))
