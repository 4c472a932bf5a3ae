"""ALICE against plain cross-entropy on the embedded data set: at equal epochs and at equal time, three seeds.

The baseline is row 2 of the paper's ablation: cross-entropy, one view, no projection, no class augmentation, balanced
prototypes. ALICE has the settings of the glyphs recipe in earlier versions, with class augmentation off; with it on, it
is a row of its own, at equal time. Writes results/glyphs-comparison.json, its table and its figure; finished trainings
are not repeated.

    python benchmarks/compare_glyphs.py
"""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from fscil.config import load_recipe
from fscil.experiments.run import evaluate, train
from fscil.metrics import failed_trainings, mean_and_interval
from fscil.runtime.allocator import tune_allocator
from fscil.runtime.files import replacing, write_json, write_text
from fscil.training.context import Context
from fscil.training.run_folder import Run, machine

SEEDS = (0, 1, 2)
DRAWS = 10
SHOTS = (5, 1)
BASE_CLASSES = 60
EARLIER = ["views.count=2", "views.jitter=0.8", "views.grayscale=0.2", "model.backbone=resnet18"]
EARLIER += ["train.epochs=8", "train.batch=64", "train.lr=0.1"]  # what the recipe had when results/ was measured
PLAIN = ["loss.kind=softmax", "views.count=1", "model.projection=0", "mixing.repeats=0"]
MIXED = ["mixing.repeats=1", "mixing.start=0.6"]  # earlier or more of it learns too little in the time
ROWS = (
    "ALICE",
    "ALICE with class augmentation, equal time",
    "cross-entropy, equal epochs",
    "cross-entropy, equal time",
)
COLOURS = ("#0072b2", "#56b4e9", "#999999", "#d55e00")  # Okabe and Ito's, for the colour-blind
RUNS, RESULTS = Path("runs/glyphs-comparison"), Path("results")


def measure(name: str, settings: list[str]) -> dict[str, Any]:
    """Percentages per session of one training, mean over the draws; base training time in seconds."""
    config, folder = load_recipe("glyphs", [*EARLIER, *settings]), RUNS / name
    run = Run.open(folder) if (folder / "run.json").exists() else Run.create(folder, config, {"data": None})
    if not run.finished:
        train(run.config(), run, None, Context.on("auto"), print)
    results = evaluate(run, None, Context.on("auto", quiet=True), SHOTS, DRAWS)
    figures: dict[str, Any] = {key: results["training"][key] for key in ("seconds", "epochs", "seed")}
    for shots in SHOTS:
        walks = [walk["sessions"] for walk in results["walks"] if walk["shots"] == shots]
        for measured in ("average", "harmonic", "base", "novel"):
            first = 0 if measured in ("average", "base") else 1
            values = [[100 * session[measured] for session in walk[first:]] for walk in walks]
            figures[f"{shots}-shot {measured}"] = np.mean(values, axis=0).round(2).tolist()
    return figures


def table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Last session, mean and 95% interval over the seeds that trained."""
    columns = [f"{shots}-shot {measured}" for shots in SHOTS for measured in ("average", "harmonic")]
    lines = [
        f"| | epochs | seconds | session 0 | {' | '.join(columns)} |",
        f"|---|{'---:|' * (3 + len(columns))}",
    ]
    for name, runs in rows.items():
        failed = failed_trainings([run["5-shot average"][0] / 100 for run in runs], BASE_CLASSES)
        if any(failed):
            name = f"{name} ({sum(failed)} of {len(runs)} seeds did not train: mean of the others)"
            runs = [run for run, untrained in zip(runs, failed, strict=True) if not untrained]
        epochs = " / ".join(str(count) for count in dict.fromkeys(run["epochs"] for run in runs))
        seconds = f"{np.mean([run['seconds'] for run in runs]):.0f}"
        values = [
            [run["5-shot average"][0] for run in runs],
            *([run[column][-1] for run in runs] for column in columns),
        ]
        cells = [f"{mean:.1f} ±{width:.1f}" for mean, width in map(mean_and_interval, values)]
        lines.append(f"| {name} | {epochs} | {seconds} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figure(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Lines: average accuracy; bars: harmonic accuracy; as in the paper's figure."""
    plot, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for axis, shots in zip(axes, SHOTS, strict=True):
        for place, ((name, runs), colour) in enumerate(zip(rows.items(), COLOURS, strict=True)):
            average = np.mean([run[f"{shots}-shot average"] for run in runs], axis=0)
            harmonic = np.mean([run[f"{shots}-shot harmonic"] for run in runs], axis=0)
            axis.bar(np.arange(1, len(harmonic) + 1) + 0.2 * (place - 1.5), harmonic, 0.18, color=colour, alpha=0.45)
            axis.plot(average, color=colour, marker="o", markersize=4, label=name)
        axis.set(title=f"glyphs, 8-step 5-way {shots}-shot", xlabel="session", xticks=range(len(average)))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy in %\nlines: average, bars: harmonic")
    plot.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    plt.rcParams["svg.hashsalt"] = "fscil"
    with replacing(RESULTS / "glyphs-sessions.svg") as file:
        plot.savefig(file, format="svg", metadata={"Date": None})


def main() -> None:
    tune_allocator()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ROWS}
    for seed in SEEDS:
        full = measure(f"full-{seed}", [f"train.seed={seed}"])
        plain = measure(f"plain-epochs-{seed}", [f"train.seed={seed}", *PLAIN])
        mixed = measure(f"mixed-{seed}", [f"train.seed={seed}", *MIXED, f"train.epochs={round(full['epochs'] / 1.4)}"])
        epochs = max(1, round(plain["epochs"] * full["seconds"] / plain["seconds"]))
        longer = measure(f"plain-time-{seed}", [f"train.seed={seed}", *PLAIN, f"train.epochs={epochs}"])
        for name, figures in zip(ROWS, (full, mixed, plain, longer), strict=True):
            rows[name].append(figures)
    about = {"machine": machine(), "draws": DRAWS, "cross-entropy": PLAIN, "recipe": "glyphs", "set": EARLIER}
    about |= {"rows": rows}
    write_json(RESULTS / "glyphs-comparison.json", about)
    write_text(RESULTS / "glyphs-comparison.md", table(rows))
    figure(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
