"""Nearest class mean: cross-entropy base training, then a class is the mean of its features. The plain baseline.

It is what is left of ALICE without its base training, and what several later systems build upon.
"""

from dataclasses import replace
from typing import ClassVar

from fscil.config import Config
from fscil.methods.alice import Alice, Prototypes
from fscil.training.base_network import passes_per_image
from fscil.training.base_training import plain_recipe


class Ncm(Alice):
    """Base classes stand with the mean of all their images, new ones with that of their few."""

    title = "cross-entropy + nearest mean"
    table_order = 85
    highlighted = False
    prototypes: ClassVar[Prototypes | None] = "all"

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        return plain_recipe(config)


class BalancedNcm(Ncm):
    """Base classes stand with the mean of as many images as new ones have: those nearest to the mean of all."""

    title = "cross-entropy + nearest mean, balanced"
    table_order = 86
    prototypes = "balanced"


class EqualImagesNcm(BalancedNcm):
    """As many images pass the network in base training as in ALICE's, which has several views and mixtures of each.

    So there are more epochs, to the nearest whole one, and the rate drops as late in proportion.
    """

    title = "cross-entropy + nearest mean, balanced, as many images seen as ALICE"
    table_order = 87

    @classmethod
    def base_recipe(cls, config: Config) -> Config:
        plain, factor = plain_recipe(config), _images_of_alice(config)
        drops = tuple(round(factor * epoch) for epoch in plain.train.drops)
        return replace(plain, train=replace(plain.train, epochs=round(factor * plain.train.epochs), drops=drops))

    @classmethod
    def runs_by_default(cls, config: Config) -> bool:
        """Not where it is the same as with equal epochs."""
        return super().runs_by_default(config) and _images_of_alice(config) > 1


def _images_of_alice(config: Config) -> float:
    """How many times as many images pass the network in ALICE's base training as in a plain one of equal epochs."""
    return passes_per_image(config) / passes_per_image(plain_recipe(config))
