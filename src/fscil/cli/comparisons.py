"""The commands that compare methods, join the folders of a comparison or study, and report on one."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fscil.cli.grids import Draws, DryRun, Engine, Execution, NoWait, Seeds, conclude, run_grid, seeds_of
from fscil.cli.options import Data, Device, Plugins, Quiet, Recipe, SessionList, Settings, Shots, chosen_settings, say

commands = typer.Typer()


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
    sessions: SessionList = None,
    plugin: Plugins = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    engine: Engine = "local",
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Compare methods under equal settings. Shared base networks are trained once; the same command again continues.

    Several processes or machines may run the same command on one folder (a SLURM array): each takes cells that no other
    works on. --engine ray spreads the cells over a Ray cluster. Folders of machines that share no file system are
    joined by fscil merge.

    Example: fscil bench glyphs --methods alice,cec,finetune --shots 5,1 --seeds 3 --out runs/compare
    """
    from fscil.config import load_recipe
    from fscil.experiments.studies import comparison, default_methods

    vectors = [f"data.word_vectors={word_vectors}"] if word_vectors else []
    config = load_recipe(recipe, [*chosen_settings(set_, sessions), *vectors])
    chosen = default_methods(config) if methods is None else [name.strip() for name in methods.split(",")]
    folder = out or Path("runs") / f"bench-{Path(recipe).stem}"
    cells = comparison(config, chosen, seeds_of(config, seeds))
    execution = Execution(device, quiet, dry_run, not no_wait, engine, plugin or [])
    conclude(folder, cells, run_grid("bench", config, cells, folder, data, shots, draws, execution), dry_run)


@commands.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders made by fscil bench or fscil study.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder.")],
) -> None:
    """Join the folders of one comparison or study, as machines without a shared file system made them.

    Other settings, images or figures for the same cell are refused, and nothing is written then.

    Example: fscil merge runs/node1 runs/node2 --out runs/compare
    """
    from fscil.experiments.merge import merge_grids

    merge_grids(folders, out, say)
    say(f"Next: {shlex.join(['fscil', 'report', str(out)])}")


@commands.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder made by fscil bench or fscil study.")],
    latex: Annotated[bool, typer.Option("--latex", help="Also every table as LaTeX (booktabs), in tables/.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also every table as CSV, in tables/; notes.txt there.")] = False,
    plugin: Plugins = None,
) -> None:
    """Summarise results on the terminal, in report.md with its figures, and in one self-contained page, report.html.

    The paper's numbers are below ours, with the difference, wherever it has some. Unfinished grids are fine.

    Example: fscil report runs/compare --latex --csv
    """
    from fscil.report import write_report

    summary, written = write_report(folder, latex, csv)
    say(summary)
    say(f"\nWritten: {', '.join(map(str, written))}")
