"""Formulas of the methods' papers written out for lists of numbers, and a record of how a method trains."""

import math
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import torch

from fscil.data.images import Images
from fscil.protocol import Protocol
from fscil.training.build import base_images
from helpers import small_config, tiny_dataset, trained_method, untrained_method

DATA = tiny_dataset(12, train=8, test=4)
PROTOCOL = Protocol(6, 2, 3, 2)
BASE = base_images(DATA, PROTOCOL)


def session(number, shots=2):
    protocol = PROTOCOL.with_shots(shots)
    return DATA.train.select(protocol.samples(DATA.train.labels, number, 0)).relabel(protocol.seen(number))


def config_of(*assignments):
    settings = ("train.epochs=2", "incremental.steps=2", "incremental.lr=0.02", "incremental.exemplars=3")
    return small_config(*settings, *assignments)


@cache
def base_state(name):
    return trained_method(name, config_of(), BASE, (2, 1)).state()


def fitted(name, *assignments):
    """A method that has learned the base classes, a little; the settings concern what comes after that."""
    method = untrained_method(name, config_of(*assignments), 6)
    method.load_state(base_state(name))
    return method


# How a method trained


@dataclass
class Training:
    """One call of a method's train: what it was given, and the network as it was before and after."""

    images: Images
    loss: object
    lr: float | None
    before: object
    after: object


def copy_of(network):
    """(n, 3, h, w) -> features and cosines at the scale 16, as lists, of this network as it is now."""
    backbone, head = deepcopy(network.backbone), deepcopy(network.head)

    @torch.no_grad()
    def run(views):
        features = backbone(views)
        return features.double().tolist(), (16 * head(features)).double().tolist()

    return run


def record_trainings(method):
    """A list to which later calls of the method's train are added."""
    trainings, train = [], method.train

    def recorded(images, loss, seed, heads=None, lr=None):
        before = copy_of(method.network)
        train(images, loss, seed, heads, lr)
        trainings.append(Training(images, loss, lr, before, copy_of(method.network)))

    method.train = recorded
    return trainings


def some_views(labels, seed=0):
    """Anything of the right shape, with these labels."""
    views = torch.randn(len(labels), 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    return views, torch.tensor(labels)


# Formulas


def softmax(row, temperature=1.0):
    exponentials = [math.exp(value / temperature) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def cross_entropy(scores, labels):
    return mean(-math.log(softmax(row)[label]) for row, label in zip(scores, labels, strict=True))


def distillation(scores, taught, temperature=2.0):
    total = 0.0
    for now, before in zip(scores, taught, strict=True):
        for p, q in zip(softmax(before, temperature), softmax(now, temperature), strict=True):
            total += p * math.log(p / q)
    return temperature**2 * total / len(scores)


def unit(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row] if length else list(row)


def cosine(a, b):
    return sum(x * y for x, y in zip(unit(a), unit(b), strict=True))


def running_distances(features, chosen):
    """{image not chosen: distance of the mean that it and those chosen would have to the mean of all}"""
    rows = [unit(row) for row in features]
    middle = [mean(column) for column in zip(*rows, strict=True)]
    found = {}
    for number in set(range(len(rows))) - set(chosen):
        running = [mean(column) for column in zip(*(rows[i] for i in [*chosen, number]), strict=True)]
        found[number] = math.dist(running, middle)
    return found


def herding(features, count):
    """At each step every image left is tried."""
    chosen = []
    while len(chosen) < min(count, len(features)):
        distances = running_distances(features, chosen)
        chosen.append(min(distances, key=distances.get))
    return chosen


def herded_pixels(images, features, count):
    """{class: its chosen images, in order}"""
    found = {}
    for label in images.counts:
        own = [place for place in range(len(images)) if images.labels[place] == label]
        chosen = herding([features[place].tolist() for place in own], count)
        pixels, _ = images.batch([own[place] for place in chosen])
        found[label] = pixels
    return found
