"""What all tests share: hypothesis without deadlines, the same on every run; a cache folder; real data, if there."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["databases"]
settings.register_profile("fscil", deadline=None, derandomize=True)
settings.load_profile("fscil")

# What `make test-fast` leaves out, by path: files that train, start a browser or many processes, or take long.
SLOW = (
    *(
        "cli/",
        "crash/",
        "e2e/",
        "methods/",
        "property/",
        "training/test_wandb_log.py",
        "test_benchmarks.py",
        "test_export.py",
        "test_imports.py",
        "test_session_lists.py",
    ),
    *("classifier/test_calibration.py", "classifier/test_examples.py", "classifier/test_finetuning.py"),
    *("classifier/storage/", "classifier/test_encoding_memory.py"),
    *("classifier/test_fitting.py", "classifier/test_model_folder.py", "data/test_glyphs.py", "data/test_load.py"),
    *("classifier/test_held_out.py", "classifier/test_promises.py"),
    *(
        "experiments/test_feature_files.py",
        "experiments/test_grid.py",
        "experiments/test_paper.py",
        "experiments/test_ray_engine.py",
        "experiments/test_readout.py",
        "experiments/test_run.py",
        "experiments/test_shared_grid.py",
        "gallery/test_choosing.py",
    ),
    *("report/test_page_of_a_grid.py", "serve/test_connections.py", "serve/test_decoding.py", "serve/test_errors.py"),
    *(
        "serve/test_fuzzed_service.py",
        "serve/test_server.py",
        "serve/test_replicas.py",
        "serve/test_soak.py",
        "serve/test_tokens.py",
    ),
    *("training/test_base_training.py", "training/test_checkpoints.py", "training/test_loop.py"),
    "training/test_objectives.py",
    *("training/test_run_folder.py", "training/test_torchrun.py"),
)


def is_slow(path):
    return f"{path.relative_to(Path(__file__).parent).as_posix()}{'/' * path.is_dir()}".startswith(SLOW)


def pytest_ignore_collect(collection_path, config):
    """Without the slow ones, they need not even be imported."""
    return True if config.getoption("markexpr") == "not slow" and is_slow(collection_path) else None


def pytest_collection_modifyitems(items):
    for item in items:
        if is_slow(item.path):
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def pixel_cache(tmp_path_factory):
    """Where decoded images go, so that no test writes to the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSCIL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def shared():
    """Real data and published lists: FSCIL_SHARED, or ../shared beside the repository."""
    folder = Path(os.environ.get("FSCIL_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: set FSCIL_SHARED to the folder of shared data")
    return folder
