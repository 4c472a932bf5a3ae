"""Metrics of a training to Weights & Biases, where that is installed and WANDB_PROJECT names a project."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fscil.config import flatten
from fscil.errors import TrainingError
from fscil.training.run_folder import Run


@contextmanager
def wandb_run(run: Run) -> Iterator[Any]:
    """A run of Weights & Biases that a resumed training continues, or None. Nothing is sent unless it was asked for."""
    if not os.environ.get("WANDB_PROJECT"):
        yield None
        return
    try:
        import wandb
    except ImportError as error:
        raise TrainingError("WANDB_PROJECT is set, but wandb is not installed. Run: pip install wandb") from error
    identity = hashlib.sha256(f"{run.folder.resolve()} {run.about()['created']}".encode()).hexdigest()[:12]
    try:
        tracker = wandb.init(
            dir=run.folder, id=identity, name=run.folder.name, resume="allow", config=flatten(run.config())
        )
    except Exception as error:  # it has many, of a wrong key or no network
        raise TrainingError(f"wandb: {error}. Log in with: wandb login, or unset WANDB_PROJECT.") from error
    with tracker:
        yield tracker
