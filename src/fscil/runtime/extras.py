"""How an extra of fscil is installed, as a command that works here: from where fscil itself was installed."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "fscil"


def install_command(*extras: str) -> str:
    """The command of pip that adds these extras.

    fscil need not be in an index: a clone, a repository or a file it came from is named instead (PEP 610). Without any
    record it came from an index, or is used from a clone without having been installed.
    """
    wanted = ",".join(extras)
    clone = Path(__file__).resolve().parents[3]
    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        return f'pip install -e "{clone}[{wanted}]"' if (clone / "pyproject.toml").is_file() else _by_name(wanted)
    return _from_origin(json.loads(record), wanted) if record else _by_name(wanted)


def _from_origin(origin: dict[str, Any], wanted: str) -> str:
    """origin: the content of direct_url.json."""
    url = origin["url"]
    if "vcs_info" in origin:
        return f'pip install "{NAME}[{wanted}] @ {origin["vcs_info"]["vcs"]}+{url}"'
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f'pip install {editable}"{url2pathname(urlsplit(url).path)}[{wanted}]"'
    return f'pip install "{NAME}[{wanted}] @ {url}"'


def _by_name(wanted: str) -> str:
    return f'pip install "{NAME}[{wanted}]"'
