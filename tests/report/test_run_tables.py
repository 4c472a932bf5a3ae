"""Tables say what the results say: every cell recomputed, the paper's row where there is one, nothing cut off."""

import io
import re
import statistics
import tomllib
from importlib import resources
from xml.etree import ElementTree

import pytest
from rich.console import Console
from scipy import stats

from fscil.experiments.published import paper_ablation, paper_results
from fscil.report import MEASURES, OPEN_SET_MEASURES, Table, run_tables
from grids import groups

PAPER = {("cifar100", 8), ("mini_imagenet", 8), ("cub200", 10)}


def walk(shots, draw, sessions, shift=0.0):
    """Sessions with figures that are all different."""
    steps = []
    for session in range(sessions + 1):
        value = 0.9 - 0.24 * session / max(1, sessions) - shift
        steps.append(
            {
                "session": session,
                "classes": 60 + 5 * session,
                "images": 100,
                "average": value,
                "base": value + 0.01,
                "novel": value - 0.2 if session else None,
                "harmonic": value - 0.1 if session else None,
                "class_mean": value + 0.003,
                "alternatives": {"balanced, 5-shot": 0.7123} if session == 0 else {},
            }
        )
    pd = steps[0]["average"] - steps[-1]["average"]
    return {"shots": shots, "draw": draw, "pd": pd, "memory": {"images": 0, "floats": 1}, "sessions": steps}


def results(data="glyphs", sessions=8, walks=None, **more):
    return {
        "data": data,
        "method": "alice",
        "protocol": {"base_classes": 60, "way": 5, "sessions": sessions},
        "prototypes": "balanced",
        "backbone": "resnet18",
        "parameters": 11_168_832,
        "training": {"epochs": 7, "seed": 3, "seconds": 12.3},
        "departures": {},
        "walks": walks or [walk(5, "published", sessions)],
        **more,
    }


def cells(table, measure, label="this run"):
    rows = groups(table)[MEASURES[measure]]
    return next(row[1:] for row in rows if row[0] == label)


def percent(value):
    return "-" if value is None else f"{100 * value:.1f}"


@pytest.mark.parametrize("measure", MEASURES)
def test_cells_of_one_draw_are_percentages(measure):
    content = results()
    (table,) = run_tables(content)
    steps = content["walks"][0]["sessions"]
    expected = [percent(step[measure]) for step in steps]
    assert cells(table, measure) == [*expected, "24.0" if measure == "average" else "-"]
    assert table.header == ["", "0", "1", "2", "3", "4", "5", "6", "7", "8", "PD"]


@pytest.mark.parametrize("measure", MEASURES)
def test_cells_of_several_draws_are_mean_and_interval(measure):
    shifts = [0.0, 0.013, 0.05, 0.021]
    content = results(walks=[walk(5, draw, 8, shift) for draw, shift in enumerate(shifts)])
    for session, cell in enumerate(cells(run_tables(content)[0], measure)[:-1]):
        values = [each["sessions"][session][measure] for each in content["walks"]]
        if values[0] is None or session == 0:  # draws begin after session 0
            assert cell == percent(values[0])
            continue
        spread = stats.t.ppf(0.975, 3) * statistics.stdev(values) / 2
        assert cell == f"{100 * statistics.mean(values):.1f} ±{100 * spread:.1f}"


def test_the_interval_of_pd_is_its_own():
    walks = [walk(5, 0, 2), walk(5, 1, 2)]
    walks[1]["pd"] = 0.10
    spread = stats.t.ppf(0.975, 1) * statistics.stdev([24.0, 10.0]) / 2**0.5
    assert cells(run_tables(results(sessions=2, walks=walks))[0], "average")[-1] == f"17.0 ±{spread:.1f}"


def test_a_session_that_was_not_judged_has_no_figure():
    judged = walk(5, "published", 4)
    for step in judged["sessions"]:
        step["openset"] = {"cosine": dict.fromkeys(OPEN_SET_MEASURES, 0.5)}
    del judged["sessions"][-1]["openset"]
    judged["sessions"] = [judged["sessions"][0], judged["sessions"][-1]]
    table, unknown = run_tables(results(sessions=4, walks=[judged]))
    assert cells(table, "average") == ["90.0", "-", "-", "-", "66.0", "24.0"]
    assert table.header == ["", "0", "1", "2", "3", "4", "PD"]
    assert [row for _, row in unknown.rows] == [["cosine", "50.0", "50.0", "50.0"]]


