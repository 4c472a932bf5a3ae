"""A run folder: the resolved recipe, metrics, checkpoint, weights and results of one training run.

config.toml              the resolved recipe; `fscil train RUN/config.toml` repeats the run
run.json                 where the data was, when and with what it was made, whether training is finished
metrics.jsonl            loss, learning rate and speed during training
checkpoint.safetensors   only while training is unfinished: all that is needed to continue to the same bits
best.safetensors         likewise, where the result is selected by validation
weights.safetensors      the trained backbone
head.safetensors         its classifier, if it was trained on the features and not on a projection
extras.safetensors       what the recipe's objective leaves for the method, if it leaves anything
results.json, table.md, predictions.safetensors, confusion-*.csv   written by evaluation

run.json, every line of metrics.jsonl and, in its first line, config.toml have a checksum; older ones without load.
"""

import hashlib
import json
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fscil import __version__
from fscil.config import Config, load_recipe, to_toml
from fscil.errors import StoreError
from fscil.runtime.files import (
    SCHEMA,
    append_json_line,
    load_tensors,
    read_checked_json,
    read_json_lines,
    save_tensors,
    with_checksum,
    write_checked_json,
    write_text,
    wrong_checksum,
)
from fscil.runtime.locks import LOCK, locked
from fscil.runtime.regular_files import read_regular
from fscil.runtime.validation import as_type

if TYPE_CHECKING:
    from torch import Tensor

MAX_CONFIG_BYTES = 2**24
CONFIG_CHECKSUM = "# sha256 of what follows: "


def machine() -> dict[str, Any]:
    """Where results were computed: hardware and versions."""
    import os

    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fscil": __version__,
    }


