"""Options and helpers that several commands share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from fscil.errors import ConfigError, DataError
from fscil.runtime import torchrun
from fscil.runtime.text import printable

MAX_SHOTS, MAX_SEEDS, MAX_DRAWS = 10**6, 1000, 10_000


def _load_plugins(files: list[Path] | None) -> list[Path]:
    """Before the command looks up any name. Returns a list also for None: typer 0.15 measures its length."""
    if files:
        from fscil.runtime.registry import load_plugin

        for file in files:
            load_plugin(file)
    return files or []


MODEL_HELP = "A model folder, made by fscil fit, or postgresql://… of a database."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
UnknownPrior = Annotated[
    float | None, typer.Option(help="How probable it is, before a photo is seen, that it shows none of the classes.")
]
Recipe = Annotated[str, typer.Argument(help="A recipe's name (see fscil recipes) or a TOML file.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data set (not needed for glyphs).")]
Shots = Annotated[str | None, typer.Option(help="Numbers of images per new class, for instance 5,1.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.")]
SessionList = Annotated[
    Path | None, typer.Option("--sessions", help="CSV with the columns class,session; 0 is the base. Sizes may differ.")
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        callback=_load_plugins,
        is_eager=True,
        help="A Python file that registers methods, data sets, backbones and so on; may be repeated.",
    ),
]


def say(text: str) -> None:
    """For people: names in the text may come from anywhere. Of the processes of a torchrun job one speaks."""
    if torchrun.is_main():
        print(printable(text, keep="\n"), flush=True)


def chosen_settings(set_: list[str] | None, sessions: Path | None) -> list[str]:
    """Of --sessions and of --set, which comes after it."""
    from fscil.config.session_lists import session_settings

    return [*(session_settings(sessions) if sessions else []), *(set_ or [])]


def plugin_options(files: list[Path] | None) -> list[str]:
    """The same plugins, for a command that is suggested."""
    return [word for file in files or [] for word in ("--plugin", str(file))]


def numbers(text: str) -> tuple[int, ...]:
    """Of --shots: whole numbers with commas."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or max(found) > MAX_SHOTS:
        raise ConfigError(f'--shots {text[:60]}: expected whole numbers with commas, for instance "5,1".')
    return found


def photo_files(paths: Iterable[str | Path]) -> list[Path]:
    """Files, each folder being replaced by the photos in it."""
    from fscil.data import photos

    found: list[Path] = []
    for path in (Path(path).expanduser() for path in paths):
        inside = photos.files(path) if path.is_dir() else [path]
        if not inside and (path / "model.json").exists():
            raise ConfigError(f"{path} is a model, where photos are expected. The model comes first.")
        if not inside:
            raise DataError(f"{path}: no photo in this folder.")
        found += inside
    return found
