"""The command line: each command parses, calls one function and prints. Nothing heavy is imported before its time."""

import errno
import os
import sys
import warnings
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn, TextIO

import typer

from fscil.cli import comparisons, fit, photos, research
from fscil.errors import ConfigError, FscilError, FscilWarning
from fscil.runtime.text import printable

USAGE_ERROR = 2  # as typer exits after an unknown option
MAX_PATH_SHOWN = 200
PATH_ERRORS = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOENT)

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
        try:
            app()
        finally:
            sys.stdout.flush()
    except FscilError as error:
        _exit(str(error), USAGE_ERROR if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        _discard_output()
        if error.errno == errno.EPIPE:  # whoever read the output has seen enough
            sys.exit(1)
        path = f"{str(error.filename)[:MAX_PATH_SHOWN]}: " if error.filename else ""
        _exit(f"{path}{error.strerror or error}.", USAGE_ERROR if error.errno in PATH_ERRORS else 1)
    except MemoryError:
        _exit("there is not enough memory for this.", 1)


def _exit(message: str, code: int) -> NoReturn:
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(code)


def _discard_output() -> None:
    """What could not be written must not be tried again when Python exits."""
    with suppress(OSError, ValueError):
        if sys.stdout.fileno() == 1:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, FscilWarning):
        print(f"warning: {printable(message)}", file=sys.stderr)
