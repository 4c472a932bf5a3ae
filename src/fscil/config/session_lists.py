"""Which class comes in which session, from a CSV file: the columns class and session, session 0 being the base."""

import csv
import io
import json
from collections import Counter
from pathlib import Path

from fscil.errors import ConfigError
from fscil.runtime.regular_files import read_regular

MAX_BYTES = 2**26


def session_settings(path: Path) -> list[str]:
    """Assignments, as for `--set`, of the order of classes, the number of base classes and those of each session.

    Within a session classes keep the order of the file. Sessions may be of different sizes.
    """
    sessions: dict[int, list[str]] = {}
    for line, (name, session) in enumerate(_rows(path), 2):
        if not session.isascii() or not session.isdecimal() or len(session) > 6:
            raise ConfigError(f'{path}, line {line}: session "{session[:40]}" is no number from 0 on.')
        sessions.setdefault(int(session), []).append(name)
    if sorted(sessions) != list(range(len(sessions))):
        raise ConfigError(
            f"{path}: has sessions {', '.join(map(str, sorted(sessions)[:20]))}. Number them 0 (the base), 1, 2, … "
            f"without a gap."
        )
    names = [name for session in sorted(sessions) for name in sessions[session]]
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise ConfigError(f'{path} names "{name}" {times} times: sessions must not overlap. Name each class once.')
    ways = [len(sessions[session]) for session in range(1, len(sessions))]
    return [
        f"protocol.order={json.dumps(names, ensure_ascii=False)}",
        f"protocol.base_classes={len(sessions[0])}",
        f"protocol.sessions={len(ways)}",
        f"protocol.ways={ways}",
    ]


def _rows(path: Path) -> list[tuple[str, str]]:
    """(class, session) of every line."""
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
        table = csv.DictReader(io.StringIO(text, newline=""))
        if not {"class", "session"} <= {*(table.fieldnames or ())}:
            raise ConfigError(f'{path}: its first line must name the columns "class" and "session".')
        found = [((row["class"] or "").strip(), (row["session"] or "").strip()) for row in table]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a CSV file in UTF-8 ({error}).") from error
    if not found:
        raise ConfigError(f"{path}: names no class.")
    return found
