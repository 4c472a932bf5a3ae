"""What torchrun tells a process by its environment: which of how many it is. Without torchrun it is the only one."""

import os


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _number(name: str, otherwise: int) -> int:
    return int(os.environ.get(name, otherwise)) if launched() else otherwise


def rank() -> int:
    """The number of this process, from 0, among all of the job."""
    return _number("RANK", 0)


def world_size() -> int:
    """How many processes the job has, on all machines."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """The number of this process on its machine."""
    return _number("LOCAL_RANK", 0)


def is_main() -> bool:
    """Process 0 writes files and speaks; the others only compute."""
    return rank() == 0


def attempt() -> int:
    """How often this job has failed before, and was started again by torchrun (--max-restarts)."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0)


def prefix() -> list[str]:
    """The words of a command that come before its own, to start it as this process was started."""
    if world_size() == 1:
        return ["fscil"]
    here, machines = _number("LOCAL_WORLD_SIZE", 1), _number("GROUP_WORLD_SIZE", 1)
    nodes = ["--nnodes", str(machines)] if machines > 1 else []
    return ["torchrun", *nodes, "--nproc-per-node", str(here), "-m", "fscil"]
