"""A grid's results to read: terminal summary, report.md with its figures, and a self-contained report.html."""

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from fscil.report import figures
from fscil.report.blocks import FigureBlock, TableBlock
from fscil.report.collect import Results, Row, read
from fscil.report.provenance import cross_entropy, departures, provenance
from fscil.report.tables import DATA_NAMES, MEASURES, paper_ablation, paper_results
from fscil.runtime.files import load_tensors, write_text

SOURCES = {"reported": "as reported in the paper", "rerun": "rerun by the paper's authors", "paper": "the paper's own"}
_MAPPED = {  # in the paper's figure, by the first row that starts from it
    "cross-entropy": "cross-entropy",
    "cross-entropy, balanced": "cross-entropy",
    "angular penalty": "angular penalty",
    "angular penalty, balanced": "angular penalty",
    "+ class augmentation": "the whole method",
}
UNLIKE = "Not comparable with the paper: these settings differ from its own, which are in brackets."


def write_report(folder: Path) -> tuple[str, list[Path]]:
    """Writes report.md, figures/ and report.html into the folder; returns a summary for the terminal, and the pages."""
    results = read(folder)
    blocks = [block for shots in results.shots() for block in _blocks(results, shots)]
    blocks += [provenance(results)]
    for block in blocks:
        if isinstance(block, FigureBlock):
            write_text(folder / "figures" / f"{block.name}.svg", block.svg)
    write_text(folder / "report.md", _markdown(results, blocks))
    write_text(folder / "report.html", _html(results, blocks))
    return _summary(results), [folder / "report.md", folder / "report.html"]


def _title(results: Results) -> str:
    kind = {"bench": "comparison of methods", "ablation": "ablation of ALICE", "margin-scale": "margin and scale"}
    data = results.about["data"]
    return f"{DATA_NAMES.get(data, data)}: {kind.get(results.kind, results.kind)}"


def _intro(results: Results) -> str:
    protocol, images = (results.about[key] for key in ("protocol", "images"))
    return (
        f"{protocol['base_classes']} base classes with {images['base training']:,} training images, then "
        f"{protocol['sessions']} sessions of {protocol['way']} classes. Accuracies in percent; ± is the 95% interval "
        f"of the mean over training seeds, or over draws of the few images where there is one seed."
    )


def _gaps(results: Results) -> list[str]:
    """What of the grid is not in the tables, and why."""
    gaps = [f"failed: {name}: {why}" for name, why in results.failed.items()]
    return gaps + [f"not finished: {name}" for name in results.unfinished]


def _blocks(results: Results, shots: int) -> list[TableBlock | FigureBlock]:
    blocks: list[TableBlock | FigureBlock] = []
    where = f"{shots}-shot"
    if results.kind == "margin-scale":
        blocks.append(
            FigureBlock(
                f"margin-scale-{shots}",
                f"Margin and scale, {where}",
                "Left: margin m at scale 30; right: scale s at margin 0.4. Two views, no class augmentation.",
                figures.draw(f"margin-scale-{shots}", figures.margin_and_scale, results, shots),
            )
        )
    else:
        blocks.append(
            FigureBlock(
                f"sessions-{shots}",
                f"Session by session, {where}",
                "Curves: average accuracy. Bars: harmonic accuracy.",
                figures.draw(f"sessions-{shots}", figures.session_curves, results, shots),
            )
        )
    if results.kind == "ablation":
        blocks.append(
            FigureBlock(
                f"ablation-{shots}",
                f"Part after part, {where}",
                "The last session. Each row adds one part of ALICE.",
                figures.draw(f"ablation-{shots}", figures.ablation, results, shots),
            )
        )
    blocks += [_table(results, shots, measure) for measure in ("average", "harmonic")]
    if results.kind == "bench":
        blocks.append(
            FigureBlock(
                f"base-novel-{shots}",
                f"Base against novel classes, {where}",
                "The last session; grey lines join points of equal harmonic accuracy, which stands at their end.",
                figures.draw(f"base-novel-{shots}", figures.base_against_novel, results, shots),
            )
        )
    if results.kind != "margin-scale" and any(row.confusion(shots) is not None for row in results.with_shots(shots)):
        blocks.append(
            FigureBlock(
                f"confusion-{shots}",
                f"Confusion matrices, {where}",
                "The last session: a line per true class, a column per predicted one; the lines part base from novel "
                "classes. Numbers: the share of the test images of base (above) or novel classes (below) that is taken "
                "for base (left) or novel ones (right).",
                figures.draw(f"confusion-{shots}", figures.confusions, results, shots),
            )
        )
    if shots == results.shots()[0]:
        blocks += _feature_maps(results)
    return blocks


