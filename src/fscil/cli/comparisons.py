"""The commands that run many experiments: the comparison of methods and the paper's studies."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import (
    MAX_DRAWS,
    MAX_SEEDS,
    Data,
    Device,
    Plugins,
    Quiet,
    Recipe,
    SessionList,
    Settings,
    Shots,
    chosen_settings,
    numbers,
    say,
)
from fscil.errors import ConfigError, FscilError
from fscil.runtime.text import count, first_few

if TYPE_CHECKING:
    from fscil.config import Config
    from fscil.experiments.cells import Cell
    from fscil.protocol import Draw

commands = typer.Typer()

ENGINES = ("local", "ray")
READOUT_DRAWS = 10

Seeds = Annotated[
    int,
    typer.Option(
        min=1, max=MAX_SEEDS, help="Trainings of each network: the recipe's train.seed, and the ones after it."
    ),
]
Draws = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_DRAWS, help="Seeded draws of the few images, beside the recipe's own (the published one)."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the cells, the base networks they share and the time; run nothing.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="End when other processes work on all that is left, instead of waiting.")
]
Engine = Annotated[
    str,
    typer.Option(help="local: this process. ray: the Ray cluster there is, or one on this machine; extra ray."),
]


@commands.command()
def bench(
    recipe: Recipe,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas; default: all that are cheap to evaluate and have the word vectors they need."
        ),
    ] = None,
    data: Data = None,
    shots: Shots = None,
    seeds: Seeds = 1,
    draws: Draws = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write; default runs/bench-RECIPE.")] = None,
    word_vectors: Annotated[
        Path | None, typer.Option(help="Word vectors of the class names, for the methods that use them.")
    ] = None,
    set_: Settings = None,
    sessions: SessionList = None,
    plugin: Plugins = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    engine: Engine = "local",
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Compare methods under equal settings. Shared base networks are trained once; the same command again continues.

    Several processes or machines may run the same command on one folder (a SLURM array): each takes cells that no other
    works on. --engine ray spreads the cells over a Ray cluster. Folders of machines that share no file system are
    joined by fscil merge.

    Example: fscil bench glyphs --methods alice,cec,finetune --shots 5,1 --seeds 3 --out runs/compare
    """
    from fscil.config import load_recipe
    from fscil.experiments.studies import comparison, default_methods

    vectors = [f"data.word_vectors={word_vectors}"] if word_vectors else []
    config = load_recipe(recipe, [*chosen_settings(set_, sessions), *vectors])
    chosen = default_methods(config) if methods is None else [name.strip() for name in methods.split(",")]
    folder = out or Path("runs") / f"bench-{Path(recipe).stem}"
    cells = comparison(config, chosen, _seeds(config, seeds))
    execution = Execution(device, quiet, dry_run, not no_wait, engine, plugin or [])
    _conclude(folder, cells, _run("bench", config, cells, folder, data, shots, draws, execution), dry_run)


@commands.command()
def study(
    which: Annotated[str, typer.Argument(help="paper, ablation, margin-scale or readout.")],
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a TOML file; of readout: a run folder.")],
    data: Data = None,
    shots: Shots = None,
    seeds: Seeds = 1,
    draws: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_DRAWS,
            help="Seeded draws of the few images, beside the recipe's own (the published one); default 0, of readout "
            "10.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write; default runs/WHICH-RECIPE, of readout RUN/readout.")
    ] = None,
    set_: Settings = None,
    sessions: SessionList = None,
    plugin: Plugins = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    engine: Engine = "local",
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """The paper's studies: of its method's parts (ablation: 7 rows, 5 trainings), of margin and scale (12 trainings).

    paper is every table and figure of the paper: both studies and the comparison with the systems of its tables, each
    in a folder below --out, with its report.

    And readout, of a trained network: cosine to the means of all or of balanced images, TEEN, whitened cosine, LDA,
    FeCAM-like, RanPAC-like, PLDA, on the same features, 10 draws by default, into RUN/readout. Constants are chosen on
    base training images; gains over the balanced cosine are paired.

    Examples: fscil study ablation glyphs --shots 5 --out runs/ablation

    fscil study paper cifar100 --data datasets --out runs/paper

    fscil study readout runs/demo
    """
    if which == "readout":
        if set_ or sessions or dry_run or no_wait or seeds != 1 or engine != "local":
            raise ConfigError(
                "study readout takes a trained run as it is: no --set, --sessions, --seeds, --dry-run, --no-wait, "
                "--engine."
            )
        _readout(Path(recipe), data, shots, READOUT_DRAWS if draws is None else draws, out, device, quiet)
        return
    from fscil.config import load_recipe
    from fscil.experiments import studies

    makers = {"ablation": studies.ablation, "margin-scale": studies.margin_and_scale}
    if which not in (*makers, "paper"):
        raise ConfigError(f"study {which}: no such study. Known are paper, {', '.join(makers)}, readout.")
    config = load_recipe(recipe, chosen_settings(set_, sessions))
    folder = out or Path("runs") / f"{which}-{Path(recipe).stem}"
    execution = Execution(device, quiet, dry_run, not no_wait, engine, plugin or [])
    if which == "paper":
        _paper(config, _seeds(config, seeds), folder, data, shots, draws or 0, execution)
        return
    cells = makers[which](config, _seeds(config, seeds))
    _conclude(folder, cells, _run(which, config, cells, folder, data, shots, draws or 0, execution), dry_run)


