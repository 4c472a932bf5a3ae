"""The command line: each command parses, calls one function and prints. Nothing heavy is imported before its time."""

import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from fscil.errors import ConfigError, DataError, FscilError, FscilWarning

if TYPE_CHECKING:
    import torch

    from fscil.config import Config
    from fscil.runs import Run

app = typer.Typer(
    help="Few-shot class-incremental image classification: train once on base classes, then learn new classes from one "
    "to five images each. Start with: fscil demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data set (not needed for glyphs).")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder to write; default runs/RECIPE.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def _say(text: str) -> None:
    print(text, flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ConfigError(f'--shots {text}: expected whole numbers with commas, for instance "5,1".')
    return found


@app.command()
def recipes() -> None:
    """List the recipes that come with fscil, with what each is for."""
    from fscil.config import load_recipe, recipe_names

    for name in recipe_names():
        print(f"{name:15} {load_recipe(name).about}")
    print("\nRun one:  fscil train RECIPE --data DIR --out RUN [--set key=value …]")


@app.command("data")
def data_command(
    name: Annotated[str, typer.Argument(help="cifar100, mini_imagenet, cub200, folder or glyphs.")],
    root: Annotated[Path | None, typer.Option("--root", help="Where the data set is, or shall be.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch it first (cifar100 and cub200).")] = False,
    quiet: Quiet = False,
) -> None:
    """Say what of a data set is there, what is missing and where to get it.

    Example: fscil data cifar100 --root datasets --download
    """
    from fscil.data.describe import describe

    if download:
        from fscil.data.download import download as fetch

        if root is None:
            raise DataError("--download needs --root DIR, the folder to put the data set in.")
        fetch(name, root, quiet)
    print(describe(name, root))


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see fscil recipes) or a TOML file.")],
    data: Data = None,
    out: Out = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train on the base classes, into a run folder. Ctrl-C stops it; --resume goes on, to the same bits on a CPU.

    Example: fscil train cifar100 --data datasets --out runs/cifar --set model.width=16 --set train.epochs=10
    """
    from fscil.config import load_recipe
    from fscil.training import pick_device

    config, chosen = load_recipe(recipe, set_ or []), pick_device(device)
    folder = out or Path("runs") / Path(recipe).stem
    run = _resumed(config, folder) if resume else _new_run(config, folder, data)
    settings = [word for item in set_ or [] for word in ("--set", item)]
    where = [] if device == "auto" else ["--device", device]
    again = shlex.join(["fscil", "train", recipe, "--out", str(folder), "--resume", *settings, *where])
    _train(config, run, data, chosen, again, quiet)
    _say(f"Next: fscil evaluate {folder}")


def _new_run(config: "Config", folder: Path, data: Path | None) -> "Run":
    from fscil.runs import Run

    return Run.create(folder, config, {"data": str(data.expanduser().resolve()) if data else None})


def _resumed(config: "Config", folder: Path) -> "Run":
    from fscil.config import flatten
    from fscil.runs import Run

    run = Run.open(folder)
    asked, there = flatten(config), flatten(run.config())
    free = ["about", "train.checkpoint_minutes"]  # these change no result
    free += [key for key in ("protocol.base_classes", "protocol.sessions", "protocol.order") if not asked[key]]
    if asked["protocol.sessions"] is None:  # settled by the data when the run began, and way with it
        free.append("protocol.way")
    differing = [key for key in asked if asked[key] != there[key] and key not in free]
    if differing:
        key = differing[0]
        raise ConfigError(
            f"{folder} was begun with other settings: {key} = {there[key]} there, {asked[key]} here"
            f"{f', and {len(differing) - 1} more' if len(differing) > 1 else ''}. Give the same, or another --out."
        )
    return run


def _train(config: "Config", run: "Run", data: Path | None, device: "torch.device", again: str, quiet: bool) -> None:
    from fscil import experiments

    if run.finished:
        _say(f"{run.folder} is already trained.")
        return
    try:
        experiments.train(config, run, _root(run, data), device, _say, quiet)
    except KeyboardInterrupt:
        _say(f"\nStopped; nothing is lost. Go on with: {again}")
        raise
    _say(f"Trained: {run.weights}")


def _root(run: "Run", data: Path | None) -> Path | None:
    """Where the images are: as told now, or as told when the run was made."""
    stored = run.about().get("data")
    return data or (Path(stored) if stored else None)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder made by fscil train.")],
    data: Data = None,
    shots: Annotated[str | None, typer.Option(help="Numbers of images per new class, for instance 5,1.")] = None,
    draws: Annotated[int, typer.Option(min=0, help="Average over this many seeded draws of the few images.")] = 0,
    prototypes: Annotated[str | None, typer.Option(help="balanced (the paper's) or all.")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Walk all sessions and print the tables, with the paper's numbers where there are any.

    Writes results.json, table.md, predictions.safetensors and confusion matrices into the run folder.
    """
    from fscil.runs import Run
    from fscil.training import pick_device

    counts = None if shots is None else _numbers(shots)
    _evaluate(Run.open(run), data, counts, draws, prototypes, pick_device(device), quiet)


def _evaluate(
    run: "Run",
    data: Path | None,
    shots: Sequence[int] | None,
    draws: int,
    prototypes: Any,
    device: "torch.device",
    quiet: bool,
) -> None:
    from rich.console import Console

    from fscil import experiments
    from fscil.report import tables, to_markdown, to_terminal
    from fscil.store import write_text

    if prototypes not in (None, "balanced", "all"):
        raise ConfigError(f"--prototypes {prototypes}: expected balanced or all.")
    results = experiments.evaluate(run, _root(run, data), device, shots, draws, prototypes, quiet)
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    for table in tables(results):
        console.print(to_terminal(table), crop=False)
        console.print()
    write_text(run.folder / "table.md", "\n".join(map(to_markdown, tables(results))))
    _say(f"Written: {run.folder}/results.json, table.md, predictions.safetensors, confusion-*-shot.csv")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder.")] = Path("runs/demo"),
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train and evaluate ALICE on the embedded characters: a few minutes on a CPU, no download."""
    from fscil.config import load_recipe
    from fscil.training import pick_device

    config, chosen = load_recipe("glyphs"), pick_device(device)
    _say("100 characters drawn from fonts: 60 base classes, then 8 sessions of 5 new ones from 5 images or 1.\n")
    run = _resumed(config, out) if (out / "run.json").exists() else _new_run(config, out, None)
    _train(config, run, None, chosen, shlex.join(["fscil", "demo", "--out", str(out)]), quiet)
    _say("")
    _evaluate(run, None, None, 0, None, chosen, quiet)
    _say(f"\nAll files are in {out.resolve()}. Next: fscil recipes")


def main() -> None:
    """Entry point: a mistake of the user's gives one line, not a stack trace."""
    from fscil.allocator import tune_allocator

    tune_allocator()
    warnings.showwarning = _show_warning
    try:
        app()
    except FscilError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, FscilWarning):
        print(f"warning: {message}", file=sys.stderr)
