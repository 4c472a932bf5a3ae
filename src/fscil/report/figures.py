"""The figures of a report as SVG. Colours are Okabe and Ito's, which the colour-blind can tell apart.

All are about as wide as WIDTH, so that text has the same size in each, and can be read where they are shown small.
"""

import io
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fscil.report.collect import Results, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Their yellow and black, which white paper and text swallow, are Tol's wine, olive, indigo and a grey instead.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#882255", "#555555", "#999933", "#332288")
MARKERS = "os^Dv*XP<>"
HIGHLIGHT = "#D55E00"
WIDTH = 8.0  # inches


def _svg(figure: "Figure") -> str:
    """Without the XML header, and without anything that differs between two drawings of the same."""
    import matplotlib.pyplot as plt

    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def draw(name: str, make: Callable[..., Any], *arguments: Any) -> str:
    """SVG of the figure that `make(…)` returns. The name keeps its inner ids apart from other figures of a page."""
    import matplotlib

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(style):
        return _svg(make(*arguments))


def _subplots(rows: int, columns: int, height: float) -> tuple["Figure", Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(WIDTH, height), squeeze=False, layout="constrained")


def _looks(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A colour and a mark for each row, the same in every figure; ALICE stands out."""
    found = {}
    others = [colour for colour in COLOURS if colour != HIGHLIGHT]
    for number, row in enumerate(rows):
        colour = HIGHLIGHT if row.label in ("alice", "+ class augmentation") else others[number % len(others)]
        found[row.label] = {"color": colour, "marker": MARKERS[number % len(MARKERS)]}
    return found


def _short(row: Row) -> str:
    """Its title, broken where it is long."""
    return textwrap.fill(row.title, 28)


def session_curves(results: Results, shots: int) -> "Figure":
    """Average accuracy as curves over the sessions, harmonic accuracy as bars, like the paper's figure."""
    rows = results.with_shots(shots)
    looks = _looks(results.rows)
    figure, ((upper,), (lower,)) = _subplots(2, 1, 7.5)
    for row in rows:
        sessions = row.sessions(shots)
        _curve(upper, row, sessions, shots, looks[row.label])
    last = max(row.sessions(shots)[-1] for row in rows)
    bars = [row for row in rows if len(row.sessions(shots)) > 2]
    width = 0.8 / max(1, len(bars))
    for number, row in enumerate(bars):
        places = [session for session in row.sessions(shots) if session]
        values = [row.figure(shots, session, "harmonic") for session in places]
        offset = (number - (len(bars) - 1) / 2) * width
        lower.bar(
            [place + offset for place in places],
            [value.mean if value else 0 for value in values],
            width,
            color=looks[row.label]["color"],
            label=_short(row),
        )
    upper.set(ylabel="average accuracy (%)", xticks=range(last + 1), ylim=(0, None))
    lower.set(ylabel="harmonic accuracy (%)", xlabel="session", xticks=range(1, last + 1), ylim=(0, None))
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _curve(axes: "Axes", row: Row, sessions: Sequence[int], shots: int, look: dict[str, Any]) -> None:
    values = [row.figure(shots, session, "average") for session in sessions]
    means = [value.mean if value else np.nan for value in values]
    spread = [value.interval or 0.0 if value else 0.0 for value in values]
    look = look | {
        "linestyle": "-" if len(sessions) > 2 else ":",
        "linewidth": 2.5 if look["color"] == HIGHLIGHT else 1.2,
    }
    axes.errorbar(sessions, means, spread, label=_short(row), elinewidth=1, capsize=2, markersize=5, **look)


def base_against_novel(results: Results, shots: int) -> "Figure":
    """The last session: accuracy on base classes against novel ones, with lines of equal harmonic accuracy."""
    rows = results.with_shots(shots)
    looks = _looks(results.rows)
    figure, ((axes,),) = _subplots(1, 1, 6)
    right = top = 10.0
    for row in rows:
        last = row.sessions(shots)[-1]
        base, novel = row.figure(shots, last, "base"), row.figure(shots, last, "novel")
        if base and novel:
            look: dict[str, Any] = {
                "linestyle": "none",
                "capsize": 2,
                "elinewidth": 1,
                "markersize": 8,
                **looks[row.label],
            }
            axes.errorbar(base.mean, novel.mean, novel.interval, base.interval, label=_short(row), **look)
            right, top = max(right, base.mean), max(top, novel.mean + (novel.interval or 0))
    right, top = min(100.0, right * 1.1), min(100.0, top * 1.1)
    for harmonic in range(5, int(2 * right * top / (right + top)) + 1, 5):
        x = np.geomspace(harmonic * top / (2 * top - harmonic), right, 200)
        axes.plot(x, harmonic * x / (2 * x - harmonic), color="0.75", linewidth=0.8, zorder=0)
        at_its_end = (right, harmonic * right / (2 * right - harmonic))
        axes.annotate(f" {harmonic}", at_its_end, color="0.4", fontsize=9, va="center", annotation_clip=False)
    axes.set(xlabel="base accuracy (%)", ylabel="novel accuracy (%)", xlim=(-0.02 * right, right))
    axes.set(ylim=(-0.02 * top, top))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def confusions(results: Results, shots: int) -> "Figure | None":
    """The last session, one panel per row; the lines are the border between base and novel classes."""
    from matplotlib.colors import PowerNorm

    found = [(row, row.confusion(shots)) for row in results.with_shots(shots)]
    known = [(row, matrix) for row, matrix in found if matrix is not None]
    if not known:
        return None
    columns = 3
    lines = -(-len(known) // columns)
    figure, grid = _subplots(lines, columns, 3 * lines + 0.6)
    base = results.about["protocol"]["base_classes"]
    # Most shares are small: on a linear scale all of the matrix but its diagonal would look the same.
    norm = PowerNorm(0.4, 0, 1)
    for axes in grid.flat[len(known) :]:
        axes.axis("off")
    for axes, (row, matrix) in zip(grid.flat, known, strict=False):
        share = matrix / matrix.sum(1, keepdims=True).clip(1)
        picture = axes.imshow(share, cmap="Blues", norm=norm, interpolation="none")
        axes.axhline(base - 0.5, color=HIGHLIGHT, linewidth=1)
        axes.axvline(base - 0.5, color=HIGHLIGHT, linewidth=1)
        for (x, y), value in _block_shares(matrix, base).items():
            box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "0.6", "linewidth": 0.5}
            axes.text(x, y, f"{value:.0%}", ha="center", va="center", weight="bold", bbox=box)
        axes.set_title(_short(row), fontsize=10)
        axes.set(xticks=[], yticks=[], xlabel="predicted", ylabel="true")
        axes.grid(False)
    figure.colorbar(picture, ax=grid, location="bottom", shrink=0.5, aspect=40, label="share of the images of a class")
    return figure


def _block_shares(matrix: Any, base: int) -> dict[tuple[float, float], float]:
    """Where the middle of each block is, and the share of the images of its classes that is taken for its columns."""
    parts = {"base": slice(0, base), "novel": slice(base, len(matrix))}
    found = {}
    for true in parts.values():
        for predicted in parts.values():
            images, place = matrix[true].sum(), (predicted.start + predicted.stop - 1) / 2
            if images:
                found[place, (true.start + true.stop - 1) / 2] = matrix[true, predicted].sum() / images
    return found


def ablation(results: Results, shots: int) -> "Figure":
    """Average and harmonic accuracy of the last session, part after part."""
    rows = results.with_shots(shots)
    figure, ((axes,),) = _subplots(1, 1, 0.6 * len(rows) + 1.4)
    for offset, measure, colour in ((-0.2, "average", COLOURS[0]), (0.2, "harmonic", HIGHLIGHT)):
        values = [row.figure(shots, row.sessions(shots)[-1], measure) for row in rows]
        means = [value.mean if value else 0.0 for value in values]
        spread = [value.interval or 0.0 if value else 0.0 for value in values]
        bars = axes.barh([place + offset for place in range(len(rows))], means, 0.38, xerr=spread, color=colour)
        bars.set_label(f"{measure} accuracy")
        axes.bar_label(bars, [f"{mean:.1f}" for mean in means], padding=4, fontsize=9)
    axes.set(yticks=range(len(rows)), yticklabels=[row.title for row in rows], xlabel="last session (%)")
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def margin_and_scale(results: Results, shots: int) -> "Figure":
    """Average and harmonic accuracy per session, for each margin at scale 30 and each scale at margin 0.4."""
    import matplotlib

    figure, grid = _subplots(2, 2, 7)
    sweeps = {
        "margin": sorted((_setting(row)[0], row) for row in results.with_shots(shots) if _setting(row)[1] == 30),
        "scale": sorted((_setting(row)[1], row) for row in results.with_shots(shots) if _setting(row)[0] == 0.4),
    }
    for column, (name, sweep) in enumerate(sweeps.items()):
        shades = matplotlib.colormaps["plasma"](np.linspace(0, 0.75, max(1, len(sweep))))
        for line, measure in enumerate(("average", "harmonic")):
            axes = grid[line, column]
            for (value, row), shade in zip(sweep, shades, strict=True):
                sessions = [session for session in row.sessions(shots) if session or measure == "average"]
                figures = [row.figure(shots, session, measure) for session in sessions]
                means = [found.mean if found else np.nan for found in figures]
                axes.plot(sessions, means, color=shade, label=f"{value:g}", marker=MARKERS[line])
            axes.set(ylabel=f"{measure} accuracy (%)", xlabel="session", ylim=(0, None))
        above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.02), "ncols": 4}
        grid[0, column].legend(title=name, fontsize=9, handlelength=1.5, **above)
    return figure


