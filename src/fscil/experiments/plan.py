"""What a grid will do, before it does it: its cells, the base networks they share, what is done, and what it costs."""

from collections.abc import Sequence
from pathlib import Path

from fscil.experiments.cell_run import CellRunner
from fscil.experiments.cells import Cell, difference_of_settings
from fscil.experiments.provenance import RESULTS, read_results
from fscil.experiments.run import installed_base_recipe, require_enough_images
from fscil.protocol import Draw
from fscil.runtime.text import count, duration
from fscil.training.base_training import estimate_base_training
from fscil.training.build import base_images, protocol_of
from fscil.training.context import Context


def describe_plan(
    runner: CellRunner, cells: Sequence[Cell], shots: Sequence[int], draws: Sequence[Draw], context: Context
) -> str:
    """Lines for a reader. Steps of every training that is to be done are timed on this machine; nothing is written."""
    refused = {cell.name: difference_of_settings(cell, runner.folder(cell)) for cell in cells}
    missing = {cell.name: 0 if refused[cell.name] else len(runner.missing(cell, shots, draws)) for cell in cells}
    sharing: dict[str, list[Cell]] = {}
    for cell in cells:
        require_enough_images(runner.dataset(cell.config), protocol_of(cell.config, runner.dataset(cell.config)), shots)
        key = runner.networks.run_of(installed_base_recipe(cell.config)).folder.name
        sharing.setdefault(key, []).append(cell)
    walks = len(dict.fromkeys(shots)) * len(dict.fromkeys(draws))
    lines = [f"{count(len(cells), 'cell')} of {count(walks, 'walk')} each, from {count(len(sharing), 'base network')}:"]
    total = 0.0
    for key, group in sharing.items():
        needed = any(missing[cell.name] for cell in group)
        text, seconds = _network(runner, group[0], needed, context)
        total += seconds
        lines.append(f"base network {key}: {text}")
        for cell in group:
            state = refused[cell.name] or _state(runner.folder(cell), walks, missing[cell.name])
            lines.append(f"  {cell.name}: {state}")
    known, unknown = _session_seconds(runner, cells, missing)
    lines.append(
        f"Time on this machine, one process: base training about {duration(total)}"
        + (f", sessions about {duration(known)} by those measured here" if known else "")
        + (f". Not counted: {count(unknown, 'walk')} of methods that were not measured here yet." if unknown else ".")
    )
    return "\n".join(lines)


def _network(runner: CellRunner, cell: Cell, needed: bool, context: Context) -> tuple[str, float]:
    """What is left of a base training, and its seconds."""
    recipe = installed_base_recipe(cell.config)
    if runner.networks.is_ready(recipe):
        return "trained", 0.0
    if not needed:
        return "not needed", 0.0
    dataset = runner.dataset(cell.config)
    protocol = protocol_of(cell.config, dataset)
    seconds = estimate_base_training(recipe, base_images(dataset, protocol), context)
    begun = (runner.networks.run_of(recipe).folder / "checkpoint.safetensors").exists()
    state = "begun; the whole of it takes" if begun else "to be trained in"
    epochs = f"{count(recipe.train.epochs, 'epoch')}, seed {recipe.train.seed}"
    return f"{recipe.model.backbone}, {epochs}, {state} about {duration(seconds)}", seconds


def _state(folder: Path, walks: int, missing: int) -> str:
    failed = ", failed before" if (folder / "failed.txt").exists() else ""
    if not missing:
        return f"done{failed}"
    return f"{walks - missing} of {count(walks, 'walk')} done{failed}" if missing < walks else f"to be done{failed}"


def _session_seconds(runner: CellRunner, cells: Sequence[Cell], missing: dict[str, int]) -> tuple[float, int]:
    """Of the missing walks, by the mean of those that the same method has done here; and how many have no such mean."""
    measured: dict[str, list[float]] = {}
    for cell in cells:
        if (runner.folder(cell) / RESULTS).exists():
            found = [walk["seconds"] for walk in read_results(runner.folder(cell))["walks"] if walk.get("seconds")]
            measured.setdefault(cell.config.method, []).extend(found)
    seconds, unknown = 0.0, 0
    for cell in cells:
        known = measured.get(cell.config.method)
        seconds += missing[cell.name] * sum(known) / len(known) if known else 0.0
        unknown += 0 if known else missing[cell.name]
    return seconds, unknown
