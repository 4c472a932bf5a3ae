"""The commands that run many experiments: the comparison of methods and the paper's studies."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import (
    MAX_DRAWS,
    MAX_SEEDS,
    Data,
    Device,
    Plugins,
    Quiet,
    Recipe,
    Settings,
    Shots,
    numbers,
    say,
)
from fscil.errors import ConfigError, FscilError

if TYPE_CHECKING:
    from fscil.config import Config
    from fscil.experiments.cells import Cell
    from fscil.protocol import Draw

commands = typer.Typer()

Seeds = Annotated[
    int,
    typer.Option(
        min=1, max=MAX_SEEDS, help="Trainings of each network: the recipe's train.seed, and the ones after it."
    ),
]
Draws = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_DRAWS, help="Seeded draws of the few images, beside the recipe's own (the published one)."
    ),
]


@commands.command()
def bench(
    recipe: Recipe,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas; default: all that are cheap to evaluate and have the word vectors they need."
        ),
    ] = None,
    data: Data = None,
    shots: Shots = None,
    seeds: Seeds = 1,
    draws: Draws = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write; default runs/bench-RECIPE.")] = None,
    word_vectors: Annotated[
        Path | None, typer.Option(help="Word vectors of the class names, for the methods that use them.")
    ] = None,
    set_: Settings = None,
    plugin: Plugins = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Compare methods under equal settings. Shared base networks are trained once; the same command again continues.

    Example: fscil bench glyphs --methods alice,cec,finetune --shots 5,1 --seeds 3 --out runs/compare
    """
    from fscil.config import load_recipe
    from fscil.experiments.studies import comparison, default_methods

    vectors = [f"data.word_vectors={word_vectors}"] if word_vectors else []
    config = load_recipe(recipe, [*(set_ or []), *vectors])
    chosen = [name.strip() for name in methods.split(",")] if methods else default_methods(config)
    folder = out or Path("runs") / f"bench-{Path(recipe).stem}"
    cells = comparison(config, chosen, _seeds(config, seeds))
    _run("bench", config, cells, folder, data, shots, draws, device, quiet)


@commands.command()
def study(
    which: Annotated[str, typer.Argument(help="ablation or margin-scale.")],
    recipe: Recipe,
    data: Data = None,
    shots: Shots = None,
    seeds: Seeds = 1,
    draws: Draws = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write; default runs/WHICH-RECIPE.")] = None,
    set_: Settings = None,
    plugin: Plugins = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """The paper's studies: of its method's parts (ablation: 7 rows, 5 trainings), of margin and scale (12 trainings).

    Example: fscil study ablation glyphs --shots 5 --out runs/ablation
    """
    from fscil.config import load_recipe
    from fscil.experiments import studies

    makers = {"ablation": studies.ablation, "margin-scale": studies.margin_and_scale}
    if which not in makers:
        raise ConfigError(f"study {which}: no such study. Known are {', '.join(makers)}.")
    config = load_recipe(recipe, set_ or [])
    folder = out or Path("runs") / f"{which}-{Path(recipe).stem}"
    cells = makers[which](config, _seeds(config, seeds))
    _run(which, config, cells, folder, data, shots, draws, device, quiet)


def _seeds(config: "Config", count: int) -> range:
    return range(config.train.seed, config.train.seed + count)


def _run(
    kind: str,
    config: "Config",
    cells: "Sequence[Cell]",
    folder: Path,
    data: Path | None,
    shots: str | None,
    draws: int,
    device: str,
    quiet: bool,
) -> None:
    from fscil.experiments.grid import Grid
    from fscil.training.context import Context

    counts = numbers(shots) if shots else config.protocol.shots
    chosen: list[Draw] = list(dict.fromkeys([config.protocol.draw, *range(draws)]))
    say(f"{kind}: {len(cells)} cells, shots {', '.join(map(str, counts))}, {len(chosen)} draws, into {folder}")
    try:
        failed = Grid(folder, cells, data, Context.on(device, quiet), say).run(kind, counts, chosen)
    except KeyboardInterrupt:
        say("\nStopped; finished parts are kept. Run the same command to continue.")
        raise
    say(f"Next: fscil report {folder}")
    if failed:
        raise FscilError(f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)}. The others are finished.")


@commands.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder made by fscil bench or fscil study.")], plugin: Plugins = None
) -> None:
    """Summarise results on the terminal, in report.md with its figures, and in one self-contained page, report.html.

    The paper's numbers are below ours, with the difference, wherever it has some. Unfinished grids are fine.
    """
    from fscil.report import write_report

    summary, written = write_report(folder)
    say(summary)
    say(f"\nWritten: {', '.join(map(str, written))}")
