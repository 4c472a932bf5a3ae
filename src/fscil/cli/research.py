"""The research commands: from a recipe to the paper's tables."""

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fscil.cli.options import (
    MAX_DRAWS,
    MAX_SEEDS,
    Data,
    Device,
    Plugins,
    Quiet,
    Recipe,
    SessionList,
    Settings,
    Shots,
    chosen_settings,
    numbers,
    plugin_options,
    say,
)
from fscil.errors import ConfigError, DataError
from fscil.runtime import torchrun

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
    classes: Annotated[
        bool, typer.Option("--classes", help="Only the names of its classes, a line each, as --sessions needs them.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Show what of a data set is there, what is missing and where to get it.

    Example: fscil data cifar100 --root datasets --download
    """
    from fscil.data import load
    from fscil.data.describe import describe

    if download:
        from fscil.data.download import download as fetch

        if root is None:
            raise DataError("--download needs --root DIR, the folder to put the data set in.")
        fetch(name, root, quiet)
    say("\n".join(load(name, root).class_names) if classes else describe(name, root))


@commands.command()
def train(
    recipe: Recipe,
    data: Data = None,
    out: Out = None,
    set_: Settings = None,
    sessions: SessionList = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_SEEDS, help="Several runs, --out/seedN: the recipe's train.seed and the ones after it."
        ),
    ] = 1,
    plugin: Plugins = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train on the base classes, into a run folder. Ctrl-C stops it; --resume continues, bit for bit on a CPU.

    Example: fscil train cifar100 --data datasets --out runs/cifar --set model.width=16 --set train.epochs=10

    On all GPUs of a machine: torchrun --nproc-per-node gpu -m fscil train cifar100 --data datasets --out runs/cifar
    """
    from fscil.config import load_recipe
    from fscil.runtime.distributed import joined
    from fscil.training.context import Context

    context = Context.on(device, quiet)
    plugins = plugin_options(plugin)
    settings = [word for item in set_ or [] for word in ("--set", item)]
    settings += ["--sessions", str(sessions)] if sessions else []
    changes = chosen_settings(set_, sessions)
    where = [] if device == "auto" else ["--device", device]
    chosen = out or Path("runs") / Path(recipe).stem
    several = [] if seeds == 1 else ["--seeds", str(seeds)]
    start = [*torchrun.prefix(), "train", recipe, "--out", str(chosen), "--resume"]
    again = shlex.join([*start, *several, *plugins, *settings, *where])
    first = load_recipe(recipe, changes).train.seed
    with joined(context.device):
        for seed in range(first, first + seeds):
            config = load_recipe(recipe, [*changes, f"train.seed={seed}"])
            folder = chosen / f"seed{seed}" if several else chosen
            _train(config, partial(_opened, config, folder, data, resume, bool(several)), data, context, again)
            say(f"Next: {shlex.join(['fscil', 'evaluate', str(folder), *plugins])}")


def _opened(config: "Config", folder: Path, data: Path | None, resume: bool, several: bool) -> "Run":
    """The run to train: a new one, or the one to resume. What torchrun starts again is resumed by itself."""
    exists = (folder / "run.json").exists()
    begun = (resume and (exists or not several)) or (exists and torchrun.attempt() > 0)
    return _resumed(config, folder) if begun else _new_run(config, folder, data)


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


def _train(config: "Config", open_run: Callable[[], "Run"], data: Path | None, context: "Context", again: str) -> None:
    """Of the processes of a torchrun job only the first opens the run."""
    from fscil.experiments import run as experiments
    from fscil.runtime.distributed import computed_by_main

    opened: list[Run] = []

    def begin() -> tuple[bool, Path | None]:
        opened.append(open_run())
        return opened[0].finished, _root(opened[0], data)

    finished, root = computed_by_main(begin)
    run = opened[0] if opened else None
    if not finished:
        try:
            experiments.train(config, run, root, context, say)
        except KeyboardInterrupt:
            say(f"\nStopped; nothing is lost. Continue with: {again}")
            raise
    if run:
        say(f"{run.folder} is already trained." if finished else f"Trained: {run.weights}")


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
    method: Annotated[
        str | None,
        typer.Option(help="Another method on the run's network, if it starts from the same base training."),
    ] = None,
    set_: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the results; default RUN, with --method or --set RUN/evaluate-METHOD."),
    ] = None,
    plugin: Plugins = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Evaluate every session and print the tables, with the paper's numbers where there are any.

    Writes results.json, provenance.json, table.md, predictions.safetensors and confusion matrices into the run folder.

    Examples: fscil evaluate runs/cifar --shots 5,1 --draws 10

    fscil evaluate runs/cifar --method alice_plda --draws 10
    """
    from fscil.experiments.run import evaluation_folder
    from fscil.runtime.distributed import joined, raise_in_all
    from fscil.training.context import Context
    from fscil.training.run_folder import Run

    counts = None if shots is None else numbers(shots)
    context = Context.on(device, quiet)
    changes = [*(set_ or []), *([f"method={method}"] if method else [])]
    with joined(context.device):
        with raise_in_all():
            opened = Run.open(run)
            if changes and not out:
                out = evaluation_folder(opened, changes)
        _evaluate(opened, data, counts, draws, prototypes, context, openset, changes, out)


def _evaluate(
    run: "Run",
    data: Path | None,
    shots: Sequence[int] | None,
    draws: int,
    prototypes: Any,
    context: "Context",
    openset: bool = False,
    changes: Sequence[str] = (),
    out: Path | None = None,
) -> None:
    from rich.console import Console

    from fscil.experiments import run as experiments
    from fscil.report import run_tables
    from fscil.runtime.files import write_text

    if prototypes not in (None, "balanced", "all"):
        raise ConfigError(f"--prototypes {prototypes}: expected balanced or all.")
    results = experiments.evaluate(run, _root(run, data), context, shots, draws, prototypes, openset, changes, out)
    if not torchrun.is_main():
        return
    folder = out or run.folder
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    tables = run_tables(results)
    for table in tables:
        console.print(table.terminal(), crop=False)
        console.print()
    write_text(folder / "table.md", "\n\n".join(table.markdown(level=3) for table in tables) + "\n")
    say(f"Written: {folder}/results.json, provenance.json, table.md, predictions.safetensors, confusion-*-shot.csv")


@commands.command()
def features(
    run: Annotated[Path, typer.Argument(help="A run folder made by fscil train.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The safetensors file to write.")],
    data: Data = None,
    plugin: Plugins = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write the features of all images of a run's classes: train, train_labels, test, test_labels (by arrival).

    They are kept in RUN/features as well, in parts, from where evaluate and study readout take them; after Ctrl-C the
    same command continues.

    Example: fscil features runs/cifar -o features.safetensors
    """
    from fscil.experiments.feature_files import features_of
    from fscil.runtime.files import save_tensors
    from fscil.training.context import Context
    from fscil.training.run_folder import Run

    opened = Run.open(run)
    tensors, about = features_of(opened, _root(opened, data), Context.on(device, quiet))
    save_tensors(out, tensors, about)
    shapes = ", ".join(f"{name} {' x '.join(map(str, tensors[name].shape))}" for name in ("train", "test"))
    say(f"Written: {out} ({shapes})")


@commands.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder.")] = Path("runs/demo"),
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train and evaluate ALICE on the embedded characters: a few minutes on a CPU, no download."""
    from fscil.config import load_recipe
    from fscil.training.context import Context
    from fscil.training.run_folder import Run

    config, context = load_recipe("glyphs"), Context.on(device, quiet)
    say("100 characters drawn from fonts: 60 base classes, then 8 sessions of 5 new ones from 5 images or 1.\n")

    def open_run() -> "Run":
        return _resumed(config, out) if (out / "run.json").exists() else _new_run(config, out, None)

    _train(config, open_run, None, context, shlex.join(["fscil", "demo", "--out", str(out)]))
    say("")
    _evaluate(Run.open(out), None, None, 0, None, context)
    say(f"\nAll files are in {out.resolve()}. Next: fscil recipes")
