"""What goes wrong becomes one line on standard error and an exit code."""

import csv
import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import Any, NoReturn

import typer

from fscil.errors import ClassNameError, ConfigError, FscilError, OtherProcessError
from fscil.runtime import torchrun
from fscil.runtime.text import printable

USAGE_ERROR, OTHER_ERROR, INTERRUPTED = 2, 1, 130
MAX_WORD_SHOWN = 200  # characters, as of a path
# A path that cannot be used, or output to a place that takes no more.
PATH_ERRORS = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
PATH_ERRORS |= {errno.EACCES, errno.EPERM, errno.EROFS}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The base class of typer's errors about options and arguments, which has no public name: newer versions of typer
# contain click, older ones import it.
TyperUsageError: Any = typer.BadParameter.__base__


@contextmanager
def one_line_errors() -> Iterator[None]:
    """In the block an error ends the process, with its message alone instead of a stack trace."""
    try:
        yield
    except OtherProcessError:
        sys.exit(OTHER_ERROR)
    except FscilError as error:
        _exit(str(error), USAGE_ERROR if _is_usage_error(error) else OTHER_ERROR)
    except TyperUsageError as error:
        _exit(_mistyped(error), USAGE_ERROR)
    except typer.Abort:  # its name for EOFError
        _exit("the input ended too early.", OTHER_ERROR)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        _discard_output()
        if error.errno == errno.EPIPE:  # whoever read the output has seen enough
            sys.exit(OTHER_ERROR)
        path = f"{error.filename}: " if error.filename else ""
        wrong_place = error.errno in PATH_ERRORS | FULL | {errno.ENOENT}
        _exit(f"{path}{error.strerror or error}.", USAGE_ERROR if wrong_place else OTHER_ERROR)
    except RuntimeError as error:
        if not _is_of_pathlib(error):
            raise
        _exit(f"{error}.", USAGE_ERROR)
    except MemoryError:
        _exit("there is not enough memory for this.", OTHER_ERROR)


def _is_usage_error(error: FscilError) -> bool:
    """Whether the command cannot be as it was typed: a setting, a name that no class can have, an impossible path, a
    list that is no CSV. Not so a disk that is full by the time a file is written: the same command works later.
    """
    cause = error.__cause__
    wrong_place = isinstance(cause, OSError) and cause.errno in PATH_ERRORS
    return wrong_place or isinstance(cause, csv.Error) or isinstance(error, ConfigError | ClassNameError)


def _is_of_pathlib(error: RuntimeError) -> bool:
    """Which raises it for links in a loop, and for ~ of a user who is not there."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")).startswith("pathlib")


def _mistyped(error: Any) -> str:
    """What typer says about an option or argument, and where all of them are explained."""
    message = " ".join(error.format_message().split()).removesuffix(".")
    typed = (word for word in sys.argv[1:2] if not word.startswith("-"))  # typer does not always say which command
    return f"{message}. See: {error.ctx.command_path if error.ctx else ' '.join(['fscil', *typed])} --help"


def _exit(message: str, code: int) -> NoReturn:
    where = "" if torchrun.is_main() else f"process {torchrun.rank()}: "
    short = re.sub(rf"(\S{{{MAX_WORD_SHOWN}}})\S+", r"\1…", printable(message))
    with suppress(OSError):  # standard error may be full too
        print(f"error: {where}{short}", file=sys.stderr, flush=True)
    sys.exit(code)


def _discard_output() -> None:
    """What could not be written must not be tried again when Python exits."""
    with suppress(OSError, ValueError):
        if sys.stdout.fileno() == 1:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