def _processor() -> str:
    """The model of the CPU, by which rounding may differ."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


@dataclass(frozen=True)
class _RunJson:
    """What is read of run.json; it may come from anybody."""

    schema: int = 0
    finished: bool = False
    data: str | None = None
    seconds: float | None = None
    command: str = ""
    machine: dict[str, Any] = field(default_factory=dict)


class Run:
    """One run folder on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, config: Config, about: Mapping[str, Any]) -> "Run":
        """A new run; a folder that holds anything else is left alone, apart from what an unfinished `create` left."""
        run = cls(folder)
        if run._about.exists():
            raise StoreError(
                f"{folder} already holds a run. Continue it with --resume, or choose another folder with --out."
            )
        if folder.exists() and not run._is_unfinished():
            raise StoreError(f"{folder} exists and is not an empty folder. Choose another one with --out.")
        run.replace_config(config)
        record = {"schema": SCHEMA, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "finished": False}
        write_checked_json(
            run._about, {**record, "command": shlex.join(["fscil", *sys.argv[1:]]), "machine": machine(), **about}
        )
        return run

    def _is_unfinished(self) -> bool:
        """Whether the folder is empty, or holds nothing but files of a `create` that was killed."""
        try:
            names = {path.name for path in self.folder.iterdir()}
        except OSError:
            return False
        rest = {name for name in names if not (name.startswith(".") and name.endswith(".part"))} - {LOCK}
        return not rest or (rest == {self._config.name} and self._has_own_config())

    def _has_own_config(self) -> bool:
        """Not a recipe that somebody put there."""
        try:
            return self._checked_config()
        except StoreError:
            return False

    @classmethod
    def open(cls, folder: Path) -> "Run":
        run = cls(folder)
        if not run._about.is_file():
            raise StoreError(
                f"{folder} is not a run folder: it has no run.json. Make one with: fscil train … --out {folder}"
            )
        if run.about().get("schema", 0) > SCHEMA:
            raise StoreError(f"{folder}: written by a newer fscil. Upgrade fscil to read it.")
        return run

    @property
    def _about(self) -> Path:
        return self.folder / "run.json"

    @property
    def _config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def head(self) -> Path:
        return self.folder / "head.safetensors"

    @property
    def extras(self) -> Path:
        return self.folder / "extras.safetensors"

    def about(self) -> dict[str, Any]:
        found = read_checked_json(self._about)
        as_type(found, _RunJson, self._about)
        return found

    def note(self, **more: Any) -> None:
        write_checked_json(self._about, {**self.about(), **more})

    def replace_config(self, config: Config) -> None:
        """Replace the recipe by one whose sessions are resolved, so that later changes of the data do not matter."""
        text = to_toml(config)
        digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
        write_text(self._config, f"{CONFIG_CHECKSUM}{digest}\n{text}")

    def config(self) -> Config:
        self._checked_config()
        return load_recipe(self._config)

    def _checked_config(self) -> bool:
        """Whether config.toml has a checksum. Raises a StoreError if it is wrong."""
        try:
            content = read_regular(self._config, MAX_CONFIG_BYTES, follow_links=False)
        except OSError as error:
            raise StoreError(f"{self._config}: cannot be read ({error.strerror or error}).") from error
        if not content.startswith(b"#"):  # TOML is written without comments
            return False
        first, _, text = content.partition(b"\n")
        if first.decode(errors="replace") != CONFIG_CHECKSUM + hashlib.sha256(text).hexdigest():
            raise wrong_checksum(self._config)
        return True

    @property
    def finished(self) -> bool:
        return bool(self.about().get("finished")) and self.weights.is_file()

    def require_finished(self) -> None:
        if not self.finished:
            raise StoreError(
                f"{self.folder}: training is not finished. Continue it with: fscil train … --out {self.folder} --resume"
            )

    def discard_unbegun(self) -> None:
        """Undo create, if no training has begun since, so that the next attempt can use the folder."""
        if {path.name for path in self.folder.iterdir()} <= {self._about.name, self._config.name, LOCK}:
            for path in (self._about, self._config, self.folder / LOCK):
                path.unlink(missing_ok=True)

    def finish(
        self,
        weights: Mapping[str, "Tensor"],
        about: Mapping[str, Any],
        head: Mapping[str, "Tensor"] | None = None,
        extras: Mapping[str, "Tensor"] | None = None,
    ) -> None:
        """Write the weights first, then that the run is finished; the checkpoint is no longer needed."""
        if head is not None:
            save_tensors(self.head, head)
        if extras:
            save_tensors(self.extras, extras)
        save_tensors(self.weights, weights, about)
        self.note(finished=True)
        for leftover in ("checkpoint", "best"):
            (self.folder / f"{leftover}.safetensors").unlink(missing_ok=True)

    def save(self, kind: str, tensors: Mapping[str, "Tensor"], about: Mapping[str, Any]) -> None:
        """kind: "checkpoint" or "best"."""
        save_tensors(self.folder / f"{kind}.safetensors", tensors, about)

    def has(self, kind: str) -> bool:
        return (self.folder / f"{kind}.safetensors").exists()

    def load(self, kind: str) -> tuple[dict[str, "Tensor"], dict[str, Any]] | None:
        return load_tensors(self.folder / f"{kind}.safetensors") if self.has(kind) else None

    def log(self, **values: Any) -> None:
        append_json_line(self._metrics, values)

    def metrics(self) -> list[dict[str, Any]]:
        """Lines without a step are left out, as torn ones are."""
        return [line for line in read_json_lines(self._metrics) if isinstance(line.get("step"), int)]

    def rewind(self, step: int) -> None:
        """Remove what was logged after this step: these steps will be repeated, and logged again."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text(self._metrics, "".join(json.dumps(with_checksum(line)) + "\n" for line in kept))

    @contextmanager
    def board(self, done: int) -> Iterator[Any]:
        """A TensorBoard writer, or None where that is not installed; what it has of steps beyond `done` is removed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            yield None
            return
        with SummaryWriter(str(self.folder / "tensorboard"), purge_step=done + 1) as board:
            yield board

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time; the lock belongs to the process, so a crash leaves none behind."""
        with locked(self.folder / LOCK, wait=False) as mine:
            if not mine:
                raise StoreError(f"{self.folder}: another process is working on this run. Wait for it or stop it.")
            for leftover in self.folder.glob(".*.part"):  # of a writer that was killed
                leftover.unlink(missing_ok=True)
            yield
