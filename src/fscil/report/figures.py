"""The figures of a report, drawn by matplotlib as SVG, in Okabe and Ito's colours for the colour-blind.

All are about WIDTH wide, so that their text has the same size, which can be read on a phone too.
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

# Instead of their yellow and black, invisible on white or like text: wine, olive and indigo (Tol's), and a grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#882255", "#555555", "#999933", "#332288")
MARKERS = "os^Dv*XP<>"
HIGHLIGHT = "#D55E00"
ERROR_BARS: dict[str, Any] = {"elinewidth": 0.8, "capsize": 1.5, "ecolor": "#333333"}
WIDTH = 4.8  # inches
BAR, LEGEND_LINE = 0.32, 0.2  # inches: the height of a horizontal bar with its name, and of a line of the legend
MANY = 6  # rows: with more, bars of every session would be too thin to be read
GOLDEN = 0.61803398875  # hues that differ by it are far apart, however many there are


def _svg(figure: "Figure") -> str:
    """Without the XML header and the date, so that the same figure gives the same text."""
    import matplotlib.pyplot as plt

    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def draw(name: str, make: Callable[..., Any], *arguments: Any) -> str:
    """SVG of the figure that `make(…)` returns. The name makes its inner ids unique in a page."""
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


def _subplots(rows: int, columns: int, height: float, ratios: Sequence[float] | None = None) -> tuple["Figure", Any]:
    """ratios: of the heights of the rows; equal without."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (WIDTH, height)
    return plt.subplots(rows, columns, figsize=size, height_ratios=ratios, squeeze=False, layout="constrained")


def _styles(results: Results) -> dict[str, dict[str, Any]]:
    """Colour, marker and line width by label, the same in every figure; highlighted rows have a bold line."""
    found = {}
    highlighted = results.highlighted()
    others = [colour for colour in COLOURS if colour != HIGHLIGHT]
    for number, row in enumerate(results.rows):
        colour = HIGHLIGHT if highlighted and row is highlighted[0] else others[number % len(others)]
        width = 2.5 if row in highlighted else 1.2
        found[row.label] = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "linewidth": width}
    return found


def _short(row: Row) -> str:
    """Its title, in several lines where it is long."""
    return textwrap.fill(row.title, 28)


def session_curves(results: Results, shots: int) -> "Figure":
    """Average accuracy as curves over the sessions, harmonic accuracy as bars, like the paper's figure.

    Of many rows the bars show the last session alone.
    """
    rows, styles = results.with_shots(shots), _styles(results)
    every = [row for row in rows if len(row.sessions(shots)) > 2]
    panels = (3.2, 2.2 if len(every) <= MANY else BAR * len(rows) + 0.6)
    figure, ((upper,), (lower,)) = _subplots(2, 1, sum(panels) + _legend_height(rows), panels)
    for row in rows:
        _curve(upper, row, shots, styles[row.label])
    chance = results.chance(shots)
    upper.plot(list(chance), list(chance.values()), color="0.5", linestyle="--", linewidth=1, label="chance")
    last = max(row.sessions(shots)[-1] for row in rows)
    upper.set(ylabel="average accuracy (%)", xlabel="session", xticks=range(last + 1), ylim=(0, None))
    if len(every) <= MANY:
        _harmonic_bars(lower, every, shots, styles)
        lower.set(ylabel="harmonic accuracy (%)", xlabel="session", xticks=range(1, last + 1), ylim=(0, None))
    else:
        _last_harmonic_bars(lower, rows, shots, styles)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9.2)
    return figure


def _legend_height(rows: Sequence[Row]) -> float:
    """Inches that the names of the rows and of chance take below a figure, in two columns."""
    lines = sum(_short(row).count("\n") + 1 for row in rows) + 1
    return LEGEND_LINE * (lines / 2 + 1)


def _curve(axes: "Axes", row: Row, shots: int, style: dict[str, Any]) -> None:
    sessions = row.sessions(shots)
    means, intervals = _means(row, shots, sessions, "average", np.nan)
    line = style | {"linestyle": "-" if len(sessions) > 2 else ":"}
    axes.errorbar(sessions, means, intervals, label=_short(row), elinewidth=1, capsize=2, markersize=5, **line)


def _harmonic_bars(axes: "Axes", rows: Sequence[Row], shots: int, styles: dict[str, dict[str, Any]]) -> None:
    width = 0.8 / max(1, len(rows))
    for number, row in enumerate(rows):
        sessions = [session for session in row.sessions(shots) if session]
        means, intervals = _means(row, shots, sessions, "harmonic", 0.0)
        offset = (number - (len(rows) - 1) / 2) * width
        places = [session + offset for session in sessions]
        axes.bar(places, means, width, yerr=intervals, color=styles[row.label]["color"], error_kw=ERROR_BARS)