def _paper(
    config: "Config", seeds: range, folder: Path, data: Path | None, shots: str | None, draws: int, how: "Execution"
) -> None:
    """The three grids of the paper and their reports. Networks that grids share are trained once.

    What fails in one does not stop the others.
    """
    from fscil.experiments.studies import paper
    from fscil.report import write_report

    failed = 0
    earlier: list[Path] = []
    for name, (kind, cells) in paper(config, seeds).items():
        failed += len(_run(kind, config, cells, folder / name, data, shots, draws, how, earlier))
        earlier.append(folder / name)
        if any((folder / name).glob("cells/*/results.json")):
            summary, written = write_report(folder / name, latex=True, csv=True)
            say(f"\n{summary}\n\nWritten: {', '.join(map(str, written))}\n")
    if failed:
        raise FscilError(f"{count(failed, 'cell')} failed. The reasons are above; the same command continues.")


def _readout(
    folder: Path, data: Path | None, shots: str | None, draws: int, out: Path | None, device: str, quiet: bool
) -> None:
    from fscil.experiments.feature_files import features_of
    from fscil.experiments.provenance import PROVENANCE
    from fscil.experiments.readout import SHOTS, compare
    from fscil.report.readout_table import readout_table
    from fscil.runtime.files import read_json, write_text
    from fscil.training.context import Context
    from fscil.training.run_folder import Run

    run, target = Run.open(folder), out or folder / "readout"
    stored = run.about().get("data")
    tensors, about = features_of(run, data or (Path(stored) if stored else None), Context.on(device, quiet))
    results = compare(tensors, about, target, say, draws, numbers(shots) if shots else SHOTS)
    table = readout_table(results, read_json(target / PROVENANCE))
    write_text(target / "table.md", table)
    say(f"\n{table}\nWritten: {target}/results.json, provenance.json, trials.jsonl, table.md")


@dataclass(frozen=True)
class Execution:
    """How a grid is run."""

    device: str
    quiet: bool
    dry_run: bool
    wait: bool
    engine: str
    plugins: Sequence[Path]


def _seeds(config: "Config", count: int) -> range:
    return range(config.train.seed, config.train.seed + count)


def _run(
    kind: str,
    config: "Config",
    cells: "Sequence[Cell]",
    folder: Path,
    data: Path | None,
    shots: str | None,
    draws: int,
    how: Execution,
    earlier: Sequence[Path] = (),
) -> dict[str, str]:
    """Run a grid, or say what it would do; returns why cells failed. earlier: grids that may have its networks."""
    from fscil.experiments.grid import Grid
    from fscil.training.context import Context

    counts = numbers(shots) if shots else config.protocol.shots
    chosen: list[Draw] = list(dict.fromkeys([config.protocol.draw, *range(draws)]))
    drawn = f"shots {', '.join(map(str, counts))}, {count(len(chosen), 'draw')}"
    say(f"{kind}: {count(len(cells), 'cell')}, {drawn}, into {folder}")
    if how.engine not in ENGINES:
        raise ConfigError(f"--engine {how.engine}: expected {' or '.join(ENGINES)}.")
    context = Context.on(how.device, how.quiet)
    grid = Grid(folder, cells, data, context, say)
    grid.require_images(counts, chosen)
    if how.dry_run:
        from fscil.experiments.plan import describe_plan

        grid.read(kind)
        say(describe_plan(grid.runner, cells, counts, chosen, context))
        return {}
    for other in earlier:
        grid.take_networks(other)
    try:
        if how.engine == "ray":
            from fscil.experiments.ray_engine import run_on_ray

            return run_on_ray(grid, kind, counts, chosen, data, how.device, how.plugins, say)
        return grid.run(kind, counts, chosen, how.wait)
    except KeyboardInterrupt:
        say("\nStopped; finished parts are kept. Run the same command to continue.")
        raise


def _conclude(folder: Path, cells: "Sequence[Cell]", failed: dict[str, str], dry_run: bool) -> None:
    """Say what comes next after a grid has run, and raise where cells have failed."""
    if len(failed) < len(cells) and not dry_run:
        say(f"Next: {shlex.join(['fscil', 'report', str(folder)])}")
    if failed:
        raise FscilError(
            f"{len(failed)} of {count(len(cells), 'cell')} failed: {first_few([*failed])}. The reasons are above; once "
            f"they are removed, the same command continues."
        )


@commands.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders made by fscil bench or fscil study.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder.")],
) -> None:
    """Join the folders of one comparison or study, as machines without a shared file system made them.

    Other settings, images or figures for the same cell are refused, and nothing is written then.

    Example: fscil merge runs/node1 runs/node2 --out runs/compare
    """
    from fscil.experiments.merge import merge_grids

    merge_grids(folders, out, say)
    say(f"Next: {shlex.join(['fscil', 'report', str(out)])}")


@commands.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder made by fscil bench or fscil study.")],
    latex: Annotated[bool, typer.Option("--latex", help="Also every table as LaTeX (booktabs), in tables/.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also every table as CSV, in tables/; notes.txt there.")] = False,
    plugin: Plugins = None,
) -> None:
    """Summarise results on the terminal, in report.md with its figures, and in one self-contained page, report.html.

    The paper's numbers are below ours, with the difference, wherever it has some. Unfinished grids are fine.

    Example: fscil report runs/compare --latex --csv
    """
    from fscil.report import write_report

    summary, written = write_report(folder, latex, csv)
    say(summary)
    say(f"\nWritten: {', '.join(map(str, written))}")
