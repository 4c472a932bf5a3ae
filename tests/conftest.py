"""What all tests share: hypothesis without deadlines, the same on every run; a cache folder; real data, if there."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fscil", deadline=None, derandomize=True)
settings.load_profile("fscil")


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
