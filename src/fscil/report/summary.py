"""The summary of a grid: the last session of every row, and where a row is better or worse than the reference."""

from collections.abc import Sequence

from fscil.report.blocks import RowKind, Table
from fscil.report.collect import Results, Row, never_trained
from fscil.report.numbers import MeanWithInterval, cell


def summary_table(results: Results) -> Table:
    """Of how many trainings and draws a row is, session 0, then per number of shots the last session; the best mean of
    each column is bold.
    """
    counts, reference = results.shots(), results.reference
    header = ["", "seeds x draws", "session 0"]
    for shots in counts:
        header += [f"{shots}-shot average", f"{shots}-shot harmonic"]
    columns: list[list[MeanWithInterval | None]] = [_first(results.rows)]
    for shots in counts:
        columns += [_last(results.rows, shots, measure) for measure in ("average", "harmonic")]
    texts = [[extent(row) for row in results.rows], *([cell(value) for value in column] for column in columns)]
    if len(results.rows) > 1:
        for shots in counts:
            found = [None if row is reference else row.difference(reference, shots, "harmonic") for row in results.rows]
            seeds = [row.common_seeds(reference, shots, "harmonic") for row in results.rows]
            header += [f"{shots}-shot harmonic less {reference.title}", f"{shots}-shot better or worse"]
            texts += [list(map(signed, found)), list(map(verdict, found, seeds))]
    rows: list[tuple[RowKind, Sequence[str]]] = [
        ("ours", [row.title, *(column[number] for column in texts)]) for number, row in enumerate(results.rows)
    ]
    return Table("Summary", header, rows, _notes(results), best=best_cells(columns, 2))


def extent(row: Row) -> str:
    """Training seeds that a row is of, and draws of each: "3 x 11". Per number of shots where these differ."""
    texts = {}
    for shots in row.shots():
        draws = sorted({len(walks) for walks in row.walks(shots)})
        texts[shots] = f"{len(row.walks(shots))} x {'-'.join(map(str, draws[:: max(1, len(draws) - 1)]))}"
    if len({*texts.values()}) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{shots}-shot {text}" for shots, text in texts.items())


def signed(found: MeanWithInterval | None) -> str:
    """A difference, with its interval."""
    if found is None:
        return "-"
    return f"{found.mean:+.1f}" + ("" if found.interval is None else f" ±{found.interval:.1f}")


def verdict(found: MeanWithInterval | None, seeds: int) -> str:
    """What a difference over this many training seeds shows. One shows nothing: another training might differ."""
    if found is None or found.interval is None or seeds < 2:
        return "-"
    return "undecided" if abs(found.mean) <= found.interval else "better" if found.mean > 0 else "worse"


def best_cells(columns: Sequence[Sequence[MeanWithInterval | None]], first: int = 1) -> frozenset[tuple[int, int]]:
    """Row and column of the largest mean of each column. first: the place of the first of them in the table.

    Values that are printed alike are best together; a single row is not best of anything.
    """
    found = set()
    for place, column in enumerate(columns, first):
        means = {row: round(value.mean, 1) for row, value in enumerate(column) if value}
        if len(means) > 1:
            found |= {(row, place) for row, mean in means.items() if mean == max(means.values())}
    return frozenset(found)


def problems(results: Results) -> list[str]:
    """Rows whose base training did not do what training is for."""
    random = [f'"{row.title}"' for row in results.rows if never_trained(row.results[0])]
    lost = [f'"{row.title}"' for row in results.rows if row.at_chance and not never_trained(row.results[0])]
    found = []
    if random:
        found.append(f"{', '.join(random)}: no base training, since train.epochs is 0; the weights were random.")
    if lost:
        found.append(
            f"{', '.join(lost)} did not learn: session 0 is at chance. Look at the training loss; a smaller train.lr "
            "or a longer training may help."
        )
    for row in results.rows:
        if (points := row.below_pretrained) is not None:
            found.append(
                f'"{row.title}": training made session 0 worse by {points:.1f} points than the pretrained network is '
                "without it (nearest class mean)."
            )
    return found


def _first(rows: Sequence[Row]) -> list[MeanWithInterval | None]:
    return [row.accuracy(row.shots()[0], 0, "average") for row in rows]


def _last(rows: Sequence[Row], shots: int, measure: str) -> list[MeanWithInterval | None]:
    return [row.accuracy(shots, row.sessions(shots)[-1], measure) if row.sessions(shots) else None for row in rows]


def _notes(results: Results) -> list[str]:
    notes = []
    if len(results.rows) > 1:
        seeds = max(len(row.results) for row in results.rows)
        if seeds > 1:
            text = (
                "their intervals are over training seeds. A row is called better or worse only where the 95% interval "
                "of its difference excludes zero, and never by one seed."
            )
        else:
            text = (
                "their intervals are over draws of the few images of one training seed, not over seeds. How much "
                "another training would differ is not known, so that no row is called better or worse; --seeds 3 "
                "would tell."
            )
        notes.append(f"Differences are paired by seed and draw; {text}")
    return [*notes, *problems(results)]