def _last_harmonic_bars(axes: "Axes", rows: Sequence[Row], shots: int, styles: dict[str, dict[str, Any]]) -> None:
    found = [row.accuracy(shots, row.sessions(shots)[-1], "harmonic") for row in rows]
    means = [one.mean if one else 0.0 for one in found]
    intervals = [one.interval or 0.0 if one else 0.0 for one in found]
    colours = [styles[row.label]["color"] for row in rows]
    bars = axes.barh(range(len(rows)), means, 0.7, xerr=intervals, color=colours, error_kw=ERROR_BARS)
    axes.bar_label(bars, [f"{mean:.1f}" for mean in means], padding=3, fontsize=9.2)
    axes.set_yticks(range(len(rows)), [_short(row) for row in rows], fontsize=9.2, linespacing=0.9)
    axes.set(xlabel="harmonic accuracy, last session (%)", ylim=(-0.6, len(rows) - 0.4))
    axes.invert_yaxis()


def _means(
    row: Row, shots: int, sessions: Sequence[int], measure: str, missing: float
) -> tuple[list[float], list[float]]:
    """Means and half widths of intervals, one per session."""
    found = [row.accuracy(shots, session, measure) for session in sessions]
    return [one.mean if one else missing for one in found], [one.interval or 0.0 if one else 0.0 for one in found]


def base_against_novel(results: Results, shots: int) -> "Figure":
    """The last session: accuracy on base classes against novel ones, with lines of equal harmonic accuracy."""
    rows, styles = results.with_shots(shots), _styles(results)
    figure, ((axes,),) = _subplots(1, 1, 3.8 + _legend_height(rows))
    right = top = 10.0
    for row in rows:
        last = row.sessions(shots)[-1]
        base, novel = row.accuracy(shots, last, "base"), row.accuracy(shots, last, "novel")
        if base and novel:
            marks: dict[str, Any] = {"linestyle": "none", "capsize": 2, "elinewidth": 1, "markersize": 8}
            marks |= {key: styles[row.label][key] for key in ("color", "marker")}
            axes.errorbar(base.mean, novel.mean, novel.interval, base.interval, label=_short(row), **marks)
            right, top = max(right, base.mean), max(top, novel.mean + (novel.interval or 0))
    right, top = min(100.0, right * 1.1), min(100.0, top * 1.1)
    _lines_of_equal_harmonic_accuracy(axes, right, top)
    axes.set(xlabel="base accuracy (%)", ylabel="novel accuracy (%)", xlim=(-0.02 * right, right))
    axes.set(ylim=(-0.02 * top, top))
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.2)
    return figure


def _lines_of_equal_harmonic_accuracy(axes: "Axes", right: float, top: float) -> None:
    for harmonic in range(5, int(2 * right * top / (right + top)) + 1, 5):
        x = np.geomspace(harmonic * top / (2 * top - harmonic), right, 200)
        axes.plot(x, harmonic * x / (2 * x - harmonic), color="0.75", linewidth=0.8, zorder=0)
        end = (right, harmonic * right / (2 * right - harmonic))
        axes.annotate(f" {harmonic}", end, color="0.4", fontsize=9.2, va="center", annotation_clip=False)


def confusions(results: Results, shots: int) -> "Figure | None":
    """The last session, one panel per row; lines separate base and novel classes."""
    from matplotlib.colors import PowerNorm

    found = [(row, row.confusion(shots)) for row in results.with_shots(shots)]
    known = [(row, matrix) for row, matrix in found if matrix is not None]
    if not known:
        return None
    columns = min(2, len(known))
    lines = -(-len(known) // columns)
    figure, grid = _subplots(lines, columns, 2.6 * lines + 0.8)
    # Most shares are small: on a linear scale all of the matrix but its diagonal would look the same.
    norm = PowerNorm(0.4, 0, 1)
    for axes in grid.flat[len(known) :]:
        axes.axis("off")
    for axes, (row, matrix) in zip(grid.flat, known, strict=False):
        picture = _confusion(axes, matrix, results.about["protocol"]["base_classes"], norm)
        axes.set_title(_short(row), fontsize=10)
    figure.colorbar(picture, ax=grid, location="bottom", shrink=0.8, aspect=40, label="share of the images of a class")
    return figure


def _confusion(axes: "Axes", matrix: Any, base: int, norm: Any) -> Any:
    """matrix: (classes, classes) counts. Returns what the colour bar explains."""
    share = matrix / matrix.sum(1, keepdims=True).clip(1)
    picture = axes.imshow(share, cmap="Blues", norm=norm, interpolation="none")
    axes.axhline(base - 0.5, color=HIGHLIGHT, linewidth=1)
    axes.axvline(base - 0.5, color=HIGHLIGHT, linewidth=1)
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "0.6", "linewidth": 0.5}
    for (x, y), value in _block_shares(matrix, base).items():
        axes.text(x, y, f"{value:.0%}", ha="center", va="center", weight="bold", bbox=box)
    axes.set(xticks=[], yticks=[], xlabel="predicted", ylabel="true")
    axes.grid(False)
    return picture


