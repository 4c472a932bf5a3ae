"""Results of somebody else: an error with a message, and no file outside the folder is read."""

import json

import pytest

from fscil.errors import StoreError
from fscil.report.collect import read_grid
from fscil.runtime.files import write_checked_json
from fscil.training.run_folder import Run

RESULTS = {
    "method": "alice",
    "protocol": {"base_classes": 2, "way": 1, "sessions": 1},
    "shown": {"title": "ALICE", "table_order": 1, "highlighted": True, "images_seen_note": ""},
    "walks": [{"shots": 5, "draw": 0, "sessions": [{"session": 0, "average": 0.5}, {"session": 1, "average": 0.25}]}],
}
GRID = {"kind": "bench", "command": "fscil bench", "cells": [{"name": "alice-seed0", "label": "alice", "seed": 0}]}


def write(folder, grid=GRID, results=RESULTS):
    place = folder / "cells" / "alice-seed0"
    place.mkdir(parents=True)
    (folder / "grid.json").write_text(json.dumps(grid))
    (place / "results.json").write_text(json.dumps(results))
    return folder


def test_a_whole_one(tmp_path):
    (row,) = read_grid(write(tmp_path)).rows
    assert (row.label, row.shots(), row.sessions(5)) == ("alice", [5], [0, 1])


@pytest.mark.parametrize(
    "grid",
    [
        [],
        {"kind": "bench"},
        {**GRID, "cells": 3},
        {**GRID, "cells": [{"name": "alice-seed0"}]},
        {**GRID, "cells": [{"name": "../../../etc-seed0", "label": "a"}]},
        {**GRID, "cells": [{"name": "..", "label": "a"}]},
        {**GRID, "kind": float("nan")},
    ],
)
def test_a_grid_that_is_none(tmp_path, grid):
    with pytest.raises(StoreError, match="grid"):
        read_grid(write(tmp_path, grid=grid))


@pytest.mark.parametrize(
    "change",
    [
        {"walks": None},
        {"walks": [{"shots": 5, "draw": 0, "sessions": []}]},
        {"walks": [{"shots": "5", "draw": 0, "sessions": [{"session": 0, "average": 0.5}]}]},
        {"walks": [{"shots": 5, "draw": 0, "sessions": [{"session": 0, "average": "high"}]}]},
        {"walks": [{"shots": 5, "draw": 0, "sessions": [{"session": 0, "average": 1e999}]}]},
        {"method": None},
        {"protocol": {"base_classes": "two"}},
    ],
)
def test_results_that_are_none(tmp_path, change):
    with pytest.raises(StoreError, match="results"):
        read_grid(write(tmp_path, results={**RESULTS, **change}))


@pytest.mark.parametrize("about", [{"schema": "1"}, {"finished": 1}, {"data": 3}, {"seconds": []}, {"machine": ""}])
def test_a_run_that_is_none(tmp_path, about):
    write_checked_json(tmp_path / "run.json", about)
    with pytest.raises(StoreError, match="run"):
        Run.open(tmp_path)


def test_metrics_without_a_step(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n{"step": "1"}\n{"step": 1, "loss": 2}\n')
    assert Run(tmp_path).metrics() == [{"step": 1, "loss": 2}]
