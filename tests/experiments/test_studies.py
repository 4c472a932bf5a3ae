"""The rows of the ablation: what the last one is, and that nothing of it reaches the others."""

import pytest

from fscil.config import load_recipe
from fscil.experiments.studies import ablation


def rows(*assignments, recipe="cifar100_cpu"):
    return {cell.label: cell.config for cell in ablation(load_recipe(recipe, assignments), [0])}


def test_class_augmentation_is_the_papers_where_the_recipe_has_none():
    """Scale 16 suits 60 classes, not 1,830 outputs."""
    found = rows("model.width=8")
    whole = found.pop("+ class augmentation")
    assert (whole.mixing.repeats, whole.loss.scale, whole.model.projection) == (4, 30.0, 32 * 8)
    for row in found.values():
        assert (row.mixing.repeats, row.loss.scale) == (0, 16.0)
    assert found["+ projection"].model.projection == found["+ two views"].model.projection == 512


@pytest.mark.parametrize("repeats", [1, 4])
def test_class_augmentation_of_the_recipe_stays(repeats):
    settings = (f"mixing.repeats={repeats}", "loss.scale=20", "model.projection=300")
    whole = rows(*settings)["+ class augmentation"]
    assert (whole.mixing.repeats, whole.loss.scale, whole.model.projection) == (repeats, 20.0, 300)


@pytest.mark.parametrize("recipe", ["glyphs", "cifar100_cpu", "cifar100"])
def test_two_views_are_two_where_the_recipe_has_one(recipe):
    counts = {label: row.views.count for label, row in rows(recipe=recipe).items()}
    assert {label for label, count in counts.items() if count == 2} == {"+ two views", "+ class augmentation"}
    assert set(counts.values()) == {1, 2}


def test_the_paper_recipe_is_the_last_row():
    assert rows(recipe="cifar100")["+ class augmentation"] == load_recipe("cifar100")