def test_one_table_per_number_of_shots():
    content = results(walks=[walk(5, "published", 8), walk(1, "published", 8, 0.3)])
    five, one = run_tables(content)
    assert [five.title, one.title] == ["glyphs, 8-step 5-way 5-shot", "glyphs, 8-step 5-way 1-shot"]
    assert cells(five, "average")[0] == "90.0"
    assert cells(one, "average")[0] == "60.0"


# The paper's row


@pytest.mark.parametrize("data", ["cifar100", "mini_imagenet", "cub200", "glyphs", "folder"])
@pytest.mark.parametrize("shots", [5, 1, 2])
@pytest.mark.parametrize("sessions", [8, 10])
def test_the_papers_row_is_there_for_its_own_benchmarks_only(data, shots, sessions):
    (table,) = run_tables(results(data, sessions, [walk(shots, "published", sessions)]))
    labels = [row[0] for rows in groups(table).values() for row in rows]
    if (data, sessions) not in PAPER or shots == 2:
        assert set(labels) == {"this run"}
        return
    assert labels.count("ALICE, paper") == 2
    text = (resources.files("fscil.experiments") / "paper.toml").read_text(encoding="utf-8")
    (row,) = [
        row
        for row in tomllib.loads(text)["result"]
        if row["data"] == data and row["shots"] == shots and row["label"] == "ALICE"
    ]
    assert [float(cell) for cell in cells(table, "average", "ALICE, paper")] == [*row["average"], row["pd"]]
    assert cells(table, "harmonic", "ALICE, paper")[:: sessions + 1] == ["-", "-"]
    assert [float(cell) for cell in cells(table, "harmonic", "ALICE, paper")[1:-1]] == row["harmonic"]


def test_the_papers_rows_are_those_of_the_runs_method():
    (table,) = run_tables(results("cifar100", method="cec"))
    labels = [row[0] for row in groups(table)[MEASURES["average"]]]
    assert labels == ["this run", "CEC, reported", "CEC, rerun"]
    reported, rerun = (
        row for row in paper_results() if (row["data"], row["shots"], row["method"]) == ("cifar100", 5, "cec")
    )
    assert [float(cell) for cell in cells(table, "average", "CEC, reported")] == [*reported["average"], 24.0]
    assert [row[0] for row in groups(table)[MEASURES["harmonic"]]] == ["this run", "CEC, rerun"]
    assert [float(cell) for cell in cells(table, "harmonic", "CEC, rerun")[1:-1]] == rerun["harmonic"]


def test_a_method_that_is_not_in_the_paper_has_no_row_of_it():
    """Nor need it be installed."""
    shown = {"title": "Mine", "table_order": 500, "highlighted": False, "images_seen_note": ""}
    for content in (results("cifar100", method="mine"), results("cifar100", method="mine", shown=shown)):
        assert {row[0] for rows in groups(run_tables(content)[0]).values() for row in rows} == {"this run"}


def test_pd_is_first_less_last_in_every_published_row():
    rows = paper_results()
    assert len(rows) == 32
    for row in rows:
        assert row["average"][0] - row["average"][-1] == pytest.approx(row["pd"], abs=0.051), row
        assert len(row["average"]) == (11 if row["data"] == "cub200" else 9)
        assert len(row.get("harmonic", row["average"][1:])) == len(row["average"]) - 1


def test_published_numbers_are_the_papers(shared):
    text = (shared / "paper" / "alice-eccv2022.tex").read_text(encoding="utf-8")
    printed = {tuple(map(float, re.findall(r"\d+\.\d+", line))) for line in text.splitlines() if line.count("&") > 8}
    rows = paper_results()
    ours = {(*row["average"], row["pd"]) for row in rows} | {
        tuple(row["harmonic"]) for row in rows if "harmonic" in row
    }
    assert ours <= printed
    ours |= {tuple(row[measure]) for row in paper_ablation().values() for measure in ("average", "harmonic")}
    assert ours == {row for row in printed if len(row) > 7}


