"""A grid on a Ray cluster: every base network and every cell is a task, and the tasks of a lost worker are repeated.

Tasks work in the grid's folder, which all nodes must see, as processes started by hand do. So a repeated task goes on
from the last checkpoint and the last finished walk, and the results are those of the local engine.
"""

import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fscil.errors import ConfigError, FscilError, StoreError
from fscil.experiments.base_networks import BeingTrainedError
from fscil.experiments.cells import Cell
from fscil.experiments.grid import Grid
from fscil.experiments.run import installed_base_recipe
from fscil.protocol import Draw
from fscil.runtime.extras import install_command
from fscil.runtime.registry import load_plugin
from fscil.training.context import Context

RETRIES = 5  # of a task whose worker was lost
PAUSE = 1.0  # seconds between two looks at what a process outside of the cluster works on


@dataclass(frozen=True)
class Job:
    """What a worker needs to know beside its cell."""

    out: Path  # absolute
    root: Path | None  # absolute
    kind: str
    shots: tuple[int, ...]
    draws: tuple[Draw, ...]
    device: str
    threads: int  # as in the driver: sums are rounded by the number of threads
    plugins: tuple[Path, ...]
    arguments: tuple[str, ...]  # of the command
    began: float

    def grid(self, say: Callable[[str], None]) -> Grid:
        """The grid in a worker's process."""
        torch.set_num_threads(self.threads)
        sys.argv = list(self.arguments)
        for file in self.plugins:
            load_plugin(file)
        if not (self.out / "grid.json").is_file():
            raise StoreError(
                f"{self.out} is not there on {socket.gethostname()}. With --engine ray all nodes must see --out and "
                f"--data under the same path, on a shared file system."
            )
        grid = Grid(self.out, [], self.root, Context.on(self.device, quiet=True), say)
        grid.began = self.began
        return grid


def run_on_ray(
    grid: Grid,
    kind: str,
    shots: Sequence[int],
    draws: Sequence[Draw],
    root: Path | None,
    device: str,
    plugins: Sequence[Path],
    say: Callable[[str], None],
) -> dict[str, str]:
    """As Grid.run, on the cluster of RAY_ADDRESS or of this machine, or on a new one of this machine alone."""
    ray = _ray()
    grid.describe(kind)
    paths = tuple(file.expanduser().resolve() for file in plugins)
    threads, data = torch.get_num_threads(), root.expanduser().resolve() if root else None
    job = Job(
        *(grid.out.resolve(), data, kind, tuple(shots), tuple(draws), device, threads),
        *(paths, tuple(sys.argv), grid.began),
    )
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    try:
        return _gathered(ray, grid, _tasks(ray, grid, job, say), say)
    finally:
        if started:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"--engine ray needs an extra. Run: {install_command('ray')}") from error
    return ray


def _tasks(ray: Any, grid: Grid, job: Job, say: Callable[[str], None]) -> dict[Any, Cell]:
    """The reference of every cell's task. One that needs a network begins when that is trained."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if job.threads > max((node.get("CPU", 0) for node in nodes), default=0):
        raise ConfigError(
            f"no node of the Ray cluster has {job.threads} CPUs, the number of threads here. Set OMP_NUM_THREADS to "
            f"the number of CPUs that each cell shall use."
        )
    gpus = 1 if job.device != "cpu" and any(node.get("GPU") for node in nodes) else 0
    say(f"Ray: {len(nodes)} nodes, {ray.cluster_resources().get('CPU', 0):g} CPUs, {job.threads} for each cell")
    options = {"num_cpus": job.threads, "num_gpus": gpus, "max_retries": RETRIES}
    train, run = (ray.remote(**options)(task) for task in (_train, _run))
    networks: dict[str, Any] = {}
    tasks = {}
    for cell in grid.cells:
        network = _network(grid, cell)
        if network and network not in networks:
            networks[network] = train.remote(job, cell)
        tasks[run.remote(job, cell, networks.get(network))] = cell
    return tasks


def _network(grid: Grid, cell: Cell) -> str:
    """The key of the base network to be trained for a cell; empty where it is trained, or the cell cannot run."""
    try:
        recipe = installed_base_recipe(cell.config)
    except FscilError:  # which the cell's own task will tell
        return ""
    networks = grid.runner.networks
    return "" if networks.is_ready(recipe) else networks.run_of(recipe).folder.name


def _train(job: Job, cell: Cell) -> None:
    """The task of a base network. What goes wrong is told by the cells that need it."""
    runner = job.grid(lambda text: None).runner
    while True:
        try:
            runner.train(cell)
        except BeingTrainedError:
            time.sleep(PAUSE)
            continue
        except Exception:
            pass
        return


def _run(job: Job, cell: Cell, trained: None) -> tuple[str, list[str]]:
    """The task of a cell: why it failed, or an empty text; and what there is to say."""
    said: list[str] = []
    grid = job.grid(said.append)
    while (problem := grid.attempt(cell, cell.name, job.shots, job.draws)) is None:
        time.sleep(PAUSE)
    return problem, said


def _gathered(ray: Any, grid: Grid, tasks: dict[Any, Cell], say: Callable[[str], None]) -> dict[str, str]:
    """The failures, told as they come."""
    failed, left = {}, list(tasks)
    while left:
        (done,), left = ray.wait(left, num_returns=1)
        name = tasks[done].name
        try:
            problem, said = ray.get(done)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            lost = f"its worker was lost {RETRIES + 1} times ({type(error).__name__})"
            problem, said = str(cause) if isinstance(cause, FscilError) else lost, []
        for text in said:
            say(text)
        if problem:
            failed[name] = problem
            say(f"{name} failed: {problem}")
    return failed
