"""The report of a grid: a summary for the terminal, report.md with its figures, and a self-contained report.html."""

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from fscil.experiments.published import DATA_NAMES
from fscil.report.blocks import SvgFigure, Table
from fscil.report.collect import Results, read_grid
from fscil.report.grid_tables import accuracy_table
from fscil.report.illustrations import feature_figures, last_session_figures, overview_figures
from fscil.report.later_systems import later_table
from fscil.report.numbers import cell
from fscil.report.provenance import departure_list, made_by, provenance
from fscil.report.run_tables import way_text
from fscil.report.summary import problems, summary_table
from fscil.runtime.files import write_text

DEPARTURES = "Not comparable with the paper: these settings differ from its own, which are in brackets."
GAPS = "Not in the tables:"


def write_report(folder: Path, latex: bool = False, csv: bool = False) -> tuple[str, list[Path]]:
    """Writes report.md, figures/ and report.html into the folder; returns a summary for the terminal, and the files.

    latex, csv: also every table as a file in tables/. The notes, and how the table was made, are comments in the LaTeX
    files, and notes.txt beside the CSV files.
    """
    results = read_grid(folder)
    blocks = _blocks(results)
    written = [folder / "report.md", folder / "report.html"]
    for block in blocks:
        if isinstance(block, SvgFigure):
            write_text(folder / "figures" / f"{block.name}.svg", block.svg)
            continue
        path = folder / "tables" / re.sub(r"[^a-z0-9]+", "-", block.title.lower()).strip("-")
        source = [] if block.commands else made_by(results)  # the table of the provenance has it in its notes
        for suffix, text in ((".tex", block.latex(source) if latex else ""), (".csv", block.csv() if csv else "")):
            if text:
                write_text(path.with_suffix(suffix), text)
                written.append(path.with_suffix(suffix))
    if csv:
        write_text(folder / "tables" / "notes.txt", _notes(blocks))
        written.append(folder / "tables" / "notes.txt")
    write_text(folder / "report.md", _markdown(results, blocks))
    write_text(folder / "report.html", _html(results, blocks))
    return _summary(results), written


def _blocks(results: Results) -> list[Table | SvgFigure]:
    blocks: list[Table | SvgFigure] = [summary_table(results)]
    for shots in results.shots():
        blocks += overview_figures(results, shots)
        blocks += [accuracy_table(results, shots, measure) for measure in ("average", "harmonic")]
        blocks += last_session_figures(results, shots)
        blocks += feature_figures(results) if shots == results.shots()[0] else []
    later = later_table(results)
    return [*blocks, *([later] if later else []), provenance(results)]


def _notes(blocks: Sequence[Table | SvgFigure]) -> str:
    """What stands below the tables, for which a CSV file has no place."""
    tables = [block for block in blocks if isinstance(block, Table)]
    return "\n\n".join("\n".join([table.title, *table.notes_in_lines()]) for table in tables) + "\n"


def _title(results: Results) -> str:
    kinds = {
        "bench": "comparison of methods",
        "ablation": f"ablation of {results.rows[0].shown['title']}",
        "margin-scale": "margin and scale",
    }
    data = results.about["data"]
    return f"{DATA_NAMES.get(data, data)}: {kinds.get(results.kind, results.kind)}"


def _intro(results: Results) -> str:
    protocol, images = (results.about[key] for key in ("protocol", "images"))
    return (
        f"{protocol['base_classes']} base classes with {images['base training']:,} training images, then "
        f"{protocol['sessions']} sessions of {way_text(protocol)} classes. Accuracies in percent; ± is the 95% "
        f"interval of the mean over training seeds, or over draws of the few images where there is one seed."
    )


def _gaps(results: Results) -> list[str]:
    """What of the grid is not in the tables, and why."""
    gaps = [f"failed: {name}: {why}" for name, why in results.failed.items()]
    return gaps + [f"not finished: {name}" for name in results.unfinished]


def _markdown(results: Results, blocks: Sequence[Table | SvgFigure]) -> str:
    parts = [f"# {_title(results)}", _intro(results)]
    for lead, items in ((DEPARTURES, departure_list(results)), (GAPS, _gaps(results))):
        parts += [f"**{lead}**", "\n".join(f"- {item}" for item in items)] if items else []
    return "\n\n".join([*parts, *(block.markdown() for block in blocks)]) + "\n"


def _html(results: Results, blocks: Sequence[Table | SvgFigure]) -> str:
    style = (resources.files("fscil") / "report" / "page.css").read_text(encoding="utf-8")
    title = escape(_title(results))
    intro = f"<p>{escape(_intro(results))}</p>"
    for lead, items in ((DEPARTURES, departure_list(results)), (GAPS, _gaps(results))):
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
            average, harmonic = (cell(row.accuracy(shots, last, measure)) for measure in ("average", "harmonic"))
            note = f"  ({row.training_note})" if row.training_note else ""
            lines.append(f"{row.title:{width}}  {average:>12}  {harmonic:>12}{note}")
    gaps = [*problems(results), *_gaps(results)]
    return "\n".join([*lines, *([""] if gaps else []), *gaps])
