"""The paper's comparison, ablation and margin/scale study, as cells of a grid."""

from collections.abc import Sequence
from dataclasses import replace

from fscil.config import Config, load_recipe
from fscil.experiments.cells import Cell
from fscil.experiments.published import DATA_NAMES, paper_results
from fscil.methods import METHODS

MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
SCALES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
UNMIXED_BATCH = 512  # of the paper, in the rows without class augmentation
MIXTURES, MIXING_SCALE, PROJECTION_PER_WIDTH = 4, 30.0, 32  # of the paper, in the row with class augmentation


def _seeded(config: Config, seed: int) -> Config:
    return replace(config, train=replace(config.train, seed=seed))


def _without_mixing(config: Config) -> Config:
    """With the paper's larger batch where the other training settings are the paper's too."""
    train, unmixed = config.train, replace(config, mixing=replace(config.mixing, repeats=0))
    if config.data.name in DATA_NAMES:
        paper = load_recipe(config.data.name).train
        if replace(train, seed=paper.seed, checkpoint_minutes=paper.checkpoint_minutes) == paper:
            return replace(unmixed, train=replace(train, batch=UNMIXED_BATCH))
    return unmixed


def _with_mixing(config: Config) -> Config:
    """With class augmentation, as the paper's recipes have it where the recipe has none.

    The outputs are many then, 1,830 for 60 classes, and a softmax over C cosines needs a scale of about 4 ln C to be
    confident. The projection is as wide in proportion to the network as the paper's: 2048 at width 64.
    """
    if config.mixing.repeats:
        return config
    return replace(
        config,
        mixing=replace(config.mixing, repeats=MIXTURES),
        loss=replace(config.loss, scale=MIXING_SCALE),
        model=replace(config.model, projection=PROJECTION_PER_WIDTH * config.model.width),
    )


def default_methods(config: Config) -> list[str]:
    """Of a comparison that names none: those that say so, which depends on the recipe."""
    return [name for name, method in METHODS.items() if method.runs_by_default(config)]


def comparison(config: Config, methods: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Every method under every seed, with otherwise equal settings."""
    for name in methods:
        METHODS[name]  # raises if it is unknown
    return [
        Cell(name, _seeded(replace(config, method=name), seed)) for name in dict.fromkeys(methods) for seed in seeds
    ]


def ablation(config: Config, seeds: Sequence[int]) -> list[Cell]:
    """The 7 rows of the paper's ablation table, from 5 trainings: one part of the method after the other is added.

    The recipe is the last row; where it has no class augmentation, that row has the paper's, see _with_mixing. Where it
    has one view only, the last two rows have two.
    """
    config = replace(config, views=replace(config.views, count=max(2, config.views.count)))
    whole = _with_mixing(config)
    two_views = _without_mixing(config)
    projection = replace(two_views, views=replace(two_views.views, count=1))
    angular = replace(projection, model=replace(projection.model, projection=0))
    entropy = replace(angular, loss=replace(angular.loss, kind="softmax", margin=0.0, margin_warmup=0.0))

    def unbalanced(one: Config) -> Config:
        return replace(one, test=replace(one.test, prototypes="all"))

    rows = {
        "cross-entropy": unbalanced(entropy),
        "cross-entropy, balanced": entropy,
        "angular penalty": unbalanced(angular),
        "angular penalty, balanced": angular,
        "+ projection": projection,
        "+ two views": two_views,
        "+ class augmentation": whole,
    }
    return [Cell(label, _seeded(row, seed)) for seed in seeds for label, row in rows.items()]


def margin_and_scale(config: Config, seeds: Sequence[int]) -> list[Cell]:
    """Two sweeps, two views on and class augmentation off: the margin at scale 30, then the scale at margin 0.4."""
    plain = _without_mixing(replace(config, views=replace(config.views, count=2)))
    pairs = [(margin, 30.0) for margin in MARGINS] + [(0.4, scale) for scale in SCALES]
    cells = []
    for margin, scale in dict.fromkeys(pairs):
        row = replace(plain, loss=replace(plain.loss, kind="cosface", margin=margin, scale=scale))
        cells += [Cell(f"m={margin:g} s={scale:g}", _seeded(row, seed)) for seed in seeds]
    return cells


def paper_methods(config: Config) -> list[str]:
    """The systems of the paper's tables for this data set, or for any; those that use words where there are vectors."""
    data = {config.data.name} if config.data.name in DATA_NAMES else set(DATA_NAMES)
    names = dict.fromkeys(row["method"] for row in paper_results() if row["data"] in data)
    return [name for name in names if METHODS[name].runs_by_default(config)]


def paper(config: Config, seeds: Sequence[int]) -> dict[str, tuple[str, list[Cell]]]:
    """All that the paper's tables and figures are made from: kind and cells of each grid, by the name of its folder."""
    return {
        "comparison": ("bench", comparison(config, paper_methods(config), seeds)),
        "ablation": ("ablation", ablation(config, seeds)),
        "margin-scale": ("margin-scale", margin_and_scale(config, seeds)),
    }
