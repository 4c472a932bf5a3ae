import pytest

from serving import served, tiny_classifier, write_keys


@pytest.fixture
def model(tmp_path):
    """A model folder without classes."""
    path = tmp_path / "model"
    tiny_classifier().save(path)
    return path


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of one service for all tests of a file, without a key file."""
    path = tmp_path_factory.mktemp("without-keys") / "model"
    tiny_classifier().save(path)
    with served(path) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """The same, of a service with a key file."""
    folder = tmp_path_factory.mktemp("keyed")
    tiny_classifier().save(folder / "model")
    with served(folder / "model", write_keys(folder)) as running:
        yield running