def _block_shares(matrix: Any, base: int) -> dict[tuple[float, float], float]:
    """By the centre of a block: the share of the images of its rows that is predicted as one of its columns."""
    parts = {"base": slice(0, base), "novel": slice(base, len(matrix))}
    found = {}
    for true in parts.values():
        for predicted in parts.values():
            images, place = matrix[true].sum(), (predicted.start + predicted.stop - 1) / 2
            if images:
                found[place, (true.start + true.stop - 1) / 2] = matrix[true, predicted].sum() / images
    return found


def ablation(results: Results, shots: int) -> "Figure":
    """Average and harmonic accuracy of the last session as bars, one pair per row."""
    rows = results.with_shots(shots)
    figure, ((axes,),) = _subplots(1, 1, 0.6 * len(rows) + 1.4)
    for offset, measure, colour in ((-0.2, "average", COLOURS[0]), (0.2, "harmonic", HIGHLIGHT)):
        values = [row.accuracy(shots, row.sessions(shots)[-1], measure) for row in rows]
        means = [value.mean if value else 0.0 for value in values]
        intervals = [value.interval or 0.0 if value else 0.0 for value in values]
        bars = axes.barh([place + offset for place in range(len(rows))], means, 0.38, xerr=intervals, color=colour)
        bars.set_label(f"{measure} accuracy")
        axes.bar_label(bars, [f"{mean:.1f}" for mean in means], padding=4, fontsize=9.2)
    axes.set(yticks=range(len(rows)), yticklabels=[row.title for row in rows], xlabel="last session (%)")
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def margin_and_scale(results: Results, shots: int) -> "Figure":
    """Average and harmonic accuracy per session, for each margin at scale 30 and each scale at margin 0.4."""
    import matplotlib

    figure, grid = _subplots(4, 1, 11)
    sweeps = {
        "margin": sorted((_setting(row)[0], row) for row in results.with_shots(shots) if _setting(row)[1] == 30),
        "scale": sorted((_setting(row)[1], row) for row in results.with_shots(shots) if _setting(row)[0] == 0.4),
    }
    for column, (name, sweep) in enumerate(sweeps.items()):
        shades = matplotlib.colormaps["plasma"](np.linspace(0, 0.75, max(1, len(sweep))))
        for line, measure in enumerate(("average", "harmonic")):
            axes = grid[2 * column + line, 0]
            for (value, row), shade in zip(sweep, shades, strict=True):
                sessions = [session for session in row.sessions(shots) if session or measure == "average"]
                means, _ = _means(row, shots, sessions, measure, np.nan)
                axes.plot(sessions, means, color=shade, label=f"{value:g}", marker=MARKERS[line])
            axes.set(ylabel=f"{measure} accuracy (%)", xlabel="session", ylim=(0, None))
        above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.02), "ncols": 4}
        grid[2 * column, 0].legend(title=name, fontsize=9.2, handlelength=1.5, **above)
    return figure


def _setting(row: Row) -> tuple[float, float]:
    """Margin and scale from a label like "m=0.4 s=30"."""
    margin, scale = (float(part.partition("=")[2]) for part in row.label.split())
    return margin, scale


def features(points: Any, labels: Any, names: Sequence[str]) -> "Figure":
    """t-SNE of training features of the base classes: each image a point, the name of a class at its images' mean.

    points: (n, d) features; labels: (n,) class numbers; names: of the classes, by number.
    """
    from sklearn.manifold import TSNE

    figure, ((axes,),) = _subplots(1, 1, 4.8)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-12)
    perplexity = min(30.0, (len(unit) - 1) / 3)
    flat = TSNE(2, perplexity=perplexity, metric="cosine", init="random", random_state=0).fit_transform(unit)
    colours = class_colours(len(names))
    axes.scatter(*flat.T, s=5, color=[colours[label] for label in labels], linewidths=0, alpha=0.8)
    marks: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold", "fontsize": 9.2, "in_layout": False}
    marks["bbox"] = {"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 0.3}  # read above the points
    for label in np.unique(labels):
        x, y = flat[labels == label].mean(0)
        axes.text(x, y, textwrap.shorten(names[label], 18, placeholder="…"), color=colours[label], **marks)
    axes.set(xticks=[], yticks=[])
    return figure


def class_colours(count: int) -> list[Any]:
    """As many colours as there are classes, neighbours far apart in hue and brightness, all dark enough for white."""
    from matplotlib.colors import hsv_to_rgb, to_hex

    tones = ((0.95, 0.75), (0.75, 0.5), (0.9, 0.35))  # saturation and value
    return [
        to_hex(_darkened(hsv_to_rgb((number * GOLDEN % 1, *tones[number % len(tones)])))) for number in range(count)
    ]


def _darkened(colour: Any) -> Any:
    """(3,) red, green, blue in 0..1, at a brightness that is seen on white."""
    brightness = float(np.dot([0.2126, 0.7152, 0.0722], np.asarray(colour) ** 2.2))
    return np.asarray(colour) * min(1.0, (0.25 / max(brightness, 1e-9)) ** (1 / 2.2))
