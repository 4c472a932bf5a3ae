"""The parts of a report: tables, as Markdown, HTML or for a terminal, and figures, as Markdown or HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal, TypeAlias

from fscil.runtime.text import printable

if TYPE_CHECKING:
    from rich.console import Group

RowKind: TypeAlias = Literal["heading", "ours", "paper", "difference"]
LONG = ' class="long"'
FIRST_COLUMN = 17  # least width on a terminal


@dataclass(frozen=True)
class Table:
    """Rows are a kind and their cells; a heading has one cell, and may have a shorter one for a terminal."""

    title: str
    header: Sequence[str]
    rows: Sequence[tuple[RowKind, Sequence[str]]]
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()  # a numbered list below the table

    def markdown(self, level: int = 2) -> str:
        """level: of the title."""
        width = len(self.header)
        lines = [f"{'#' * level} {self.title}", "", _line(self.header), _line(["---", *["---:"] * (width - 1)])]
        for kind, cells in self.rows:
            lines.append(_line([f"*{cells[0]}*", *[""] * (width - 1)] if kind == "heading" else cells))
        lines += ["", "  \n".join(self.notes)] if self.notes else []
        if self.commands:
            lines += ["", *(f"{number}. `{command}`" for number, command in enumerate(self.commands, 1))]
        return "\n".join(lines)

    def html(self) -> str:
        head = "".join(f'<th scope="col"{LONG * (len(cell) > 20)}>{escape(cell)}</th>' for cell in self.header)
        body = "".join(self._html_row(kind, cells) for kind, cells in self.rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        items = "".join(f"<li><code>{escape(command)}</code></li>" for command in self.commands)
        commands = f'<ol class="commands">{items}</ol>' if items else ""
        return (
            f"<section><h2>{escape(self.title)}</h2><div class=scroll tabindex=0><table><thead><tr>{head}</tr>"
            f"</thead><tbody>\n{body}</tbody></table></div>{notes}{commands}</section>"
        )

    def _html_row(self, kind: RowKind, cells: Sequence[str]) -> str:
        first, *rest = cells
        if kind == "heading":
            return f'<tr class="heading"><th scope="row" colspan="{len(self.header)}">{escape(first)}</th></tr>\n'
        data = "".join(f"<td>{_small_interval(escape(cell))}</td>" for cell in rest)
        return f'<tr class="{kind}"><th scope="row">{escape(first)}</th>{data}</tr>\n'

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
        for kind, cells in self.rows:
            if kind == "heading":
                grid.add_section()
                grid.add_row(Text(cells[-1], "italic"))
            else:
                grid.add_row(*(Text(printable(cell).replace(" ±", "\n±")) for cell in cells))
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


def _small_interval(cell: str) -> str:
    return re.sub(r" (±[\d.]+)", r" <small>\1</small>", cell)
