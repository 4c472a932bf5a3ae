"""Nearest class mean: cross-entropy base training, then a class is the mean of its features. The plain baseline.

It is what is left of ALICE without its base training, and what several later systems build upon.
"""

from typing import ClassVar

from fscil.config import Config
from fscil.methods.alice import Alice, Prototypes
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
