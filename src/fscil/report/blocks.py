"""The pieces of a report, each of which can be written as Markdown and as HTML: tables and figures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LONG = ' class="long"'


@dataclass(frozen=True)
class TableBlock:
    """Rows are a kind and their cells; those of kind "paper" and "difference" stand back."""

    title: str
    header: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    note: str = ""
    commands: Sequence[str] = ()  # a numbered list below the table

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.header), _line(["---", *["---:"] * (len(self.header) - 1)])]
        lines += [_line(cells) for _, cells in self.rows]
        lines += ["", self.note] if self.note else []
        if self.commands:
            lines += ["", *(f"{number}. `{command}`" for number, command in enumerate(self.commands, 1))]
        return "\n".join(lines)

    def html(self) -> str:
        head = "".join(f'<th scope="col"{LONG * (len(cell) > 20)}>{escape(cell)}</th>' for cell in self.header)
        body = ""
        for kind, cells in self.rows:
            first, *rest = cells
            data = "".join(f"<td>{_small_interval(escape(cell))}</td>" for cell in rest)
            body += f'<tr class="{kind}"><th scope="row">{escape(first)}</th>{data}</tr>\n'
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        items = "".join(f"<li><code>{escape(command)}</code></li>" for command in self.commands)
        commands = f'<ol class="commands">{items}</ol>' if items else ""
        return (
            f"<section><h2>{escape(self.title)}</h2><div class=scroll tabindex=0><table><thead><tr>{head}</tr>"
            f"</thead><tbody>\n{body}</tbody></table></div>{note}{commands}</section>"
        )


@dataclass(frozen=True)
class FigureBlock:
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
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _small_interval(cell: str) -> str:
    return re.sub(r" (±[\d.]+)", r" <small>\1</small>", cell)
