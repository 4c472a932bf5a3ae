"""Which figures a report shows, with their titles and captions."""

from collections.abc import Callable, Sequence
from typing import Any

from fscil.report import figures
from fscil.report.blocks import SvgFigure
from fscil.report.collect import Results, Row
from fscil.runtime.files import load_tensors

STUDY_FEATURES = {  # the base networks of the paper's t-SNE, by the first row that starts from each
    "cross-entropy": "cross-entropy",
    "cross-entropy, balanced": "cross-entropy",
    "angular penalty": "angular penalty",
    "angular penalty, balanced": "angular penalty",
    "+ class augmentation": "the whole method",
}


def overview_figures(results: Results, shots: int) -> list[SvgFigure]:
    """Those before the tables: every session, and the parts of an ablation."""
    if results.kind == "margin-scale":
        caption = "Above: margin m at scale 30; below: scale s at margin 0.4. Two views, no class augmentation."
        return [_figure("margin-scale", "Margin and scale", caption, figures.margin_and_scale, results, shots)]
    caption = "Curves: average accuracy, and that of guessing. Bars: harmonic accuracy, with 95% intervals."
    found = [_figure("sessions", "Session by session", caption, figures.session_curves, results, shots)]
    if results.kind == "ablation":
        caption = f"The last session. Each row adds one part of {results.rows[0].shown['title']}."
        found.append(_figure("ablation", "Part after part", caption, figures.ablation, results, shots))
    return found


def last_session_figures(results: Results, shots: int) -> list[SvgFigure]:
    """Those after the tables."""
    found = []
    if results.kind == "bench":
        title = "Base against novel classes"
        caption = "The last session; each grey line joins points of equal harmonic accuracy, written at its end."
        found.append(_figure("base-novel", title, caption, figures.base_against_novel, results, shots))
    if results.kind != "margin-scale" and any(row.confusion(shots) is not None for row in results.with_shots(shots)):
        caption = (
            "The last session: a line per true class, a column per predicted one; lines separate base from novel "
            "classes. Numbers: the share of the test images of base (above) or novel classes (below) that is predicted "
            "as base (left) or novel (right)."
        )
        found.append(_figure("confusion", "Confusion matrices", caption, figures.confusions, results, shots))
    return found


def _figure(
    name: str, title: str, caption: str, make: Callable[[Results, int], Any], results: Results, shots: int
) -> SvgFigure:
    svg = figures.draw(f"{name}-{shots}", make, results, shots)
    return SvgFigure(f"{name}-{shots}", f"{title}, {shots}-shot", caption, svg)


def feature_figures(results: Results) -> list[SvgFigure]:
    """t-SNE of the base networks: of an ablation those that the paper shows, of a comparison each one."""
    found: list[SvgFigure] = []
    for network, rows in results.networks().items():
        title = _network_title(results, network, rows) if results.kind == "bench" else STUDY_FEATURES.get(rows[0].label)
        path = results.folder / "base" / network / "sample.safetensors"
        if title and path.exists():
            tensors, about = load_tensors(path)
            name, labels = f"features-{len(found) + 1}", tensors["labels"].numpy()
            names = about.get("classes") or [
                str(label) for label in range(int(labels.max()) + 1)
            ]  # of earlier versions
            svg = figures.draw(name, figures.features, tensors["features"].numpy(), labels, names)
            caption = (
                "t-SNE of training images, coloured by class; the name of a class stands at the mean of its points."
            )
            found.append(SvgFigure(name, f"Features of the base classes: {title}", caption, svg))
    return found


def _network_title(results: Results, network: str, rows: Sequence[Row]) -> str:
    """A base network by the methods that start from it."""
    others = [row for row in results.rows if row not in rows]
    names = ", ".join(row.title.partition(" (")[0] for row in rows)
    if others and others == results.highlighted():
        names = f"all but {', '.join(row.title for row in others)}"
    return f"cross-entropy ({names})" if results.by_cross_entropy(network) else names
