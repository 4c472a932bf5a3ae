"""Names in tables: no row is called what it is not, and published numbers stand under the paper's name."""

from fscil.methods import METHODS
from fscil.report.collect import read_grid
from fscil.report.grid_tables import accuracy_table
from grids import write_grid


def test_titles_promise_no_more_than_is_implemented():
    """Two systems are written from abstracts, and neither way of joint training bounds what others reach."""
    assert METHODS["semantic_kd"].title == "Semantic-aware KD (in the spirit of)"
    assert METHODS["synthesized"].title == "Synthesized features (in the spirit of)"
    assert METHODS["joint"].title == "Joint-CNN (Tao et al.)"
    assert not [name for name, method in METHODS.items() if "bound" in method.title]


def test_published_numbers_are_not_in_the_spirit_of_anything(tmp_path):
    write_grid(tmp_path, labels=("alice", "semantic_kd", "synthesized"), data="cub200", sessions=10)
    table = accuracy_table(read_grid(tmp_path), 5, "average")
    names = [cells[0] for kind, cells in table.rows if kind != "difference"]
    assert names == [
        "Semantic-aware KD (in the spirit of)",
        "Cheraghian et al., CVPR 2021, as reported in the paper",
        "Synthesized features (in the spirit of)",
        "Cheraghian et al., ICCV 2021, as reported in the paper",
        "ALICE",
        "ALICE, the paper's own",
    ]
