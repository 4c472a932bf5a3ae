import pytest

from serving import served, tiny_classifier, write_keys


@pytest.fixture
def model(tmp_path):
    """A model folder with no class."""
    path = tmp_path / "model"
    tiny_classifier().save(path)
    return path


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """One service for the tests of a file; no keys."""
    path = tmp_path_factory.mktemp("open") / "model"
    tiny_classifier().save(path)
    with served(path) as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """The same with a key file."""
    folder = tmp_path_factory.mktemp("locked")
    tiny_classifier().save(folder / "model")
    with served(folder / "model", write_keys(folder)) as running:
        yield running
