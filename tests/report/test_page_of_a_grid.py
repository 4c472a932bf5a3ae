"""What a report says is what the results say: figures recomputed by hand, the paper's rows and the differences."""

import csv
import itertools
import re
import statistics
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from fscil.config import load_recipe, to_toml
from fscil.errors import StoreError
from fscil.experiments.published import later_results, paper_ablation, paper_results
from fscil.experiments.results import departures_from_paper
from fscil.experiments.studies import ablation, margin_and_scale
from fscil.methods import METHODS
from fscil.report import write_report
from fscil.report.collect import read_grid
from fscil.report.figures import COLOURS, HIGHLIGHT, class_colours
from fscil.report.provenance import cross_entropy, departure_list, made_by, provenance
from fscil.report.summary import summary_table
from fscil.runtime.files import load_tensors, read_json, save_tensors, write_json, write_text
from fscil.training.base_training import plain_recipe
from grids import ABLATION, SWEEPS, accuracy, write_grid


def rows_of(markdown, heading):
    """The cells of the table below a heading, line by line."""
    part = markdown.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip().strip("*") for cell in line.strip("| ").split(" | ")] for line in lines]


def change(folder, cell, how):
    """One cell's results, changed."""
    path = folder / "cells" / cell / "results.json"
    found = read_json(path)
    how(found)
    write_json(path, found)


def trained(folder, network, recipe):
    """What the grid keeps of how a base network was trained."""
    write_text(folder / "base" / network / "config.toml", to_toml(recipe))


def listed(markdown, lead):
    """The items of the list below a line of the introduction."""
    return re.findall("^- (.*)$", markdown.split(lead)[1].split("\n\n")[1], re.MULTILINE)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """One report of each kind, written once."""
    kinds = {"bench": ("alice", "cec", "joint", "icarl"), "ablation": ABLATION, "margin-scale": SWEEPS}
    folders = {kind: write_grid(tmp_path_factory.mktemp(kind), kind, labels) for kind, labels in kinds.items()}
    for number, cell in enumerate(ablation(load_recipe("cifar100", ["loss.scale=16"]), [0])):
        network = f"base{number - 1 if cell.label.endswith('balanced') else number}"  # these rows share one
        change(folders["ablation"], f"{number}-seed0", lambda found, network=network: found.update(base=network))
        trained(folders["ablation"], network, cell.config)
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
        interval = f" ±{half:.1f}" if number else ""  # draws begin after session 0
        assert rows["ALICE"][number] == f"{statistics.mean(values):.1f}{interval}"
    first, last = (statistics.mean(100 * accuracy(0, 0, 5, draw, number) for draw in (0, 1)) for number in (0, 8))
    assert rows["ALICE"][9] == f"{first - last:.1f} ±0.0"


def test_the_interval_of_pd_is_its_own(tmp_path):
    write_grid(tmp_path, labels=("alice",), shots=(5,))
    change(tmp_path, "0-seed0", lambda found: found["walks"][1]["sessions"][-1].update(average=0.3))
    drops = [100 * (accuracy(0, 0, 5, 0, 0) - accuracy(0, 0, 5, 0, 8)), 100 * (accuracy(0, 0, 5, 1, 0) - 0.3)]
    drop = read_grid(tmp_path).rows[0].performance_drop(5)
    assert drop.mean == pytest.approx(statistics.mean(drops))
    assert drop.interval == pytest.approx(stats.t.ppf(0.975, 1) * statistics.stdev(drops) / 2**0.5)


def test_session_0_has_an_interval_over_seeds_only(tmp_path):
    write_grid(tmp_path, labels=("alice",), seeds=(0, 1))
    means = [statistics.mean(100 * accuracy(0, seed, 5, draw, 0) for draw in (0, 1)) for seed in range(2)]
    found = read_grid(tmp_path).rows[0].accuracy(5, 0, "average")
    assert found.interval == pytest.approx(stats.t.ppf(0.975, 1) * statistics.stdev(means) / 2**0.5)


def test_with_several_seeds_the_interval_is_over_seeds(tmp_path):
    write_grid(tmp_path, seeds=(0, 1, 2))
    found = read_grid(tmp_path).rows[-1].accuracy(1, 3, "average")
    means = [statistics.mean(100 * accuracy(0, seed, 1, draw, 3) for draw in (0, 1)) for seed in range(3)]
    assert found.mean == pytest.approx(statistics.mean(means))
    assert found.interval == pytest.approx(stats.t.ppf(0.975, 2) * statistics.stdev(means) / 3**0.5)


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
    assert rows[place + 2] == ["difference", *expected, f"{ours[0] - ours[-1] - paper['pd']:+.1f}"]
    # CEC has two rows in the paper, reported and rerun.
    names = [cells[0] for cells in rows]
    assert [name for name in names if name.startswith("CEC")] == [
        "CEC",
        "CEC, as reported in the paper",
        "CEC, rerun by the paper's authors",
    ]