# Notes


def test_notes_say_what_the_figures_rest_on():
    first, second = run_tables(results())[0].notes
    assert first == ("resnet18 (11,168,832 parameters), 7 epochs, seed 3; prototypes: balanced; draw: published.")
    assert second.endswith("other scores: 71.2 (balanced, 5-shot).")
    many = results(walks=[walk(5, draw, 8, draw / 100) for draw in range(10)], prototypes="all")
    many["walks"][0]["sessions"][0]["alternatives"] = {}
    (only,) = run_tables(many)[0].notes
    assert only.endswith("prototypes: all; mean and 95% interval over 10 seeded draws.")


def test_a_training_that_did_not_do_what_it_is_for_is_said():
    plain = results()
    first = plain["walks"][0]["sessions"][0]["average"]
    better = run_tables(results(untouched=first + 0.05))[0].notes
    assert f"the nearest class mean reaches {100 * (first + 0.05):.1f} in session 0" in better[-1]
    low = walk(5, "published", 8, first - 0.01)
    assert any("has not learned: session 0 is at chance" in note for note in run_tables(results(walks=[low]))[0].notes)
    for content in (plain, results(untouched=None), results(untouched=first - 0.05)):
        assert not any("learned" in note or "worse" in note for note in run_tables(content)[0].notes)


def test_random_weights_are_said_even_where_they_are_better_than_guessing():
    untrained = {"epochs": 0, "seed": 3}
    for start, said in (("scratch", True), ("pretrained", False)):
        settings = {"model.init": start, "model.weights": ""}
        notes = run_tables(results(training=untrained, settings=settings))[0].notes
        assert any("was not trained: train.epochs is 0" in note for note in notes) == said


def test_departures_from_the_paper_are_listed():
    departures = {"model.width": [16, 64], "views.scale": [[0.5, 1.0], [0.2, 1.0]]}
    compared = run_tables(results("cifar100", departures=departures))[0].notes[-1]
    assert compared.startswith("Not comparable with the paper")
    assert "model.width = 16 (64), views.scale = [0.5, 1.0] ([0.2, 1.0])" in compared
    assert not any("comparable" in note for note in run_tables(results("cifar100"))[0].notes)


# Renderings

CASES = [
    results(),
    results("cub200", 10, [walk(5, draw, 10, 0.02 * draw) for draw in range(3)], departures={"train.lr": [1, 2]}),
    results(sessions=0, walks=[walk(5, "published", 0)]),
    results(sessions=25, walks=[walk(1, draw, 25, 0.1 * draw) for draw in range(2)]),
]


@pytest.mark.parametrize("content", CASES)
def test_markdown_is_a_table_with_as_many_cells_in_every_row(content):
    (table,) = run_tables(content)
    lines = table.markdown(level=3).splitlines()
    assert lines[0] == f"### {table.title}"
    rows = [line for line in lines if line.startswith("|")]
    assert lines[2 : 2 + len(rows)] == rows, "in one piece"
    parsed = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert {len(row) for row in parsed} == {content["protocol"]["sessions"] + 3}
    assert all(re.fullmatch("-+:?", cell) for cell in parsed[1])
    expected = [table.header]
    for name, group in groups(table).items():
        expected += [[f"*{name}*", *[""] * (len(table.header) - 1)], *group]
    assert [parsed[0], *parsed[2:]] == expected
    assert lines[2 + len(rows)] == ""
    assert [line.rstrip(" ") for line in lines[3 + len(rows) :]] == table.notes


@pytest.mark.parametrize("content", CASES)
@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_figure_is_cut_off_on_a_terminal(content, width):
    (table,) = run_tables(content)
    stream = io.StringIO()
    Console(file=stream, width=width).print(table.terminal(), crop=False)
    text = stream.getvalue()
    assert "…" not in text
    shown = re.findall(r"±?\d+\.\d|PD", text.partition(table.notes[0][:12])[0])
    rows = [row for group in groups(table).values() for row in group]
    expected = [part for row in rows for cell in row[1:] for part in cell.split()]
    assert sorted(shown) == sorted([part for part in expected if part != "-"] + ["PD"])
    for note in table.notes:
        assert "".join(note.split()) in "".join(text.split())