def _feature_maps(results: Results) -> list[FigureBlock]:
    """t-SNE of the base networks: of an ablation those that the paper shows, of a comparison each one."""
    maps: list[FigureBlock] = []
    for network, rows in results.networks().items():
        title = _started(results, network, rows) if results.kind == "bench" else _MAPPED.get(rows[0].label)
        path = results.folder / "base" / network / "sample.safetensors"
        if title and path.exists():
            tensors, _ = load_tensors(path)
            name = f"features-{len(maps) + 1}"
            svg = figures.draw(name, figures.features, tensors["features"].numpy(), tensors["labels"].numpy())
            caption = "t-SNE of training images, each as the number of its class; class means in bold."
            maps.append(FigureBlock(name, f"Features of the base classes: {title}", caption, svg))
    return maps


def _started(results: Results, network: str, rows: Sequence[Row]) -> str:
    """A base network by the methods that start from it."""
    others = [row for row in results.rows if row.label != "alice"]
    all_others = rows == others and len(others) < len(results.rows)
    names = "all but ALICE" if all_others else ", ".join(row.title.partition(" (")[0] for row in rows)
    recipe = results.recipe(network)
    return f"cross-entropy ({names})" if recipe and recipe["loss"]["kind"] == "softmax" else names


def _table(results: Results, shots: int, measure: str) -> TableBlock:
    """Per row: ours, the paper's where it has one, and the difference."""
    rows = results.with_shots(shots)
    last = max(row.sessions(shots)[-1] for row in rows)
    sessions = range(last + 1) if measure == "average" else range(1, last + 1)
    body: list[tuple[str, Sequence[str]]] = []
    for row in rows:
        found = [row.figure(shots, session, measure) for session in sessions]
        found += [row.drop(shots)] if measure == "average" else []
        body.append(("ours", [row.title, *(str(figure) if figure else "-" for figure in found)]))
        for source, values in _published(results, row, shots, measure, len(sessions)):
            theirs = [*values, values[0] - values[-1]] if measure == "average" else values
            body.append(("paper", [f"{row.title}, {source}", *(f"{value:.1f}" for value in theirs)]))
            differences = [
                f"{figure.mean - value:+.1f}" if figure else "-" for figure, value in zip(found, theirs, strict=True)
            ]
            body.append(("difference", ["difference", *differences]))
    header = ["", *map(str, sessions), *(["PD"] if measure == "average" else [])]
    return TableBlock(
        f"{MEASURES[measure].partition(' (')[0].capitalize()}, {shots}-shot", header, body, cross_entropy(results)
    )


def _published(results: Results, row: Row, shots: int, measure: str, count: int) -> list[tuple[str, list[float]]]:
    """The paper's rows for the same thing, if it has as many sessions."""
    if results.kind == "ablation":
        found = paper_ablation().get(row.label) if (results.about["data"], shots) == ("cifar100", 5) else None
        rows = [("the paper's", found)] if found else []
    elif results.kind == "bench":
        rows = [
            (SOURCES[published["source"]], published)
            for published in paper_results()
            if (published["data"], published["shots"], published["method"])
            == (results.about["data"], shots, row.method)
        ]
    else:
        rows = []
    return [(source, one[measure]) for source, one in rows if len(one.get(measure, ())) == count]


def _markdown(results: Results, blocks: Sequence[TableBlock | FigureBlock]) -> str:
    parts = [f"# {_title(results)}", _intro(results)]
    for lead, items in ((UNLIKE, departures(results)), ("Not in the tables:", _gaps(results))):
        parts += [f"**{lead}**", "\n".join(f"- {item}" for item in items)] if items else []
    return "\n\n".join([*parts, *(block.markdown() for block in blocks)]) + "\n"


def _html(results: Results, blocks: Sequence[TableBlock | FigureBlock]) -> str:
    style = (resources.files("fscil") / "report" / "page.css").read_text(encoding="utf-8")
    title = escape(_title(results))
    intro = f"<p>{escape(_intro(results))}</p>"
    for lead, items in ((UNLIKE, departures(results)), ("Not in the tables:", _gaps(results))):
        listed = "".join(f"<li>{escape(item)}</li>" for item in items)
        intro += f"<aside><strong>{escape(lead)}</strong><ul>{listed}</ul></aside>" if items else ""
    body = "\n".join(block.html() for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{style}</style></head>\n<body><main><h1>{title}</h1>{intro}\n{body}\n"
        f"</main></body></html>\n"
    )


def _summary(results: Results) -> str:
    """The last session of every row, as a few aligned lines."""
    lines = [_title(results)]
    for shots in results.shots():
        rows = results.with_shots(shots)
        heading = f"last session, {shots}-shot"
        width = max(len(heading), *(len(row.title) for row in rows))
        lines += ["", f"{heading:{width}}  {'average':>12}  {'harmonic':>12}"]
        for row in rows:
            last = row.sessions(shots)[-1]
            cells = [str(row.figure(shots, last, measure) or "-") for measure in ("average", "harmonic")]
            lines.append(f"{row.title:{width}}  {cells[0]:>12}  {cells[1]:>12}")
    gaps = _gaps(results)
    return "\n".join([*lines, *([""] if gaps else []), *gaps])