def test_later_systems_are_shown_with_their_sources(bench):
    rows = rows_of((bench / "report.md").read_text(), "Systems after the paper, 5-shot, last session")
    cited = "cited in later work; primary table not checked"
    shown = [cells[:4] for cells in rows]
    assert ["FACT", "its own paper", "52.1†", "-"] in shown
    assert ["FACT", cited, "52.3†", "-"] in shown
    assert ["OrCo", cited, "52.2", "49.6"] in shown
    assert ["NC-FSCIL", cited, "56.1", "42.0"] in shown  # the authors' program has 56.11, which is no other number
    assert len(rows) == len(later_results("cifar100"))
    assert "CVPR 2022" in next(cells[4] for cells in rows if cells[0] == "FACT")
    text = (bench / "report.md").read_text()
    assert "† Two sources disagree." in text
    assert "No number of FeCAM, RanPAC or WaRP with a small network was found" in text


def test_every_later_number_names_its_paper_and_where_it_was_read():
    rows = [row for data in ("cifar100", "mini_imagenet", "cub200") for row in later_results(data)]
    for row in rows:
        assert re.search(r'".+", .*(20\d\d|arXiv \d{4}\.\d{5})', row["citation"]), row
        assert row["source"]
    assert {row["label"] for row in rows if row["disputed"]} == {"FACT"}
    assert not {"fecam", "ranpac", "warp"} & {row["method"] for row in rows}


def test_the_last_of_published_sessions_is_the_published_number():
    for data, count in (("cifar100", 9), ("mini_imagenet", 9), ("cub200", 11)):
        rows = later_results(data)
        assert len({(row["label"], row["source"]) for row in rows}) == len(rows)
        assert {row["method"] for row in rows} - {""} <= set(METHODS)
        for row in rows:
            assert row.get("sessions", [row["average"]])[-1] == row["average"]
            assert len(row.get("sessions", [0] * count)) == count


def test_rows_come_in_the_papers_order(bench):
    assert [row.label for row in read_grid(bench).rows] == ["joint", "icarl", "cec", "alice"]


def test_a_method_judged_only_at_the_end_has_gaps(bench):
    rows = {cells[0]: cells[1:] for cells in rows_of((bench / "report.md").read_text(), "Harmonic accuracy, 5-shot")}
    joint = next(cells for name, cells in rows.items() if name.startswith("Joint"))
    assert joint[:7] == ["-"] * 7
    assert joint[7] != "-"


def test_every_row_tells_how_it_was_made(bench):
    rows = {
        cells[0]: cells[1:] for cells in rows_of((bench / "report.md").read_text(), "How these results were produced")
    }
    assert "| images in training before the sessions |" in (bench / "report.md").read_text()
    assert rows["iCaRL"] == [
        "resnet18",
        "700,176",
        "599,040",
        "1 min 40 s",
        "8 s",
        "300 images, 1,234 numbers",
        "0",
        "0, 1",
        "0, 1",
        "1",
    ]


