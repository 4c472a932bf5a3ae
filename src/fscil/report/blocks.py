"""The parts of a report: tables, as Markdown, HTML, LaTeX, CSV or for a terminal, and figures, as Markdown or HTML."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal, TypeAlias

from fscil.runtime.text import csv_text, printable

if TYPE_CHECKING:
    from rich.console import Group

RowKind: TypeAlias = Literal["heading", "ours", "paper", "difference"]
LONG = ' class="long"'
FIRST_COLUMN = 17  # least width on a terminal
LATEX_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"},
    "†": r"$\dagger$",
}


@dataclass(frozen=True)
class Table:
    """Rows are a kind and their cells; a heading has one cell, and may have a shorter one for a terminal."""

    title: str
    header: Sequence[str]
    rows: Sequence[tuple[RowKind, Sequence[str]]]
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()  # a numbered list below the table
    best: frozenset[tuple[int, int]] = frozenset()  # row and column of the cells that are set in bold

    def markdown(self, level: int = 2) -> str:
        """level: of the title."""
        width = len(self.header)
        lines = [f"{'#' * level} {self.title}", "", _line(self.header), _line(["---", *["---:"] * (width - 1)])]
        for number, (kind, cells) in enumerate(self.rows):
            bold = [f"**{cell}**" if (number, place) in self.best else cell for place, cell in enumerate(cells)]
            lines.append(_line([f"*{cells[0]}*", *[""] * (width - 1)] if kind == "heading" else bold))
        lines += ["", "  \n".join(self.notes)] if self.notes else []
        if self.commands:
            lines += ["", *(f"{number}. `{command}`" for number, command in enumerate(self.commands, 1))]
        return "\n".join(lines)

    def html(self) -> str:
        head = "".join(f'<th scope="col"{LONG * (len(cell) > 20)}>{escape(cell)}</th>' for cell in self.header)
        body = "".join(self._html_row(number, kind, cells) for number, (kind, cells) in enumerate(self.rows))
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        items = "".join(f"<li><code>{escape(command)}</code></li>" for command in self.commands)
        commands = f'<ol class="commands">{items}</ol>' if items else ""
        return (
            f"<section><h2>{escape(self.title)}</h2><div class=scroll tabindex=0><table><thead><tr>{head}</tr>"
            f"</thead><tbody>\n{body}</tbody></table></div>{notes}{commands}</section>"
        )

    def _html_row(self, number: int, kind: RowKind, cells: Sequence[str]) -> str:
        first, *rest = cells
        if kind == "heading":
            return f'<tr class="heading"><th scope="row" colspan="{len(self.header)}">{escape(first)}</th></tr>\n'
        texts = [_small_interval(escape(cell)) for cell in rest]
        bold = [f"<b>{text}</b>" if (number, place) in self.best else text for place, text in enumerate(texts, 1)]
        data = "".join(f"<td>{text}</td>" for text in bold)
        return f'<tr class="{kind}"><th scope="row">{escape(first)}</th>{data}</tr>\n'

    def latex(self, source: Sequence[str] = ()) -> str:
        """A table environment for the package booktabs; notes, commands and source are comments below it."""
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(self.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
        ]
        lines += [r"\toprule", _latex_line(self.header), r"\midrule"]
        for number, (kind, cells) in enumerate(self.rows):
            if kind == "heading":
                lines.append(rf"\multicolumn{{{len(self.header)}}}{{l}}{{\emph{{{_latex(cells[0])}}}}} \\")
            else:
                lines.append(_latex_line(cells, [place for place in range(len(cells)) if (number, place) in self.best]))
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        return "\n".join([*lines, *(f"% {printable(line)}" for line in [*self.notes_in_lines(), *source])]) + "\n"

    def notes_in_lines(self) -> list[str]:
        """The notes and the numbered commands, as plain text."""
        return [*self.notes, *(f"{number}. {command}" for number, command in enumerate(self.commands, 1))]

    def csv(self) -> str:
        """Intervals in columns of their own, beside those of numbers, so that every cell is one number or one text.

        The first column names the rows and has none.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        rows = [cells for kind, cells in self.rows if kind != "heading"]
        measured = [place > 0 and any(_is_number(row[place]) for row in rows) for place in range(len(self.header))]
        header = [(csv_text(name), f"{csv_text(name)} ±") for name in self.header]
        for cells in (header, *([(_number(mean), half) for mean, _, half in map(_parts, row)] for row in rows)):
            writer.writerow([part for cell, has in zip(cells, measured, strict=True) for part in cell[: 1 + has]])
        return text.getvalue()

    def terminal(self) -> "Group":
        """Intervals are below their means, so that eleven sessions fit 80 columns; print it uncropped, for more."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        label, *columns = zip(self.header, *(cells for kind, cells in self.rows if kind != "heading"), strict=True)
        widths = [max(len(part) for cell in column for part in cell.split()) for column in columns]
        first = max(FIRST_COLUMN, *map(len, label))
        grid = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=0, width=first + sum(widths) + len(widths))
        grid.add_column(width=first)
        for name, width in zip(self.header[1:], widths, strict=True):
            grid.add_column(name, justify="right", width=width)
        for number, (kind, cells) in enumerate(self.rows):
            if kind == "heading":
                grid.add_section()
                grid.add_row(Text(cells[-1], "italic"))
            else:
                styles = ["bold" if (number, place) in self.best else "" for place in range(len(cells))]
                texts = [printable(cell).replace(" ±", "\n±") for cell in cells]
                grid.add_row(*(Text(text, style) for text, style in zip(texts, styles, strict=True)))
        return Group(Text(self.title, "bold"), grid, *map(Text, self.notes))


@dataclass(frozen=True)
class SvgFigure:
    """A drawing: part of the page, and a file of its own beside the Markdown."""

    name: str
    title: str
    caption: str
    svg: str

    def markdown(self) -> str:
        return f"## {self.title}\n\n![{self.title}](figures/{self.name}.svg)\n\n{self.caption}"

    def html(self) -> str:
        picture = self.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(self.title)}" ', 1)
        return (
            f'<section><h2>{escape(self.title)}</h2><figure id="{self.name}"><div class=scroll tabindex=0>{picture}'
            f"</div><figcaption>{escape(self.caption)}</figcaption></figure></section>"
        )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(printable(cell).replace('|', '/') for cell in cells)} |"


def _latex_line(cells: Sequence[str], bold: Sequence[int] = ()) -> str:
    texts = [rf"\textbf{{{_latex(cell)}}}" if place in bold else _latex(cell) for place, cell in enumerate(cells)]
    return " & ".join(texts) + r" \\"


def _latex(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in printable(text))


def _number(text: str) -> str:
    """A cell of a CSV file: signed numbers as they are, an absent one as nothing, other texts made harmless."""
    return "" if text == "-" else text if _is_number(text) else csv_text(text)


def _is_number(cell: str) -> bool:
    """With its interval or without."""
    return bool(re.fullmatch(r"[+-]?[\d.,]+%?( ±[\d.]+)?", cell))


def _parts(cell: str) -> tuple[str, str, str]:
    return cell.partition(" ±")


def _small_interval(cell: str) -> str:
    return re.sub(r" (±[\d.]+)", r" <small>\1</small>", cell)
