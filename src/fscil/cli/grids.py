"""What the commands that run many experiments share: their options, and how a grid is run and concluded."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import MAX_DRAWS, MAX_SEEDS, numbers, say
from fscil.errors import ConfigError, FscilError
from fscil.runtime.text import count, first_few

if TYPE_CHECKING:
    from fscil.config import Config
    from fscil.experiments.cells import Cell
    from fscil.protocol import Draw

ENGINES = ("local", "ray")

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
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the cells, the base networks they share and the time; run nothing.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="End when other processes work on all that is left, instead of waiting.")
]
Engine = Annotated[
    str,
    typer.Option(help="local: this process. ray: the Ray cluster there is, or one on this machine; extra ray."),
]


@dataclass(frozen=True)
class Execution:
    """How a grid is run."""

    device: str
    quiet: bool
    dry_run: bool
    wait: bool
    engine: str
    plugins: Sequence[Path]


def seeds_of(config: "Config", count: int) -> range:
    return range(config.train.seed, config.train.seed + count)


def run_grid(
    kind: str,
    config: "Config",
    cells: "Sequence[Cell]",
    folder: Path,
    data: Path | None,
    shots: str | None,
    draws: int,
    how: Execution,
    earlier: Sequence[Path] = (),
) -> dict[str, str]:
    """Run a grid, or say what it would do; returns why cells failed. earlier: grids that may have its networks."""
    from fscil.experiments.grid import Grid
    from fscil.training.context import Context

    counts = numbers(shots) if shots else config.protocol.shots
    chosen: list[Draw] = list(dict.fromkeys([config.protocol.draw, *range(draws)]))
    drawn = f"shots {', '.join(map(str, counts))}, {count(len(chosen), 'draw')}"
    say(f"{kind}: {count(len(cells), 'cell')}, {drawn}, into {folder}")
    if how.engine not in ENGINES:
        raise ConfigError(f"--engine {how.engine}: expected {' or '.join(ENGINES)}.")
    context = Context.on(how.device, how.quiet)
    grid = Grid(folder, cells, data, context, say)
    grid.require_images(counts, chosen)
    if how.dry_run:
        from fscil.experiments.plan import describe_plan

        grid.read(kind)
        say(describe_plan(grid.runner, cells, counts, chosen, context))
        return {}
    for other in earlier:
        grid.take_networks(other)
    try:
        if how.engine == "ray":
            from fscil.experiments.ray_engine import run_on_ray

            return run_on_ray(grid, kind, counts, chosen, data, how.device, how.plugins, say)
        return grid.run(kind, counts, chosen, how.wait)
    except KeyboardInterrupt:
        say("\nStopped; finished parts are kept. Run the same command to continue.")
        raise


def conclude(folder: Path, cells: "Sequence[Cell]", failed: dict[str, str], dry_run: bool) -> None:
    """Say what comes next after a grid has run, and raise where cells have failed."""
    if len(failed) < len(cells) and not dry_run:
        say(f"Next: {shlex.join(['fscil', 'report', str(folder)])}")
    if failed:
        raise FscilError(
            f"{len(failed)} of {count(len(cells), 'cell')} failed: {first_few([*failed])}. The reasons are above; once "
            f"they are removed, the same command continues."
        )
