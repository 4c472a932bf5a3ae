"""A small model, fitted in seconds, and photos to predict."""

import shutil

import pytest

from fscil import Classifier
from fscil.gallery import COSINE
from helpers import NAMES, SMALL_NETWORK, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Twelve classes of six photos, one folder each."""
    return write_images(tmp_path_factory.mktemp("images"), train=6, test=0, split=False)


@pytest.fixture(scope="session")
def held_out(tmp_path_factory):
    """The same classes again, other photos."""
    root = tmp_path_factory.mktemp("held_out")
    return write_images(root, train=0, test=4, split=False)


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory, images):
    """Eight of the classes: six with all photos, two with three."""
    root = tmp_path_factory.mktemp("base")
    for place, name in enumerate(NAMES[:8]):
        (root / name).mkdir()
        for path in sorted((images / name).iterdir())[: 6 if place < 6 else 3]:
            shutil.copy(path, root / name / path.name)
    return root


@pytest.fixture(scope="session")
def fitted(base_folder):
    """The classifier that fit makes, and what it says."""
    said = []
    made = Classifier.fit(base_folder, from_scratch=True, settings=SMALL_NETWORK, quiet=True, say=said.append)
    return made, said


@pytest.fixture
def classifier(fitted, tmp_path):
    """A copy of its own for each test."""
    fitted[0].save(tmp_path / "session.fscil", force=True)
    return Classifier.load(tmp_path / "session.fscil")


@pytest.fixture
def by_cosine(classifier):
    """The same classes, decided by cosine as models of schema 1 are."""
    return Classifier(classifier.encoder, classifier.gallery.under(COSINE), made=classifier.made)


@pytest.fixture
def model(classifier, tmp_path):
    """The folder of a saved model."""
    classifier.save(tmp_path / "model.fscil")
    return tmp_path / "model.fscil"