def test_draws_are_listed_per_number_of_shots(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec"), draws=(0, 1, 2, 3, 7))

    def other(found):
        found["walks"] = [walk for walk in found["walks"] if (walk["shots"], walk["draw"]) not in ((1, 0), (1, 7))]
        found["walks"][0]["draw"] = "published"

    change(tmp_path, "0-seed0", other)
    table = provenance(read_grid(tmp_path))
    five, one = table.header.index("draws, 5-shot"), table.header.index("draws, 1-shot")
    assert [(cells[0], cells[five], cells[one]) for _, cells in table.rows] == [
        ("CEC", "0–3, 7", "0–3, 7"),
        ("ALICE", "published, 1–3, 7", "1–3"),
    ]


def test_every_row_names_its_own_commands(tmp_path):
    write_grid(tmp_path, labels=("cec", "topic", "alice"), shots=(5,))
    change(tmp_path, "1-seed0", lambda found: found.update(command="fscil bench 'my photos'"))

    def each(found):
        del found["command"]
        for walk, command in zip(found["walks"], ("fscil bench first", "fscil bench 'my photos'"), strict=True):
            walk["command"] = command

    change(tmp_path, "2-seed0", each)
    table = provenance(read_grid(tmp_path))
    text = table.markdown()
    numbers = {row[0]: row[-1] for row in rows_of(text, "How these results were produced")}
    assert numbers == {"TOPIC": "1", "CEC": "2", "ALICE": "3, 1"}
    commands = dict(re.findall(r"^(\d)\. `(.*)`$", text, re.MULTILINE))
    assert commands == {
        "1": "fscil bench 'my photos'",
        "2": "fscil bench cifar100 --out DIR",
        "3": "fscil bench first",
    }
    assert table.html().count("<li><code>fscil") == 3


def test_results_without_provenance_are_reported_without_times_and_commands(tmp_path):
    """As results that were copied from a grid, one file of each cell."""
    write_grid(tmp_path, labels=("cec", "alice"), shots=(5,))

    def bare(found):
        for key in ("command", "machine", "fit_seconds"):
            del found[key]
        found["training"].pop("seconds", None)
        for walk in found["walks"]:
            del walk["seconds"]

    change(tmp_path, "0-seed0", bare)
    table = provenance(read_grid(tmp_path))
    rest, command = table.header.index("time of the rest"), table.header.index("command")
    told = {cells[0]: (cells[rest], cells[command]) for _, cells in table.rows}
    assert told["CEC"] == ("-", "-")
    assert told["ALICE"][0] != "-"
    assert told["ALICE"][1] == "1"
    change(tmp_path, "1-seed0", bare)
    assert "Machine" not in provenance(read_grid(tmp_path)).markdown()
    assert (tmp_path / "report.md") in write_report(tmp_path)[1]


def test_a_sum_of_times_is_not_told_where_one_of_them_is_unknown(tmp_path):
    write_grid(tmp_path, labels=("alice",), shots=(5,))
    column = provenance(read_grid(tmp_path)).header.index("time of the rest")
    assert provenance(read_grid(tmp_path)).rows[0][1][column] != "-"
    change(tmp_path, "0-seed0", lambda found: found["walks"][0].pop("seconds"))
    assert provenance(read_grid(tmp_path)).rows[0][1][column] == "-"


# How methods are shown


def shown(title, order, highlighted=False, note=""):
    return {"title": title, "table_order": order, "highlighted": highlighted, "images_seen_note": note}


def test_results_say_how_their_method_is_shown(tmp_path):
    """Nothing of it need be installed where the report is written."""
    write_grid(tmp_path, labels=("alice", "mine", "old"), shots=(5,), draws=(0,))
    change(tmp_path, "0-seed0", lambda found: found.update(shown=shown("A", 3)))
    change(tmp_path, "1-seed0", lambda found: found.update(shown=shown("My <method>", 2, True, "mine counts double")))
    results = read_grid(tmp_path)
    assert [row.title for row in results.rows] == ["My <method>", "A", "old"]  # of the last nothing is known
    assert [row.label for row in results.highlighted()] == ["mine"]
    summary, _ = write_report(tmp_path)
    assert [line.split("  ")[0] for line in summary.splitlines()[3:]] == ["My <method>", "A", "old"]
    page = (tmp_path / "report.html").read_text()
    assert "My &lt;method&gt;" in page
    assert "every view and every mixture is one; mine counts double. " in page
    assert "ALICE, the paper's own" in (tmp_path / "report.md").read_text()  # the paper's rows have the paper's name


def highlighted_texts(folder, name):
    """The legend entries of the figure's rows in the highlight colour."""
    drawing = (folder / "figures" / f"{name}.svg").read_text()
    legend = drawing.partition('id="legend_1"')[2]
    entries = re.findall(r"stroke: (#\w{6}).*?<text[^>]*>([^<]*)<", legend, re.DOTALL)
    return {text for colour, text in entries if colour.lower() == HIGHLIGHT.lower()}


def test_a_comparison_highlights_who_asks_for_it_a_study_its_last_row(reported, tmp_path):
    assert highlighted_texts(reported["bench"][0], "sessions-5") == {"ALICE"}
    assert highlighted_texts(reported["ablation"][0], "sessions-5") == {"+ class augmentation"}
    write_grid(tmp_path, "ablation", ABLATION[:3], shots=(5,), draws=(0,))
    write_report(tmp_path)
    assert highlighted_texts(tmp_path, "sessions-5") == {ABLATION[2]}


def test_a_study_names_the_method_it_is_of(tmp_path):
    write_grid(tmp_path, "ablation", ABLATION[:2], shots=(5,), draws=(0,))
    for cell in ("0-seed0", "1-seed0"):
        change(tmp_path, cell, lambda found: found.update(method="mine", shown=shown("Mine", 1)))
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# CIFAR100: ablation of Mine\n")
    assert "Each row adds one part of Mine." in text
    assert [cells[0] for cells in rows_of(text, "How these results were produced")] == list(ABLATION[:2])


# Seeds that did not train


def at_chance(found):
    for walk in found["walks"]:
        for step in walk["sessions"]:
            step.update(average=0.02, base=0.02, novel=step["novel"] and 0.01, harmonic=step["harmonic"] and 0.015)


def test_a_seed_that_did_not_train_is_said_in_words(tmp_path):
    """Instead of an interval as wide as the scale."""
    write_grid(tmp_path, labels=("alice", "cec"), seeds=(0, 1, 2), shots=(5,))
    change(tmp_path, "0-seed1", at_chance)
    summary, _ = write_report(tmp_path)
    line = next(line for line in summary.splitlines() if line.startswith("ALICE"))
    assert line.endswith("  (1 of 3 seeds did not train)")
    text = (tmp_path / "report.md").read_text()
    note = '"ALICE": 1 of 3 seeds did not train; the row is of the others.'
    for heading in ("Class-wise average accuracy, 5-shot", "Harmonic accuracy, 5-shot"):
        assert note in text.split(f"## {heading}\n")[1].split("\n## ")[0]
    assert text.count("did not train") == 2  # in the two tables of accuracies
    row = next(cells for cells in rows_of(text, "Class-wise average accuracy, 5-shot") if cells[0] == "ALICE")
    means = [statistics.mean(100 * accuracy(0, seed, 5, draw, 0) for draw in (0, 1)) for seed in (0, 2)]
    half = stats.t.ppf(0.975, 1) * statistics.stdev(means) / 2**0.5
    assert row[1] == f"{statistics.mean(means):.1f} ±{half:.1f}"
    matrix = next(row for row in read_grid(tmp_path).rows if row.label == "alice").confusion(5)
    assert matrix.sum() == 200 * 2 * 2  # two draws of two seeds
    made = {cells[0]: cells[1:] for cells in rows_of(text, "How these results were produced")}
    assert made["ALICE"][6] == "0–2"  # the seeds that were run


def test_a_row_none_of_whose_seeds_trained_shows_just_that(tmp_path):
    write_grid(tmp_path, labels=("alice",), seeds=(0, 1), shots=(5,))
    for cell in ("0-seed0", "0-seed1"):
        change(tmp_path, cell, at_chance)
    summary, _ = write_report(tmp_path)
    assert "did not train" not in summary
    assert read_grid(tmp_path).rows[0].accuracy(5, 0, "average").mean == pytest.approx(2)


# Introduction


def test_what_any_row_does_unlike_the_paper_is_said(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec", "icarl"), shots=(5,))
    for cell, name in (("1-seed0", "cec"), ("2-seed0", "icarl")):
        more = {"incremental.steps": [40, 100], "method": [name, "alice"]}
        change(tmp_path, cell, lambda found, more=more: found["departures"].update(more))
    change(tmp_path, "1-seed0", lambda found: found["departures"].update({"views.scale": [[0.5, 1.0], [0.2, 1.0]]}))
    assert departure_list(read_grid(tmp_path)) == [
        "model.width = 16 (64)",
        'incremental.steps = 40 (100) in all but "ALICE"',
        'views.scale = [0.5, 1.0] ([0.2, 1.0]) in "CEC"',
    ]


def test_what_differs_from_the_paper_stands_at_the_top(bench):
    intro, _, _ = (bench / "report.md").read_text().partition("\n## ")
    assert listed(intro, "Not comparable with the paper") == ["model.width = 16 (64)"]
    assert "<li>model.width = 16 (64)</li>" in (bench / "report.html").read_text().partition("<h2>")[0]


def settings_of(study, *assignments):
    """What the grid keeps of each row of a study under a recipe that was changed."""
    recipe = load_recipe("cifar100", assignments)
    return {cell.label: departures_from_paper(cell.config) for cell in study(recipe, [0])}


@pytest.mark.parametrize(("kind", "study"), [("ablation", ablation), ("margin-scale", margin_and_scale)])
def test_a_study_as_in_the_paper_has_no_departures(tmp_path, kind, study):
    kept = settings_of(study)
    write_grid(tmp_path, kind, tuple(kept), shots=(5,), draws=(0,))
    for number, found in enumerate(kept.values()):
        change(tmp_path, f"{number}-seed0", lambda results, found=found: results.update(departures=found))
    assert all(kept[label] for label in list(kept)[:-1])  # rows do switch parts off
    assert departure_list(read_grid(tmp_path)) == []


def test_rows_of_a_study_are_compared_with_the_same_rows_of_the_papers(tmp_path):
    kept = settings_of(ablation, "train.epochs=10", "mixing.repeats=1", "loss.margin_warmup=0.5")
    write_grid(tmp_path, "ablation", tuple(kept), shots=(5,), draws=(0,))
    for number, found in enumerate(kept.values()):
        change(tmp_path, f"{number}-seed0", lambda results, found=found: results.update(departures=found))
    assert departure_list(read_grid(tmp_path)) == [
        "train.epochs = 10 (100)",
        'train.batch = 128 (512) in all but "+ class augmentation"',
        'loss.margin_warmup = 0.5 (0) in all but "cross-entropy" and "cross-entropy, balanced"',
        'mixing.repeats = 1 (4) in "+ class augmentation"',
    ]


def test_what_is_not_in_the_tables_is_named(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec", "topic"), shots=(5,), draws=(0,))
    write_text(tmp_path / "cells" / "1-seed0" / "failed.txt", "Traceback\nValueError: <nothing> left\n")
    for cell in ("1-seed0", "2-seed0"):
        (tmp_path / "cells" / cell / "results.json").unlink()
    summary, _ = write_report(tmp_path)
    gaps = ["failed: 1-seed0: ValueError: <nothing> left", "not finished: 2-seed0"]
    assert summary.splitlines()[-2:] == gaps
    assert listed((tmp_path / "report.md").read_text(), "Not in the tables") == gaps
    page = (tmp_path / "report.html").read_text()
    assert "ValueError: &lt;nothing&gt; left" in page
    assert "not finished: 2-seed0" in page


def test_if_all_failed_the_reasons_are_told(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,), draws=(0,))
    for cell, why in (("0-seed0", "no space left"), ("1-seed0", "no such file")):
        (tmp_path / "cells" / cell / "results.json").unlink()
        write_text(tmp_path / "cells" / cell / "failed.txt", why + "\n")
    with pytest.raises(StoreError, match=r"0-seed0 failed: no space left\n1-seed0 failed: no such file"):
        write_report(tmp_path)


# Base networks


@pytest.mark.parametrize("others", [("icarl",), ("finetune", "cec", "topic")])
def test_a_comparison_shows_each_base_network_once(tmp_path, others):
    write_grid(tmp_path, labels=("alice", *others), shots=(5,), draws=(0,))
    for number in range(1, len(others) + 1):
        change(tmp_path, f"{number}-seed0", lambda found: found.update(base="base1"))
    recipe = load_recipe("cifar100")
    trained(tmp_path, "base0", recipe)
    trained(tmp_path, "base1", plain_recipe(recipe))
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert re.findall(r"!\[Features of the base classes: (.*)\]", text) == ["cross-entropy (all but ALICE)", "ALICE"]


def test_an_objective_is_not_called_cross_entropy(tmp_path):
    write_grid(tmp_path, labels=("ncm", "closer"), shots=(5,), draws=(0,))
    recipe = load_recipe("cifar100")
    trained(tmp_path, "base0", plain_recipe(recipe))
    trained(tmp_path, "base1", METHODS["closer"].base_recipe(recipe))
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    titles = ["cross-entropy (cross-entropy + nearest mean)", "CLOSER"]
    assert re.findall(r"!\[Features of the base classes: (.*)\]", text) == titles
    assert 'Base training by cross-entropy in "cross-entropy + nearest mean": cosine head' in text


def test_the_tables_say_which_cross_entropy(reported):
    text = (reported["ablation"][0] / "report.md").read_text()
    note = (
        'Base training by cross-entropy in "cross-entropy" and "cross-entropy, balanced": '
        "cosine head, scale 16, no margin."
    )
    for heading in ("Class-wise average accuracy, 5-shot", "Harmonic accuracy, 1-shot"):
        assert note in text.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_a_linear_head_is_another_cross_entropy(tmp_path):
    write_grid(tmp_path, labels=("cec", "topic"), shots=(5,), draws=(0,))
    trained(tmp_path, "base0", load_recipe("cifar100", ["model.head=linear", "loss.kind=softmax"]))
    trained(tmp_path, "base1", plain_recipe(load_recipe("cifar100")))
    assert cross_entropy(read_grid(tmp_path)) == (
        'Base training by cross-entropy in "TOPIC": cosine head, scale 16, no margin. '
        'Base training by cross-entropy in "CEC": linear head.'
    )


# Figures


def test_names_of_many_rows_are_whole_and_do_not_overlap(tmp_path):
    titles = [f"a system with a long name, number {number}" for number in range(26)]
    write_grid(tmp_path, labels=titles, shots=(5,), draws=(0,))
    write_report(tmp_path)
    bars = (tmp_path / "figures" / "sessions-5.svg").read_text().partition('id="legend_1"')[0]
    found = re.findall(r'<text style="font-size: ([\d.]+)px[^>]*translate\([\d.]+ ([\d.]+)\)">([^<]+)<', bars)
    lines = [(float(size), float(y), text) for size, y, text in found if text.startswith(("a system", "number"))]
    assert [f"{first[2]} {second[2]}" for first, second in zip(lines[::2], lines[1::2], strict=True)] == titles
    assert all(after[1] - before[1] > 0.8 * before[0] for before, after in itertools.pairwise(lines))


def contrast(colour):
    """Of a colour like #0072b2 with white, as accessibility guidelines define it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_colours_are_seen_on_white(reported):
    assert contrast("#ffffff") == pytest.approx(1)
    assert contrast("#000000") == pytest.approx(21)
    assert min(map(contrast, COLOURS)) > 2.2
    for drawing in (reported["bench"][0] / "figures").glob("features-*.svg"):
        colours = set(re.findall(r"fill: (#[0-9a-f]{6})", drawing.read_text().partition("PathCollection")[2]))
        colours -= {"#ffffff"}  # the edge of letters
        assert len(colours) > 50
        assert min(map(contrast, colours)) > 3


def test_confusion_matrices_show_the_shares_of_base_and_novel(reported):
    folder = reported["bench"][0]
    drawing = ElementTree.parse(folder / "figures" / "confusion-5.svg")
    texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    expected = []
    for row in read_grid(folder).rows:
        matrix = row.confusion(5)
        for true in (slice(60), slice(60, 100)):
            for predicted in (slice(60), slice(60, 100)):
                expected.append(f"{100 * matrix[true, predicted].sum() / matrix[true].sum():.0f}%")
    assert [text for text in texts if re.fullmatch(r"\d+%", text)] == expected
    assert texts.count("share of the images of a class") == 1  # one scale for all panels


def test_confusion_adds_up_draws_and_seeds(tmp_path):
    write_grid(tmp_path, seeds=(0, 1))
    matrix = read_grid(tmp_path).rows[-1].confusion(5)
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
    found = read_grid(folder).rows[-1].accuracy(5, 8, "harmonic")
    line = next(line for line in summary.splitlines() if line.startswith("ALICE"))
    assert line.endswith(str(found))


def test_the_same_results_give_the_same_page(tmp_path):
    write_grid(tmp_path, labels=("alice",), shots=(5,))
    write_report(tmp_path)
    first = (tmp_path / "report.html").read_bytes()
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first


# Summary


def perturbed(folder, cell, by):
    """The harmonic accuracy of the last session of each draw, changed by these numbers."""

    def how(found):
        for walk, one in zip(found["walks"], by, strict=True):
            walk["sessions"][-1]["harmonic"] += one

    change(folder, cell, how)


def test_differences_are_paired_by_draw(tmp_path):
    """What a draw does to both rows cancels; an interval of unpaired values would be much wider."""
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,), draws=(0, 1, 2))
    for cell in ("0-seed0", "1-seed0"):
        perturbed(tmp_path, cell, (0.1, -0.1, 0.2))
    perturbed(tmp_path, "1-seed0", (0.03, 0.04, 0.05))
    results = read_grid(tmp_path)
    mine, alice = results.rows
    assert results.reference is alice
    pairs = [
        100 * (one["sessions"][-1]["harmonic"] - other["sessions"][-1]["harmonic"])
        for one, other in zip(mine.results[0]["walks"], alice.results[0]["walks"], strict=True)
    ]
    found = mine.difference(alice, 5, "harmonic")
    assert found.mean == pytest.approx(statistics.mean(pairs))
    assert found.interval == pytest.approx(stats.t.ppf(0.975, 2) * statistics.stdev(pairs) / 3**0.5)
    write_report(tmp_path)
    rows = {cells[0]: cells for cells in rows_of((tmp_path / "report.md").read_text(), "Summary")}
    assert rows["CEC"][-2:] == [f"{found.mean:+.1f} ±{found.interval:.1f}", "-"]  # one training seed shows nothing
    assert rows["ALICE"][-2:] == ["-", "-"]


def test_differences_over_seeds_are_of_the_means_over_draws(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,), seeds=(0, 1, 2))
    perturbed(tmp_path, "1-seed2", (0.05, 0.01))
    mine, alice = read_grid(tmp_path).rows
    means = []
    for one, other in zip(mine.results, alice.results, strict=True):
        last = [[walk["sessions"][-1]["harmonic"] for walk in result["walks"]] for result in (one, other)]
        means.append(100 * (statistics.mean(last[0]) - statistics.mean(last[1])))
    found = mine.difference(alice, 5, "harmonic")
    assert found.mean == pytest.approx(statistics.mean(means))
    assert found.interval == pytest.approx(stats.t.ppf(0.975, 2) * statistics.stdev(means) / 3**0.5)


def test_a_difference_within_its_interval_shows_nothing(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec", "topic", "icarl"), shots=(5,), seeds=(0, 1))
    perturbed(tmp_path, "1-seed0", (0.2, 0.2))
    for cell in ("3-seed0", "3-seed1"):
        perturbed(tmp_path, cell, (0.1, 0.1))
    table = summary_table(read_grid(tmp_path))
    assert table.header[-1] == "5-shot better or worse"
    verdicts = {cells[0]: cells[-1] for _, cells in table.rows}
    assert verdicts == {"CEC": "undecided", "TOPIC": "worse", "iCaRL": "better", "ALICE": "-"}
    assert "their intervals are over training seeds" in table.notes[0]


def test_one_training_seed_makes_no_row_better_or_worse(tmp_path):
    """However many draws there are: another training might differ by more."""
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,), draws=range(10))
    table = summary_table(read_grid(tmp_path))
    assert [cells[-1] for _, cells in table.rows] == ["-", "-"]
    assert re.match(r"-\d+\.\d ±\d", table.rows[0][1][-2])
    assert "draws of the few images of one training seed, not over seeds" in table.notes[0]
    assert "no row is called better or worse" in table.notes[0]
    # A row with a single seed beside rows of several is no better off.
    write_grid(tmp_path / "more", labels=("alice", "cec"), shots=(5,), seeds=(0, 1))
    (tmp_path / "more" / "cells" / "1-seed1" / "results.json").unlink()
    assert [cells[-1] for _, cells in summary_table(read_grid(tmp_path / "more")).rows] == ["-", "-"]


def test_the_summary_says_of_how_many_trainings_and_draws_a_row_is(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec", "icarl"), seeds=(0, 1), draws=(0, 1, 2))
    change(tmp_path, "1-seed1", lambda found: found.update(walks=found["walks"][1:]))
    change(tmp_path, "2-seed0", lambda found: found.update(walks=found["walks"][:3]))
    rows = {title: cells[0] for title, *cells in (row for _, row in summary_table(read_grid(tmp_path)).rows)}
    assert rows == {"ALICE": "2 x 3", "CEC": "5-shot 2 x 2-3; 1-shot 2 x 3", "iCaRL": "5-shot 2 x 3; 1-shot 1 x 3"}


def test_the_best_of_a_column_is_bold(bench):
    text = (bench / "report.md").read_text()
    part = text.split("## Harmonic accuracy, 1-shot\n")[1].split("\n## ")[0]
    bold = [line for line in part.splitlines() if "**" in line]
    assert [line.split(" | ")[0].strip("| ") for line in bold] == ["ALICE"]  # row 0 of the made-up numbers
    assert bold[0].count("**") == 2 * 8
    best = re.findall(r'<th scope="row">([^<]*)</th><td><b>', (bench / "report.html").read_text())
    assert set(best) == {"ALICE"}


def test_tables_as_latex_and_csv(tmp_path):
    write_grid(tmp_path, labels=("alice", "100%_sure & {more}"), shots=(5,))
    _, written = write_report(tmp_path, latex=True, csv=True)
    names = {path.name for path in written if path.parent.name == "tables"}
    assert {"summary.tex", "summary.csv", "harmonic-accuracy-5-shot.tex", "harmonic-accuracy-5-shot.csv"} <= names
    latex = (tmp_path / "tables" / "harmonic-accuracy-5-shot.tex").read_text()
    assert r"100\%\_sure \& \{more\} & " in latex
    assert latex.count(r"\textbf{") == 8
    assert r" $\pm$" in latex
    assert len({line.count(" & ") for line in latex.splitlines() if line.endswith(r"\\")}) == 1
    with (tmp_path / "tables" / "harmonic-accuracy-5-shot.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = read_grid(tmp_path).rows[0].accuracy(5, 8, "harmonic")
    assert float(rows[0]["8"]) == pytest.approx(found.mean, abs=0.051)
    assert float(rows[0]["8 ±"]) == pytest.approx(found.interval, abs=0.051)


def test_tables_as_files_have_their_notes(tmp_path):
    """And the commands, to which the last column of the provenance refers by their numbers."""
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5, 1))
    write_report(tmp_path, latex=True, csv=True)
    results = read_grid(tmp_path)
    notes = (tmp_path / "tables" / "notes.txt").read_text(encoding="utf-8")
    for table, source in ((summary_table(results), made_by(results)), (provenance(results), [])):
        name = table.title.lower().replace(" ", "-")
        below = (tmp_path / "tables" / f"{name}.tex").read_text(encoding="utf-8").split("\\end{table}\n")[1]
        assert below == "".join(f"% {line}\n" for line in [*table.notes_in_lines(), *source])
        assert "\n".join([table.title, *table.notes_in_lines()]) in notes
    assert "1. fscil bench cifar100 --out DIR" in notes


def test_every_latex_file_tells_how_it_was_made(tmp_path):
    """It is copied into a paper alone, without the page."""
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,))
    change(tmp_path, "0-seed0", lambda found: found.update(data_fingerprint="0123456789abcdef" * 4))
    change(tmp_path, "0-seed0", lambda found: found["machine"].update(cpu="Some CPU", fscil="0.2.0", python="3.11.7"))
    write_report(tmp_path, latex=True)
    for path in (tmp_path / "tables").glob("*.tex"):
        text = path.read_text(encoding="utf-8")
        assert text.count("fscil bench cifar100 --out DIR") == 1, path.name
        assert text.count("Images (SHA-256): 0123456789abcdef.") == 1, path.name
        assert text.count("Some CPU, 2 cores, cpu, Linux, fscil 0.2.0, torch 2.13.0, python 3.11.7") == 1, path.name


def test_columns_of_a_csv_file_have_names_of_their_own(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5, 1))
    write_report(tmp_path, csv=True)
    for path in (tmp_path / "tables").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            header = next(csv.reader(file))
        assert len({*header}) == len(header), path.name
        assert {name for name in header if name.endswith("±")}.isdisjoint({"seeds x draws ±", "backbone ±", " ±"})


def test_without_being_asked_no_tables_are_written(bench):
    assert not (bench / "tables").exists()


def test_a_network_at_chance_is_said_not_to_have_learned(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,))
    change(tmp_path, "1-seed0", at_chance)
    summary, _ = write_report(tmp_path)
    note = '"CEC" did not learn: session 0 is at chance.'
    assert note in summary
    assert note in (tmp_path / "report.md").read_text()
    assert '"ALICE"' not in summary
    change(tmp_path, "0-seed0", at_chance)
    assert '"CEC", "ALICE" did not learn: session 0 is at chance.' in write_report(tmp_path)[0]


def test_a_network_of_random_weights_is_said_not_to_be_trained(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,))

    def without_training(start, weights=""):
        def how(found):
            found["training"]["epochs"] = 0
            found["settings"] = {"model.init": start, "model.weights": weights}

        return how

    change(tmp_path, "0-seed0", without_training("pretrained"))
    change(tmp_path, "1-seed0", without_training("scratch"))
    summary, _ = write_report(tmp_path)
    assert '"CEC": no base training, since train.epochs is 0; the weights were random.' in summary
    assert '"ALICE"' not in summary
    change(tmp_path, "1-seed0", without_training("scratch", "resnet18.pth"))
    assert "no base training" not in write_report(tmp_path)[0]


def test_a_training_that_made_a_pretrained_network_worse_is_said(tmp_path):
    write_grid(tmp_path, labels=("alice", "cec"), shots=(5,))
    before = accuracy(1, 0, 5, 0, 0) + 0.123
    change(tmp_path, "0-seed0", lambda found: found.update(untouched=0.1))
    change(tmp_path, "1-seed0", lambda found: found.update(untouched=before))
    summary, _ = write_report(tmp_path)
    assert '"CEC": training made session 0 worse by 12.3 points than the pretrained network' in summary
    assert '"ALICE": training made' not in summary


def test_chance_is_one_over_the_classes_seen(bench):
    assert read_grid(bench).chance(5) == pytest.approx({number: 100 / (60 + 5 * number) for number in range(9)})
    assert ">chance<" in (bench / "figures" / "sessions-5.svg").read_text()


def test_features_carry_the_names_of_classes(tmp_path):
    write_grid(tmp_path, labels=("alice",), shots=(5,), draws=(0,))
    path = tmp_path / "base" / "base0" / "sample.safetensors"
    tensors, _ = load_tensors(path)
    save_tensors(path, tensors, {"classes": [f"animal {number}" for number in range(60)]})
    write_report(tmp_path)
    drawing = (tmp_path / "figures" / "features-1.svg").read_text()
    assert all(f">animal {number}<" in drawing for number in range(60))


def test_neighbouring_class_colours_can_be_told_apart():
    colours = class_colours(60)
    assert len(set(colours)) == 60
    parts = np.array([[int(one[place : place + 2], 16) for place in (1, 3, 5)] for one in colours])
    assert np.linalg.norm(np.diff(parts, axis=0), axis=1).min() > 60