def _setting(row: Row) -> tuple[float, float]:
    """Margin and scale from a label like "m=0.4 s=30"."""
    margin, scale = (float(part.partition("=")[2]) for part in row.label.split())
    return margin, scale


def features(points: Any, labels: Any) -> "Figure":
    """t-SNE of training features of the base classes: class numbers as marks, class means bold.

    points: (n, d) features; labels: (n,) class numbers.
    """
    import matplotlib
    from sklearn.manifold import TSNE

    figure, ((axes,),) = _subplots(1, 1, 6.4)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-12)
    classes = np.unique(labels)
    means = np.stack([unit[labels == label].mean(0) for label in classes])
    together = np.concatenate([unit, means])
    perplexity = min(30.0, (len(together) - 1) / 3)
    flat = TSNE(2, perplexity=perplexity, metric="cosine", init="random", random_state=0).fit_transform(together)
    colours = matplotlib.colormaps["plasma"](np.linspace(0, 0.6, len(classes)))
    marks: dict[str, Any] = {"ha": "center", "va": "center", "in_layout": False}  # thousands: not to be measured
    for place, label in enumerate(classes):
        for x, y in flat[: len(unit)][labels == label]:
            axes.text(x, y, str(label), color=colours[place], fontsize=6.5, **marks)
    for (x, y), label in zip(flat[len(unit) :], classes, strict=True):
        axes.text(x, y, str(label), color="black", fontsize=12, weight="bold", **marks)
    low, high = flat.min(0), flat.max(0)
    edge = 0.02 * (high - low)
    axes.set(xlim=(low[0] - edge[0], high[0] + edge[0]), ylim=(low[1] - edge[1], high[1] + edge[1]))
    axes.set(xticks=[], yticks=[])
    return figure
