"""A grid's results to read: terminal summary, report.md with its figures, and a self-contained report.html."""

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from fscil.progress import clock
from fscil.report import figures
from fscil.report.collect import Results, Row, read
from fscil.report.tables import DATA_NAMES, MEASURES, paper_ablation, paper_results
from fscil.store import load_tensors, write_text

SOURCES = {"reported": "as reported in the paper", "rerun": "rerun by the paper's authors", "paper": "the paper's own"}


def write_report(folder: Path) -> tuple[str, list[Path]]:
    """Writes report.md, figures/ and report.html into the folder; returns a summary for the terminal, and the pages."""
    results = read(folder)
    blocks = [block for shots in results.shots() for block in _blocks(results, shots)]
    blocks += [_provenance(results)]
    markdown = "\n\n".join([f"# {_title(results)}", _intro(results), *(block.markdown() for block in blocks)])
    for block in blocks:
        if isinstance(block, _Figure):
            write_text(folder / "figures" / f"{block.name}.svg", block.svg)
    write_text(folder / "report.md", markdown + "\n")
    write_text(folder / "report.html", _html(results, blocks))
    return _summary(results), [folder / "report.md", folder / "report.html"]


def _title(results: Results) -> str:
    kind = {"bench": "comparison of methods", "ablation": "ablation of ALICE", "margin-scale": "margin and scale"}
    data = results.about["data"]
    return f"{DATA_NAMES.get(data, data)}: {kind.get(results.kind, results.kind)}"


def _intro(results: Results) -> str:
    protocol, images, machine = (results.about[key] for key in ("protocol", "images", "machine"))
    text = (
        f"{protocol['base_classes']} base classes with {images['base training']:,} training images, then "
        f"{protocol['sessions']} sessions of {protocol['way']} classes. Accuracies in percent. An interval (±) is the "
        f"95% interval of the mean over training seeds, or over draws of the few images where there is one seed. "
        f"Machine: {machine['cores']} cores, {machine['device']}, {machine['system']}, torch {machine['torch']}."
    )
    if results.failed:
        text += " Failed: " + "; ".join(f"{name} ({why})" for name, why in results.failed.items()) + "."
    return text


class _Table:
    """A table that can be written as Markdown and as HTML. Rows of kind "paper" and "difference" stand back."""

    def __init__(self, title: str, header: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], note: str = ""):
        self.title, self.header, self.rows, self.note = title, header, rows, note

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.header), _line(["---", *["---:"] * (len(self.header) - 1)])]
        lines += [_line(cells) for _, cells in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.header)
        body = ""
        for kind, cells in self.rows:
            first, *rest = cells
            data = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            body += f'<tr class="{kind}"><th scope="row">{escape(first)}</th>{data}</tr>\n'
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return (
            f"<section><h2>{escape(self.title)}</h2>{note}<div class=scroll tabindex=0><table><thead><tr>{head}</tr>"
            f"</thead><tbody>\n{body}</tbody></table></div></section>"
        )


class _Figure:
    """A drawing: part of the page, and a file of its own beside the Markdown."""

    def __init__(self, name: str, title: str, caption: str, svg: str):
        self.name, self.title, self.caption, self.svg = name, title, caption, svg

    def markdown(self) -> str:
        return f"## {self.title}\n\n![{self.title}](figures/{self.name}.svg)\n\n{self.caption}"

    def html(self) -> str:
        picture = self.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(self.title)}" ', 1)
        return (
            f'<section><h2>{escape(self.title)}</h2><figure id="{self.name}">{picture}'
            f"<figcaption>{escape(self.caption)}</figcaption></figure></section>"
        )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _blocks(results: Results, shots: int) -> list[_Table | _Figure]:
    blocks: list[_Table | _Figure] = []
    where = f"{shots}-shot"
    if results.kind == "margin-scale":
        blocks.append(
            _Figure(
                f"margin-scale-{shots}",
                f"Margin and scale, {where}",
                "Left: margin m at scale 30; right: scale s at margin 0.4. Two views, no class augmentation.",
                figures.draw(f"margin-scale-{shots}", figures.margin_and_scale, results, shots),
            )
        )
    else:
        blocks.append(
            _Figure(
                f"sessions-{shots}",
                f"Session by session, {where}",
                "Curves: average accuracy. Bars: harmonic accuracy.",
                figures.draw(f"sessions-{shots}", figures.session_curves, results, shots),
            )
        )
    if results.kind == "ablation":
        blocks.append(
            _Figure(
                f"ablation-{shots}",
                f"Part after part, {where}",
                "The last session. Each row adds one part of ALICE.",
                figures.draw(f"ablation-{shots}", figures.ablation, results, shots),
            )
        )
    blocks += [_table(results, shots, measure) for measure in ("average", "harmonic")]
    if results.kind == "bench":
        blocks.append(
            _Figure(
                f"base-novel-{shots}",
                f"Base against novel classes, {where}",
                "The last session; grey lines join points of equal harmonic accuracy.",
                figures.draw(f"base-novel-{shots}", figures.base_against_novel, results, shots),
            )
        )
    if results.kind != "margin-scale" and any(row.confusion(shots) is not None for row in results.with_shots(shots)):
        blocks.append(
            _Figure(
                f"confusion-{shots}",
                f"Confusion matrices, {where}",
                "The last session, rows are true classes; lines mark the border between base and novel classes.",
                figures.draw(f"confusion-{shots}", figures.confusions, results, shots),
            )
        )
    if shots == results.shots()[0] and (panels := _panels(results)):
        blocks.append(
            _Figure(
                "features",
                "How the features of the base classes lie (t-SNE)",
                "Training images as class numbers, class means in bold.",
                figures.draw("features", figures.features, panels),
            )
        )
    return blocks


