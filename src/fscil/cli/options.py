"""What the commands share: options of the same meaning and a word to the user."""

from typing import Annotated

import typer

from fscil.errors import ConfigError

Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.")]


def say(text: str) -> None:
    print(text, flush=True)


def numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ConfigError(f'--shots {text}: expected whole numbers with commas, for instance "5,1".')
    return found
