"""Joins the folders of several grids, as machines without a shared file system write them, into a new one."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fscil.config import difference, load_recipe
from fscil.errors import ConfigError, StoreError
from fscil.experiments.cell_run import in_order
from fscil.experiments.cells import FREE_SETTINGS, data_difference
from fscil.experiments.provenance import PROVENANCE, RESULTS, command
from fscil.runtime.files import digest_of_file, read_json, write_json
from fscil.runtime.locks import LOCK


def merge_grids(folders: Sequence[Path], out: Path, say: Callable[[str], None]) -> None:
    """Cells of one name get the walks of all folders. Other settings, data or figures for the same are refused.

    All is checked before anything is written; the folders are left as they are.
    """
    grids = [_read(folder) for folder in folders]
    if out.exists() and any(out.iterdir()):
        raise StoreError(f"{out} exists and is not an empty folder. Choose another one with --out.")
    for folder, grid in zip(folders[1:], grids[1:], strict=True):
        _require_same_grid(folders[0], grids[0], folder, grid)
    cells = {cell["name"]: cell for grid in grids for cell in grid["cells"]}
    places = {name: [folder / "cells" / name for folder in folders if _is_begun(folder, name)] for name in cells}
    merged = {name: _merged(found) for name, found in places.items()}
    _require_same_networks(folders)
    for name, found in places.items():
        _write_cell(out / "cells" / name, found, *merged[name])
    for network in (network for folder in folders for network in _networks(folder)):
        _copy_missing(network, out / "base" / network.name, skipped=(LOCK,))
    write_json(out / "grid.json", {**grids[0], "command": command(), "cells": list(cells.values())})
    walks = sum(len(results.get("walks", [])) for results, _ in merged.values())
    say(f"{out}: {len(cells)} cells with {walks} walks, of {len(folders)} folders")


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "grid.json"
    if not path.is_file():
        raise StoreError(f"{folder} is no folder of fscil bench or fscil study: it has no grid.json.")
    grid: dict[str, Any] = read_json(path)
    return grid


def _require_same_grid(first: Path, mine: dict[str, Any], folder: Path, other: dict[str, Any]) -> None:
    if mine["kind"] != other["kind"]:
        raise ConfigError(f"{first} is of {mine['kind']}, {folder} of {other['kind']}: they cannot be merged.")
    if "data" in mine and "data" in other and (what := data_difference(mine["data"], other["data"])):
        raise ConfigError(f"{first} and {folder} are of different images: {what}.")


def _is_begun(folder: Path, name: str) -> bool:
    return (folder / "cells" / name / RESULTS).exists()


def _merged(folders: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results and provenance of one cell; empty where no folder has any."""
    if not folders:
        return {}, {}
    first = folders[0]
    results, about = read_json(first / RESULTS), _provenance(first)
    for folder in folders[1:]:
        more = read_json(folder / RESULTS)
        _require_same_settings(first, results, folder, more)
        known = {(walk["shots"], walk["draw"]): walk for walk in results["walks"]}
        for walk in more["walks"]:
            key = (walk["shots"], walk["draw"])
            if known.setdefault(key, walk)["sessions"] != walk["sessions"]:
                raise ConfigError(
                    f"{first} and {folder} have different figures for {key[0]}-shot, draw {key[1]}: they were computed "
                    f"by different versions or on different machines. Remove one."
                )
        results["walks"] = in_order(known.values())
        told = {(walk["shots"], walk["draw"]) for walk in about.get("walks", [])}
        added = [walk for walk in _provenance(folder).get("walks", []) if (walk["shots"], walk["draw"]) not in told]
        about["walks"] = [*about.get("walks", []), *added]
    return results, about


def _provenance(folder: Path) -> dict[str, Any]:
    path = folder / PROVENANCE
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    return found


def _require_same_settings(first: Path, mine: dict[str, Any], folder: Path, other: dict[str, Any]) -> None:
    ours, theirs = (load_recipe(place / "config.toml") for place in (first, folder))
    if what := difference(ours, theirs, FREE_SETTINGS):
        raise ConfigError(f"{first} and {folder} have different settings: {what}, there being {folder}.")
    if len({results.get("data_fingerprint") for results in (mine, other)} - {None}) > 1:
        raise ConfigError(f"{first} and {folder} are of different images: their content differs.")
    words = [place / "word_vectors.sha256" for place in (first, folder)]
    if all(path.exists() for path in words) and len({path.read_bytes() for path in words}) > 1:
        raise ConfigError(f"{first} and {folder} are of different word vectors.")


def _write_cell(target: Path, folders: Sequence[Path], results: dict[str, Any], about: dict[str, Any]) -> None:
    """Files of the first folder that has them; results last, so that a merge that was stopped is seen as such."""
    if not folders:
        return
    for folder in folders:
        _copy_missing(folder, target, skipped=(RESULTS, PROVENANCE, LOCK, "failed.txt"))
    if about:
        write_json(target / PROVENANCE, about)
    write_json(target / RESULTS, results)


def _networks(folder: Path) -> list[Path]:
    """Those that are trained."""
    return sorted(path.parent for path in folder.glob("base/*/weights.safetensors"))


def _require_same_networks(folders: Sequence[Path]) -> None:
    """Of a network that two machines trained."""
    known: dict[str, tuple[Path, str]] = {}
    for network in (network for folder in folders for network in _networks(folder)):
        digest = digest_of_file(network / "weights.safetensors")
        first, wanted = known.setdefault(network.name, (network, digest))
        if digest != wanted:
            raise ConfigError(
                f"{first} and {network} are trained by the same recipe but have other weights: on another kind of CPU, "
                f"or with another number of threads. Their cells cannot stand in one grid."
            )


def _copy_missing(source: Path, target: Path, skipped: Sequence[str]) -> None:
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_file() and not path.is_symlink() and path.name not in skipped and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
