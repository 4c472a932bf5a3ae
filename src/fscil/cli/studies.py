"""The command of the paper's studies, of all of the paper at once, and of the readouts of a trained network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.grids import DryRun, Engine, Execution, NoWait, Seeds, conclude, run_grid, seeds_of
from fscil.cli.options import (
    MAX_DRAWS,
    Data,
    Device,
    Plugins,
    Quiet,
    SessionList,
    Settings,
    Shots,
    chosen_settings,
    numbers,
    say,
)
from fscil.errors import ConfigError, FscilError
from fscil.runtime.text import count

if TYPE_CHECKING:
    from fscil.config import Config

commands = typer.Typer()

READOUT_DRAWS = 10


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
        _paper(config, seeds_of(config, seeds), folder, data, shots, draws or 0, execution)
        return
    cells = makers[which](config, seeds_of(config, seeds))
    conclude(folder, cells, run_grid(which, config, cells, folder, data, shots, draws or 0, execution), dry_run)


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
        failed += len(run_grid(kind, config, cells, folder / name, data, shots, draws, how, earlier))
        earlier.append(folder / name)
        if not how.dry_run and any((folder / name).glob("cells/*/results.json")):
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
