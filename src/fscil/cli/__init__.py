"""The command line: each command parses, calls one function and prints. Nothing heavy is imported before its time."""

import sys
import warnings
from io import TextIOWrapper
from typing import TextIO

import typer

from fscil.cli import comparisons, fit, photos, research
from fscil.errors import FscilError, FscilWarning

app = typer.Typer(
    help="Few-shot class-incremental image classification: train once on base classes, then learn new classes from one "
    "to five images each. Start with: fscil demo, or with your own photos: fscil fit DIR -o MODEL",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(fit.commands)
app.add_typer(photos.commands)
app.add_typer(research.commands)
app.add_typer(comparisons.commands)


def main() -> None:
    """Entry point: a mistake of the user's gives one line, not a stack trace."""
    from fscil.runtime.allocator import tune_allocator

    tune_allocator()
    warnings.showwarning = _show_warning
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not be Unicode, nor the terminal
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
