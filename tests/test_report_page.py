"""What a report says is what the results say: figures recomputed by hand, the paper's rows and the differences."""

import re
import statistics
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from fscil.report import paper_results, write_report
from fscil.report.collect import read
from fscil.report.tables import paper_ablation
from grids import ABLATION, SWEEPS, accuracy, write_grid


def rows_of(markdown, heading):
    """The cells of the table below a heading, by the first of each row; the last of equal names is kept in a list."""
    part = markdown.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """One report of each kind, written once."""
    kinds = {"bench": ("alice", "cec", "joint", "icarl"), "ablation": ABLATION, "margin-scale": SWEEPS}
    folders = {kind: write_grid(tmp_path_factory.mktemp(kind), kind, labels) for kind, labels in kinds.items()}
    return {kind: (folder, write_report(folder)[0]) for kind, folder in folders.items()}


@pytest.fixture
def bench(reported):
    return reported["bench"][0]


def test_a_figure_is_the_mean_over_draws_with_its_interval(bench):
    rows = {
        cells[0]: cells[1:]
        for cells in rows_of((bench / "report.md").read_text(), "Class-wise average accuracy, 5-shot")
    }
    for number in range(9):
        values = [100 * accuracy(0, 0, 5, draw, number) for draw in (0, 1)]
        half = stats.t.ppf(0.975, 1) * statistics.stdev(values) / 2**0.5
        assert rows["ALICE"][number] == f"{statistics.mean(values):.1f} ±{half:.1f}"
    first, last = (statistics.mean(100 * accuracy(0, 0, 5, draw, number) for draw in (0, 1)) for number in (0, 8))
    assert rows["ALICE"][9] == f"{first - last:.1f}"


def test_with_several_seeds_the_interval_is_over_seeds(tmp_path):
    write_grid(tmp_path, seeds=(0, 1, 2))
    figure = read(tmp_path).rows[-1].figure(1, 3, "average")
    means = [statistics.mean(100 * accuracy(0, seed, 1, draw, 3) for draw in (0, 1)) for seed in range(3)]
    assert figure.mean == pytest.approx(statistics.mean(means))
    assert figure.interval == pytest.approx(stats.t.ppf(0.975, 2) * statistics.stdev(means) / 3**0.5)


def test_the_papers_rows_stand_below_ours_with_the_difference(bench):
    rows = rows_of((bench / "report.md").read_text(), "Class-wise average accuracy, 5-shot")
    place = next(number for number, cells in enumerate(rows) if cells[0] == "ALICE")
    paper = next(
        row for row in paper_results() if (row["data"], row["shots"], row["method"]) == ("cifar100", 5, "alice")
    )
    assert rows[place + 1] == [
        "ALICE, the paper's own",
        *(f"{value:.1f}" for value in paper["average"]),
        f"{paper['pd']:.1f}",
    ]
    ours = [statistics.mean(100 * accuracy(0, 0, 5, draw, number) for draw in (0, 1)) for number in range(9)]
    expected = [f"{mine - theirs:+.1f}" for mine, theirs in zip(ours, paper["average"], strict=True)]
    assert rows[place + 2][:10] == ["difference", *expected]
    # CEC has two rows in the paper, reported and rerun.
    names = [cells[0] for cells in rows]
    assert [name for name in names if name.startswith("CEC")] == [
        "CEC",
        "CEC, as reported in the paper",
        "CEC, rerun by the paper's authors",
    ]


def test_rows_come_in_the_papers_order(bench):
    assert [row.label for row in read(bench).rows] == ["joint", "icarl", "cec", "alice"]


def test_a_method_judged_only_at_the_end_has_gaps(bench):
    rows = {cells[0]: cells[1:] for cells in rows_of((bench / "report.md").read_text(), "Harmonic accuracy, 5-shot")}
    joint = next(cells for name, cells in rows.items() if name.startswith("joint"))
    assert joint[:7] == ["-"] * 7
    assert joint[7] != "-"


def test_every_row_tells_how_it_was_made(bench):
    rows = {cells[0]: cells[1:] for cells in rows_of((bench / "report.md").read_text(), "How these figures were made")}
    assert rows["iCaRL"] == [
        "resnet18",
        "700,176",
        "599,040",
        "1 min 40 s",
        "8 s",
        "300 images, 1,234 numbers",
        "0",
        "0, 1",
    ]
    text = (bench / "report.md").read_text()
    assert "fscil bench cifar100 --out DIR" in text
    assert "model.width = 16 (64)" in text


def test_confusion_adds_up_draws_and_seeds(tmp_path):
    write_grid(tmp_path, seeds=(0, 1))
    matrix = read(tmp_path).rows[-1].confusion(5)
    assert matrix.shape == (100, 100)
    np.testing.assert_array_equal(matrix.sum(1), np.full(100, 8))  # two images of each class, two draws, two seeds


@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        ("bench", {"sessions", "base-novel", "confusion", "features"}),
        ("ablation", {"sessions", "ablation", "confusion", "features"}),
        ("margin-scale", {"margin-scale"}),
    ],
)
def test_the_page_is_self_contained_and_has_its_figures(reported, kind, figures):
    page = (reported[kind][0] / "report.html").read_text()
    found = set(re.findall(r'<figure id="([a-z-]+?)(?:-\d)?">', page))
    assert found == figures
    assert page.count("<figure") == page.count("<svg ")
    addresses = re.findall(r'(?:src|href)="([^"#]*)"', page)
    assert all(address.startswith("data:") for address in addresses)
    ids = re.findall(r'\bid="([^"]+)"', page)
    clips = [one for one in ids if one.startswith("p") and len(one) == 11]
    assert len(clips) == len(set(clips))  # a clip of one figure must not cut another


@pytest.mark.parametrize("kind", ["bench", "ablation", "margin-scale"])
def test_the_markdown_shows_every_figure_from_a_file_of_its_own(reported, kind):
    folder = reported[kind][0]
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (folder / "report.md").read_text())
    assert {folder / one for one in shown} == set((folder / "figures").iterdir())
    assert len(shown) == (folder / "report.html").read_text().count("<figure")
    for one in shown:
        assert ElementTree.parse(folder / one).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_ablation_stands_beside_the_papers(reported):
    text = (reported["ablation"][0] / "report.md").read_text()
    rows = rows_of(text, "Harmonic accuracy, 5-shot")
    for label in ABLATION:
        place = next(number for number, cells in enumerate(rows) if cells[0] == label)
        assert rows[place + 1][1:] == [f"{value:.1f}" for value in paper_ablation()[label]["harmonic"]]
    one_shot = rows_of(text, "Harmonic accuracy, 1-shot")
    assert [cells[0] for cells in one_shot] == list(ABLATION)  # the paper's table is 5-shot only


def test_names_are_escaped(tmp_path):
    write_grid(tmp_path, labels=("<b>mine</b> | yours",), shots=(5,), draws=(0,))
    write_report(tmp_path)
    assert "<b>mine" not in (tmp_path / "report.html").read_text()
    assert "mine</b> / yours" in (tmp_path / "report.md").read_text()


def test_the_summary_has_the_last_session_of_each_row(reported):
    folder, summary = reported["bench"]
    figure = read(folder).rows[-1].figure(5, 8, "harmonic")
    line = next(line for line in summary.splitlines() if line.startswith("ALICE"))
    assert line.endswith(str(figure))


def test_the_same_results_give_the_same_page(tmp_path):
    write_grid(tmp_path, labels=("alice",), shots=(5,))
    write_report(tmp_path)
    first = (tmp_path / "report.html").read_bytes()
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first
