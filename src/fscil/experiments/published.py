"""Published numbers, from paper.toml, in percent: the paper's tables and its ablation, and systems after it."""

import tomllib
from importlib import resources
from typing import Any

DATA_NAMES = {"cifar100": "CIFAR100", "mini_imagenet": "miniImageNet", "cub200": "CUB200"}  # with recipes of the paper
ABLATION_SETTING = ("cifar100", 5)  # data and shots of the paper's ablation
LATER_SHOTS = 5  # of the numbers of later systems


def paper_results() -> list[dict[str, Any]]:
    """The rows of the paper's tables: data, shots, method, label, source, average, pd and, for some, harmonic."""
    rows: list[dict[str, Any]] = _content()["result"]
    return rows


def paper_rows(data: str, shots: int, method: str) -> list[dict[str, Any]]:
    """The paper's rows on one method in one setting; several where it was reported and rerun, often none."""
    return [row for row in paper_results() if (row["data"], row["shots"], row["method"]) == (data, shots, method)]


def later_results(data: str) -> list[dict[str, Any]]:
    """Published numbers of systems after the paper, last session, 5-shot: data, method, label, citation, source,
    disputed, average and, for some, harmonic and sessions. A system has a row for each source; its rows are disputed
    where these differ by more than rounding to a tenth.
    """
    rows = [row for row in _content()["later"] if row["data"] == data]
    averages: dict[str, set[float]] = {}
    for row in rows:
        averages.setdefault(row["label"], set()).add(round(row["average"], 1))
    return [{**row, "disputed": len(averages[row["label"]]) > 1} for row in rows]


def later_missing() -> str:
    """Which compared systems have no published number among later_results, and why."""
    return str(_content()["later_missing"]["note"])


def paper_ablation() -> dict[str, dict[str, Any]]:
    """The rows of the paper's ablation, by their label in `fscil study ablation`."""
    return {row["label"]: row for row in _content()["ablation"]}


def _content() -> dict[str, Any]:
    return tomllib.loads((resources.files("fscil.experiments") / "paper.toml").read_text(encoding="utf-8"))
