"""The queue and the groups of photos that were not known, with a fitted model."""

import pytest
import torch

from fscil import Classifier
from fscil.classifier.review import certainty, review_groups, review_queue
from fscil.gallery.similar import similar_groups
from helpers import SMALL_NETWORK, picture

STRANGE = [(label, seed) for seed in range(40, 44) for label in range(12)]


@pytest.fixture(scope="module")
def classifier(base_folder):
    """Trained at a low rate: so small a network is near to diverging, and shall answer whatever it is asked here."""
    settings = [*SMALL_NETWORK, "train.lr=0.005"]
    return Classifier.fit(base_folder, from_scratch=True, settings=settings, quiet=True)


@pytest.fixture
def photos(classifier):
    return classifier.photos([picture(*each) for each in STRANGE])


def test_least_certain_first(classifier, by_cosine, photos):
    found = classifier.predict_features(torch.stack([photo.feature for photo in photos]), 3)
    answers = {photo.digest: answer for photo, answer in zip(photos, found, strict=True)}
    queue = review_queue(classifier, photos)
    assert {each.photo.digest: each.answer for each in queue} == answers
    given = [each.answer for each in queue]
    sure = [each.unknown_probability if each.label is None else each.probability for each in given]
    assert sure == sorted(sure) == [certainty(each.answer) for each in queue]
    plain = [each.answer.margin for each in review_queue(by_cosine, photos)]
    assert plain == sorted(plain)
    assert review_queue(classifier, []) == []


def test_groups_are_those_of_the_decision_rule(classifier, by_cosine, photos):
    features = torch.stack([photo.feature for photo in photos])
    for model in (classifier, by_cosine):
        groups = review_groups(model, photos)
        expected = similar_groups(features, model.gallery.rule)
        assert [[photos.index(photo) for photo in group] for group in groups] == expected
        assert groups
        assert review_groups(model, photos[:1]) == []
