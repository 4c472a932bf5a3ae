"""The command line: each command parses, calls one function and prints. Nothing heavy is imported before its time."""

import errno
import os
import sys
import warnings
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, NoReturn, TextIO

import typer

from fscil import __version__
from fscil.cli import backbones, checking, comparisons, enrollment, fit, galleries, photos, research, review
from fscil.errors import ClassNameError, ConfigError, FscilError, FscilWarning, OtherProcessError
from fscil.runtime import torchrun
from fscil.runtime.text import printable

SHARED_COMMANDS = {"train", "evaluate"}  # that the processes of a torchrun job do together
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
app.add_typer(enrollment.commands)
app.add_typer(photos.commands)
app.add_typer(review.commands)
app.add_typer(checking.commands)
app.add_typer(galleries.commands)
app.add_typer(backbones.commands)
app.add_typer(research.commands)
app.add_typer(comparisons.commands)


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
    try:
        try:
            _require_no_torchrun()
            app()
        finally:
            sys.stdout.flush()
    except OtherProcessError:
        sys.exit(1)
    except FscilError as error:
        _exit(str(error), USAGE_ERROR if _is_usage_error(error) else 1)
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


def _is_usage_error(error: FscilError) -> bool:
    """Whether the command cannot be as it was typed: a setting, a name that no class can have, an impossible path."""
    cause = error.__cause__
    path = isinstance(cause, OSError) and cause.errno in PATH_ERRORS and cause.errno != errno.ENOENT
    return path or isinstance(error, ConfigError | ClassNameError)


def _require_no_torchrun() -> None:
    """Other commands would be done by every process, into the same files."""
    if torchrun.world_size() > 1 and not SHARED_COMMANDS.intersection(sys.argv[1:2]):
        raise ConfigError(f"torchrun can run fscil {' and fscil '.join(sorted(SHARED_COMMANDS, reverse=True))} alone.")


def _exit(message: str, code: int) -> NoReturn:
    where = "" if torchrun.is_main() else f"process {torchrun.rank()}: "
    print(f"error: {where}{printable(message)}", file=sys.stderr, flush=True)
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
    if issubclass(category, FscilWarning) and torchrun.is_main():
        print(f"warning: {printable(message)}", file=sys.stderr)