def _panels(results: Results) -> list[tuple[str, Any, Any]]:
    """Cross-entropy, angular penalty and the full method, as far as they are there."""
    wanted = {
        "ablation": ("cross-entropy, balanced", "angular penalty, balanced", "+ class augmentation"),
        "bench": ("finetune", "cec", "alice"),
    }
    panels = []
    for row in results.rows:
        path = results.folder / "base" / row.results[0]["base"] / "sample.safetensors"
        if row.label in wanted.get(results.kind, ()) and path.exists():
            tensors, _ = load_tensors(path)
            title = f"base network of {row.title}" if results.kind == "bench" else row.title
            panels.append((title, tensors["features"].numpy(), tensors["labels"].numpy()))
    return panels


def _table(results: Results, shots: int, measure: str) -> _Table:
    """Per row: ours, the paper's where it has one, and the difference."""
    rows = results.with_shots(shots)
    last = max(row.sessions(shots)[-1] for row in rows)
    sessions = range(last + 1) if measure == "average" else range(1, last + 1)
    body: list[tuple[str, Sequence[str]]] = []
    for row in rows:
        found = [row.figure(shots, session, measure) for session in sessions]
        drop = [f"{row.drop(shots):.1f}"] if measure == "average" else []
        body.append(("ours", [row.title, *(str(figure) if figure else "-" for figure in found), *drop]))
        for source, values in _published(results, row, shots, measure, len(sessions)):
            drop = [f"{values[0] - values[-1]:.1f}"] if measure == "average" else []
            body.append(("paper", [f"{row.title}, {source}", *(f"{value:.1f}" for value in values), *drop]))
            differences = [
                f"{figure.mean - value:+.1f}" if figure else "-" for figure, value in zip(found, values, strict=True)
            ]
            body.append(("difference", ["difference", *differences, *["" for _ in drop]]))
    header = ["", *map(str, sessions), *(["PD"] if measure == "average" else [])]
    return _Table(f"{MEASURES[measure].partition(' (')[0].capitalize()}, {shots}-shot", header, body)


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


def _provenance(results: Results) -> _Table:
    header = ["", "backbone", "parameters", "images seen", "base training", "the rest", "memory", "seeds", "draws"]
    rows: list[tuple[str, Sequence[str]]] = []
    for row in results.rows:
        first = row.results[0]
        training = [result["training"] for result in row.results]
        seconds = [one["seconds"] for one in training if one.get("seconds")]
        walks = [walk for result in row.results for walk in result["walks"]]
        memory = max((walk["memory"] for walk in walks), key=lambda kept: (kept["images"], kept["floats"]))
        rest = sum(result["fit_seconds"] for result in row.results) + sum(walk["seconds"] for walk in walks)
        cells = [
            row.title,
            first["backbone"],
            f"{first['parameters']:,}",
            f"{first['training']['images_seen']:,}",
            clock(sum(seconds) / len(seconds)) if seconds else "-",
            clock(rest),
            f"{memory['images']:,} images, {memory['floats']:,} numbers",
            ", ".join(str(one["seed"]) for one in training),
            ", ".join(dict.fromkeys(str(walk["draw"]) for walk in walks)),
        ]
        rows.append(("ours", cells))
    commands = dict.fromkeys(result["command"] for row in results.rows for result in row.results)
    note = (
        "Base training is per seed and shared by rows of the same recipe; the rest is fitting and all sessions of all "
        f"seeds and draws. Commands: {'; '.join(commands)}"
    )
    departures = _departures(results)
    if departures:
        note += f". Not comparable with the paper: the recipe departs from it (in brackets) in {departures}"
    return _Table("How these figures were made", header, rows, note)


def _departures(results: Results) -> str:
    """What all rows have in common; what a method's own recipe changes is that method."""
    shared = None
    for row in results.rows:
        pairs = {f"{key} = {here} ({there})" for key, (here, there) in row.results[0]["departures"].items()}
        shared = pairs if shared is None else shared & pairs
    return ", ".join(sorted(shared or ()))


def _html(results: Results, blocks: Sequence[_Table | _Figure]) -> str:
    style = (resources.files("fscil") / "report" / "page.css").read_text(encoding="utf-8")
    title = escape(_title(results))
    body = "\n".join(block.html() for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{style}</style></head>\n<body><main><h1>{title}</h1><p>{escape(_intro(results))}</p>\n{body}\n"
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
    lines += [f"failed: {name}: {why}" for name, why in results.failed.items()]
    return "\n".join(lines)
