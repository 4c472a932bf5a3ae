"""How the results of a grid were produced: departures from the paper, losses, times, memory, commands."""

from collections.abc import Mapping, Sequence
from typing import Any

from fscil.config import flatten, load_recipe
from fscil.experiments.published import DATA_NAMES
from fscil.report.blocks import RowKind, Table
from fscil.report.collect import Results, Row
from fscil.runtime.text import duration

KEPT = {"images": "images", "floats": "numbers"}


def departure_list(results: Results) -> list[str]:
    """Settings that depart from the paper's for the same row (in brackets), and in which rows if not in all."""
    found: dict[str, list[Row]] = {}
    for row in results.rows:
        for key, (here, there) in _departures(results, row).items():
            found.setdefault(f"{key} = {_plain(here)} ({_plain(there)})", []).append(row)
    everywhere = [setting for setting, rows in found.items() if len(rows) == len(results.rows)]
    partly = [f"{setting} in {_which(results, rows)}" for setting, rows in found.items() if setting not in everywhere]
    return everywhere + partly


def _departures(results: Results, row: Row) -> dict[str, tuple[Any, Any]]:
    """key -> (here, in the paper). A row of a study is compared with the same row of the paper's study."""
    changed = row.results[0]["departures"]
    if results.kind == "bench" or results.about["data"] not in DATA_NAMES:
        return {key: (here, there) for key, (here, there) in changed.items() if key != "method"}
    from fscil.experiments.studies import ablation, margin_and_scale

    recipe = load_recipe(results.about["data"])
    study = {"ablation": ablation, "margin-scale": margin_and_scale}[results.kind]
    same_row = [cell.config for cell in study(recipe, [recipe.train.seed]) if cell.label == row.label]
    paper = flatten(same_row[0] if same_row else recipe)
    mine = flatten(recipe) | {key: here for key, (here, _) in changed.items()}
    return {key: (mine[key], paper[key]) for key in paper if mine[key] != paper[key]}


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _which(results: Results, rows: Sequence[Row]) -> str:
    """These rows by name, or the others if they are fewer."""
    others = [row for row in results.rows if row not in rows]
    if not others:
        return "all rows"
    few, start = (others, "all but ") if len(others) < len(rows) else (rows, "")
    return start + " and ".join(f'"{row.title}"' for row in few)


def cross_entropy(results: Results) -> str:
    """Which cross-entropy it is, in the rows whose base network was trained by it; empty where none was."""
    kinds: dict[str, list[Row]] = {}
    for network, rows in results.networks().items():
        if results.by_cross_entropy(network):
            recipe = results.recipe(network)
            cosine = f"cosine head, scale {recipe['loss']['scale']:g}, no margin"
            kinds.setdefault(cosine if recipe["model"]["head"] == "cosine" else "linear head", []).extend(rows)
    return " ".join(
        f"Base training by cross-entropy in {_which(results, rows)}: {kind}." for kind, rows in kinds.items()
    )


def provenance(results: Results) -> Table:
    """Per row: what was trained, for how long, what is kept, and the numbers of the commands that made it."""
    commands = list(dict.fromkeys(command for row in results.rows for command in row.commands()))
    header = [
        *("", "backbone", "parameters", "images in training before the sessions", "time of base training"),
        *("time of the rest", "memory kept", "seeds", *(f"draws, {shots}-shot" for shots in results.shots())),
        "command",
    ]
    rows: list[tuple[RowKind, Sequence[str]]] = [
        ("ours", _provenance_of(results, row, commands)) for row in results.rows
    ]
    counted = dict.fromkeys(row.shown["images_seen_note"] for row in results.rows)
    note = (
        f"{'; '.join(['Images in training: every view and every mixture is one', *filter(None, counted)])}. Base "
        "training is per seed and shared by rows of the same recipe; the rest is fitting and all sessions of all seeds "
        f"and draws, if the time of each is known.{_machines(results)}{_images(results)} All settings and the order "
        "of classes are in the results.json of each cell."
    )
    if commands:
        note += " The commands, by their numbers:"
    return Table("How these results were produced", header, rows, [note], commands)


def _machines(results: Results) -> str:
    """All that computed something. Older results do not tell the CPU; without provenance.json nothing is known."""
    told = [one["machine"] for row in results.rows for one in row.results if "machine" in one]
    found = dict.fromkeys(
        ", ".join(filter(None, [one.get("cpu"), f"{one['cores']} cores", one["device"], one["system"]]))
        + f", {_versions(one)}"
        for one in told
    )
    return f" Machine: {'; '.join(found)}." if found else ""


def _versions(machine: Mapping[str, Any]) -> str:
    """Older results tell that of torch only."""
    return ", ".join(f"{name} {machine[name]}" for name in ("fscil", "torch", "python") if name in machine)


def made_by(results: Results) -> list[str]:
    """For a table in a file of its own: the commands, versions, machines and images behind it."""
    commands = dict.fromkeys(command for row in results.rows for command in row.commands())
    lines = [f"Made by: {command}" for command in commands]
    told = f"{_machines(results)}{_images(results)}".strip()
    return [*lines, *([told] if told else [])]


def _images(results: Results) -> str:
    """The fingerprint of the images, by their content."""
    found = dict.fromkeys(
        one["data_fingerprint"][:16] for row in results.rows for one in row.results if "data_fingerprint" in one
    )
    return f" Images (SHA-256): {', '.join(found)}." if found else ""


def _provenance_of(results: Results, row: Row, commands: Sequence[str]) -> list[str]:
    first = row.results[0]
    training = [result["training"] for result in row.results]
    seconds = [one["seconds"] for one in training if one.get("seconds")]
    walks = [walk for result in row.results for walk in result["walks"]]
    memory = max((walk["memory"] for walk in walks), key=lambda kept: (kept["images"], kept["floats"]))
    fitting = [one["fit_seconds"] for one in row.results if "fit_seconds" in one]
    sessions = [walk["seconds"] for walk in walks if "seconds" in walk]
    return [
        row.title,
        first["backbone"],
        f"{first['parameters']:,}",
        f"{first['training']['images_seen']:,}",
        duration(sum(seconds) / len(seconds)) if seconds else "-",
        duration(sum(fitting) + sum(sessions)) if len(sessions) == len(walks) else "-",
        ", ".join(f"{memory[kind]:,} {name}" for kind, name in KEPT.items() if memory[kind]) or "nothing",
        _listed([one["seed"] for one in training]),
        *(_listed(row.draws(shots)) or "-" for shots in results.shots()),
        ", ".join(str(commands.index(command) + 1) for command in row.commands()) or "-",
    ]


def _listed(values: Sequence[Any]) -> str:
    """With commas; three or more consecutive numbers as 0–9."""
    numbers = sorted(value for value in values if isinstance(value, int))
    parts = [str(value) for value in values if not isinstance(value, int)]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    for run in runs:
        parts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run)
    return ", ".join(parts)