def test_the_widest_benchmark_fits_80_columns():
    stream = io.StringIO()
    Console(file=stream, width=80).print(run_tables(CASES[1])[0].terminal(), crop=False)
    assert max(len(line.rstrip()) for line in stream.getvalue().splitlines()) <= 80


def test_html_is_a_table_with_headings_across_it():
    (table,) = run_tables(results(sessions=2, walks=[walk(5, draw, 2, 0.02 * draw) for draw in range(3)]))
    page = ElementTree.fromstring(table.html().replace("class=scroll tabindex=0", ""))
    rows = [(row.get("class"), ["".join(cell.itertext()) for cell in row]) for row in page.iter("tr")]
    assert rows[0] == (None, table.header)
    assert rows[1:] == [(kind, list(cells[:1] if kind == "heading" else cells)) for kind, cells in table.rows]
    assert {cell.get("colspan") for row in page.iter("tr") if row.get("class") == "heading" for cell in row} == {"5"}


def test_text_that_looks_like_markup_is_only_text():
    table = Table("a <b>", ["", "c | d"], [("heading", ["e & f"]), ("ours", ["<i>", "[bold]1[/bold]"])], ["<hr>"])
    page = ElementTree.fromstring(table.html().replace("class=scroll tabindex=0", ""))
    assert [text for text in page.itertext() if text.strip()] == ["a <b>", "c | d", "e & f", *table.rows[1][1], "<hr>"]
    assert "| <i> | [bold]1[/bold] |" in table.markdown()
    assert "|  | c / d |" in table.markdown()
    stream = io.StringIO()
    Console(file=stream, width=80).print(table.terminal())
    assert "[bold]1[/bold]" in stream.getvalue()


def with_unknowns(content):
    """Figures that are all different; none after the last session."""
    for number, each in enumerate(content["walks"]):
        for step in each["sessions"][:-1]:
            step["openset"] = {
                score: {
                    measure: 0.5 + 0.1 * first + 0.03 * second + 0.0083 * step["session"] + 0.001 * number
                    for second, measure in enumerate(OPEN_SET_MEASURES)
                }
                for first, score in enumerate(["cosine", "margin", "contrast"])
            }
    return content


def test_unknown_images_have_a_table_of_their_own():
    content = with_unknowns(results(walks=[walk(5, "published", 8), walk(1, "published", 8)]))
    titles = [f"glyphs, 8-step 5-way {shots}-shot{more}" for shots in (5, 1) for more in ("", ": unknown images")]
    found = run_tables(content)
    assert [table.title for table in found] == titles
    assert found[0] == run_tables(results(walks=[walk(5, "published", 8), walk(1, "published", 8)]))[0]
    assert found[1].header == ["score", *OPEN_SET_MEASURES.values()]
    for number, table in enumerate(found[1::2]):
        steps = content["walks"][number]["sessions"][:-1]
        assert [row[0] for _, row in table.rows] == ["cosine", "margin", "contrast (default)"]
        for score, (_, row) in zip(("cosine", "margin", "contrast"), table.rows, strict=True):
            means = [sum(100 * step["openset"][score][measure] for step in steps) / 8 for measure in OPEN_SET_MEASURES]
            assert list(row[1:]) == [f"{mean:.1f}" for mean in means]
    assert len(found[1].rows) == 3, "short: results.json has every session"


def test_unknown_images_over_several_draws():
    content = with_unknowns(results(sessions=2, walks=[walk(5, draw, 2) for draw in range(3)]))
    table = run_tables(content)[1]
    spread = stats.t.ppf(0.975, 2) * 0.1 / 3**0.5
    assert table.rows[0][1][:2] == ["cosine", f"50.5 ±{spread:.1f}"]  # 50.515


def test_csv_of_names_that_are_numbers_and_of_no_rows():
    table = Table("T", ["", "words", "value"], [("ours", ["42", "a", "1.0 ±0.5"])])
    assert table.csv() == ",words,value,value ±\n42,a,1.0,0.5\n"
    assert Table("T", ["", "value"], []).csv() == ",value\n"
