"""Where the time of a training step goes: its share by kind of operation, and how near convolutions come to the peak.

    python benchmarks/speed_profile.py --width 16 32 64 --out results/speed-profile.md

The step is that of `make bench` (batch 128, two views, four mixtures), seen by torch's profiler. The peak is a large
matrix product's, in the same process. Leave the machine alone meanwhile.
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from speed_baselines import matmul
from speed_ours import Step, operations_per_image
from torch.profiler import ProfilerActivity, profile

from fscil.allocator import tune_allocator
from fscil.runs import machine
from fscil.store import write_text

KINDS = {
    "convolution": ("convolution",),
    "BatchNorm": ("batch_norm",),
    "ReLU": ("relu", "threshold"),
    "matrix products of projection and classifier": ("addmm", "::mm", "linear"),
    "views and mixtures": ("grid_sampler", "index", "lerp", "permute", "gather", "arange", "clamp"),
    "sums of shortcuts and gradients": ("aten::add",),
    "optimizer": ("foreach", "optimizer"),
}
OTHER = "everything else"


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), OTHER)


def shares(width: int, batch: int, hidden: int) -> tuple[Counter[str], float, float]:
    """Seconds by kind of operation, seconds of the step, and operations per second in its convolutions."""
    step = Step(width, batch, steps=1, hidden=hidden)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        seconds = step()
    by_kind: Counter[str] = Counter()
    for event in found.key_averages():
        by_kind[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    by_kind[OTHER] += max(0.0, seconds - by_kind.total())
    convolutions = operations_per_image(step.network.backbone, 32) * step.passed
    return by_kind, seconds, convolutions / by_kind["convolution"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=2048, help="size of the projection (default: %(default)s)")
    parser.add_argument("--matmul", type=int, default=4096, help="size of the matrix product (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    given = parser.parse_args()
    tune_allocator()
    product = matmul(given.matmul)
    peak = max(product()["flops"] for _ in range(5))
    columns = {width: shares(width, given.batch, given.hidden) for width in given.width}
    lines = [f"| share of the step | {' | '.join(f'width {width}' for width in columns)} |"]
    lines += ["|---|" + "---:|" * len(columns)]
    for kind in (*KINDS, OTHER):
        cells = (f"{by_kind[kind] / by_kind.total():.0%}" for by_kind, _, _ in columns.values())
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines.append(f"| seconds of the step | {' | '.join(f'{seconds:.2f}' for _, seconds, _ in columns.values())} |")
    cells = (f"{rate / peak:.0%}" for _, _, rate in columns.values())
    lines.append(f"| operations per second in the convolutions, of the peak | {' | '.join(cells)} |")
    about = ", ".join(f"{key} {value}" for key, value in machine().items())
    text = f"{about}; peak {peak / 1e9:.0f} GFLOP/s.\n\n" + "\n".join(lines) + "\n"
    print(text, end="")
    if given.out:
        write_text(given.out, text)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
