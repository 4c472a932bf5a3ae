"""The command line: each command parses, calls one function and prints. Nothing heavy is imported before its time."""

import sys
import warnings
from io import TextIOWrapper
from typing import Annotated, TextIO

import typer

from fscil import __version__
from fscil.cli import backbones, checking, comparisons, enrollment, fit, galleries, photos, research, review, studies
from fscil.cli.failures import one_line_errors
from fscil.errors import ConfigError, FscilWarning
from fscil.runtime import torchrun
from fscil.runtime.text import printable

SHARED_COMMANDS = {"train", "evaluate"}  # that the processes of a torchrun job do together

app = typer.Typer(
    help="Few-shot class-incremental image classification: train once on base classes, then learn new classes from one "
    "to five images each. Start with: fscil demo, or with your own photos: fscil fit DIR -o MODEL",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(fit.commands)
app.add_typer(enrollment.commands)
app.add_typer(photos.commands)
app.add_typer(review.commands)
app.add_typer(checking.commands)
app.add_typer(galleries.commands)
app.add_typer(backbones.commands)
app.add_typer(research.commands)
app.add_typer(comparisons.commands)
app.add_typer(studies.commands)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fscil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: a mistake of the user's gives one line, not a stack trace."""
    from fscil.runtime.allocator import tune_allocator

    tune_allocator()
    warnings.showwarning = _show_warning
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not be Unicode, nor the terminal
    with one_line_errors():
        try:
            _require_no_torchrun()
            # Not standalone: typer would print its errors itself, in four lines.
            sys.exit(app(args=sys.argv[1:] or ["--help"], prog_name="fscil", standalone_mode=False) or 0)
        finally:
            sys.stdout.flush()


def _require_no_torchrun() -> None:
    """Other commands would be done by every process, into the same files."""
    if torchrun.world_size() > 1 and not SHARED_COMMANDS.intersection(sys.argv[1:2]):
        raise ConfigError(f"torchrun can run fscil {' and fscil '.join(sorted(SHARED_COMMANDS, reverse=True))} alone.")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, FscilWarning) and torchrun.is_main():
        print(f"warning: {printable(message)}", file=sys.stderr)
