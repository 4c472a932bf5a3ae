"""ALICE against plain cross-entropy on the embedded data set: at equal epochs and at equal time, three seeds.

The rival is row 2 of the paper's ablation: cross-entropy, one view, no projection, no class augmentation, balanced
prototypes. Writes results/glyphs-comparison.json; what is there already is not run again.

    python benchmarks/compare_glyphs.py
"""

import json
from pathlib import Path

from fscil.allocator import tune_allocator
from fscil.config import load_recipe
from fscil.experiments import evaluate, train
from fscil.metrics import mean_and_interval
from fscil.runs import Run, machine
from fscil.store import write_json
from fscil.training import pick_device

SEEDS = (0, 1, 2)
DRAWS = 10
PLAIN = ["loss.kind=softmax", "loss.margin=0", "views.count=1", "model.projection=0", "mixing.repeats=0"]
RUNS = Path("runs/glyphs-comparison")
RESULT = Path("results/glyphs-comparison.json")


def measure(name: str, settings: list[str]) -> dict[str, float]:
    """Last-session figures of one training, mean over the draws; base training time in seconds."""
    config, folder = load_recipe("glyphs", settings), RUNS / name
    run = Run.open(folder) if (folder / "run.json").exists() else Run.create(folder, config, {"data": None})
    if not run.finished:
        train(run.config(), run, None, pick_device(), print, quiet=False)
    results = evaluate(run, None, pick_device(), (5, 1), DRAWS, quiet=True)
    figures = {"seconds": results["training"]["seconds"], "epochs": results["training"]["epochs"]}
    figures["session 0"] = 100 * results["walks"][0]["sessions"][0]["average"]
    for shots in (5, 1):
        last = [walk["sessions"][-1] for walk in results["walks"] if walk["shots"] == shots]
        for measured in ("average", "harmonic", "base", "novel"):
            figures[f"{shots}-shot {measured}"] = mean_and_interval([100 * session[measured] for session in last])[0]
    return figures


def main() -> None:
    tune_allocator()
    rows: dict[str, list[dict[str, float]]] = {
        "full method": [],
        "cross-entropy, equal epochs": [],
        "cross-entropy, equal time": [],
    }
    for seed in SEEDS:
        full = measure(f"full-{seed}", [f"train.seed={seed}"])
        plain = measure(f"plain-epochs-{seed}", [f"train.seed={seed}", *PLAIN])
        epochs = max(1, round(plain["epochs"] * full["seconds"] / plain["seconds"]))
        longer = measure(f"plain-time-{seed}", [f"train.seed={seed}", *PLAIN, f"train.epochs={epochs}"])
        for row, figures in zip(rows.values(), (full, plain, longer), strict=True):
            row.append(figures)
        write_json(RESULT, {"machine": machine(), "seeds": SEEDS, "draws": DRAWS, "plain": PLAIN, "rows": rows})
    print(json.dumps(rows, indent=1))
    for name, runs in rows.items():
        cells = [
            f"{mean:.1f} ±{width:.1f}"
            for mean, width in (mean_and_interval([run[key] for run in runs]) for key in runs[0])
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
