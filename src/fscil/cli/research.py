"""The research commands: from a recipe to the paper's tables."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fscil.cli.options import (
    MAX_DRAWS,
    Data,
    Device,
    Plugins,
    Quiet,
    Recipe,
    Settings,
    Shots,
    numbers,
    plugin_options,
    say,
)
from fscil.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fscil.config import Config
    from fscil.training.context import Context
    from fscil.training.run_folder import Run

commands = typer.Typer()

Out = Annotated[Path | None, typer.Option("--out", help="Run folder to write; default runs/RECIPE.")]


@commands.command()
def recipes() -> None:
    """List the recipes that come with fscil, and what each is for."""
    from fscil.config import load_recipe, recipe_names

    for name in recipe_names():
        print(f"{name:15} {load_recipe(name).about}")
    print("\nRun one:  fscil train RECIPE --data DIR --out RUN [--set key=value …]")


@commands.command("data")
def data_command(
    name: Annotated[str, typer.Argument(help="cifar100, mini_imagenet, cub200, folder or glyphs.")],
    root: Annotated[Path | None, typer.Option("--root", help="Folder of the data set.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Download it first (cifar100 and cub200).")] = False,
    quiet: Quiet = False,
) -> None:
    """Show what of a data set is there, what is missing and where to get it.

    Example: fscil data cifar100 --root datasets --download
    """
    from fscil.data.describe import describe

    if download:
        from fscil.data.download import download as fetch

        if root is None:
            raise DataError("--download needs --root DIR, the folder to put the data set in.")
        fetch(name, root, quiet)
    say(describe(name, root))


@commands.command()
def train(
    recipe: Recipe,
    data: Data = None,
    out: Out = None,
    set_: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    plugin: Plugins = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train on the base classes, into a run folder. Ctrl-C stops it; --resume continues, bit for bit on a CPU.

    Example: fscil train cifar100 --data datasets --out runs/cifar --set model.width=16 --set train.epochs=10
    """
    from fscil.config import load_recipe
    from fscil.training.context import Context

    config, context = load_recipe(recipe, set_ or []), Context.on(device, quiet)
    folder = out or Path("runs") / Path(recipe).stem
    run = _resumed(config, folder) if resume else _new_run(config, folder, data)
    plugins = plugin_options(plugin)
    settings = [word for item in set_ or [] for word in ("--set", item)]
    where = [] if device == "auto" else ["--device", device]
    again = shlex.join(["fscil", "train", recipe, "--out", str(folder), "--resume", *plugins, *settings, *where])
    _train(config, run, data, context, again)
    say(f"Next: {shlex.join(['fscil', 'evaluate', str(folder), *plugins])}")


def _new_run(config: "Config", folder: Path, data: Path | None) -> "Run":
    from fscil.training.run_folder import Run

    return Run.create(folder, config, {"data": str(data.expanduser().resolve()) if data else None})


def _resumed(config: "Config", folder: Path) -> "Run":
    """The run in this folder, which must have been started with the same settings."""
    from fscil.config import difference, flatten
    from fscil.training.run_folder import Run

    run = Run.open(folder)
    asked = flatten(config)
    free = ["about", "train.checkpoint_minutes"]  # these change no result
    free += [key for key in ("protocol.base_classes", "protocol.sessions", "protocol.order") if not asked[key]]
    if asked["protocol.sessions"] is None:  # resolved from the data when the run began, and way with it
        free.append("protocol.way")
    if other := difference(config, run.config(), free):
        raise ConfigError(f"{folder} was begun with other settings: {other}. Give the same, or another --out.")
    return run


def _train(config: "Config", run: "Run", data: Path | None, context: "Context", again: str) -> None:
    from fscil.experiments import run as experiments

    if run.finished:
        say(f"{run.folder} is already trained.")
        return
    try:
        experiments.train(config, run, _root(run, data), context, say)
    except KeyboardInterrupt:
        say(f"\nStopped; nothing is lost. Continue with: {again}")
        raise
    say(f"Trained: {run.weights}")


def _root(run: "Run", data: Path | None) -> Path | None:
    """Folder of the images: as given now, or as given when the run was made."""
    stored = run.about().get("data")
    return data or (Path(stored) if stored else None)


@commands.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder made by fscil train.")],
    data: Data = None,
    shots: Shots = None,
    draws: Annotated[
        int, typer.Option(min=0, max=MAX_DRAWS, help="Average over this many seeded draws of the few images.")
    ] = 0,
    prototypes: Annotated[str | None, typer.Option(help="balanced (the paper's) or all.")] = None,
    openset: Annotated[
        bool, typer.Option("--openset", help="Also evaluate how images of later sessions are recognised as unknown.")
    ] = False,
    plugin: Plugins = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Evaluate every session and print the tables, with the paper's numbers where there are any.

    Writes results.json, table.md, predictions.safetensors and confusion matrices into the run folder.
    """
    from fscil.training.context import Context
    from fscil.training.run_folder import Run

    counts = None if shots is None else numbers(shots)
    _evaluate(Run.open(run), data, counts, draws, prototypes, Context.on(device, quiet), openset)


def _evaluate(
    run: "Run",
    data: Path | None,
    shots: Sequence[int] | None,
    draws: int,
    prototypes: Any,
    context: "Context",
    openset: bool = False,
) -> None:
    from rich.console import Console

    from fscil.experiments import run as experiments
    from fscil.report import run_tables
    from fscil.runtime.files import write_text

    if prototypes not in (None, "balanced", "all"):
        raise ConfigError(f"--prototypes {prototypes}: expected balanced or all.")
    results = experiments.evaluate(run, _root(run, data), context, shots, draws, prototypes, openset)
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    tables = run_tables(results)
    for table in tables:
        console.print(table.terminal(), crop=False)
        console.print()
    write_text(run.folder / "table.md", "\n\n".join(table.markdown(level=3) for table in tables) + "\n")
    say(f"Written: {run.folder}/results.json, table.md, predictions.safetensors, confusion-*-shot.csv")


@commands.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder.")] = Path("runs/demo"),
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train and evaluate ALICE on the embedded characters: a few minutes on a CPU, no download."""
    from fscil.config import load_recipe
    from fscil.training.context import Context

    config, context = load_recipe("glyphs"), Context.on(device, quiet)
    say("100 characters drawn from fonts: 60 base classes, then 8 sessions of 5 new ones from 5 images or 1.\n")
    run = _resumed(config, out) if (out / "run.json").exists() else _new_run(config, out, None)
    _train(config, run, None, context, shlex.join(["fscil", "demo", "--out", str(out)]))
    say("")
    _evaluate(run, None, None, 0, None, context)
    say(f"\nAll files are in {out.resolve()}. Next: fscil recipes")
