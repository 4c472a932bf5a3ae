"""A gallery under the two-covariance rule: scores as the model's densities have them, whatever the order of events."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from fscil.errors import StoreError
from fscil.gallery import (
    COSINE,
    Gallery,
    Photo,
    TwoCovariance,
    TwoCovarianceRule,
    enrolled_classes,
    leave_one_class_out,
    leave_one_photo_out,
    rule_from_state,
)

DIM, CLASSES, EACH = 12, 6, 8


def features(seed=0):
    """(CLASSES * EACH, DIM) and labels: classes around random centres."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(CLASSES, DIM)) * 2
    labels = np.repeat(np.arange(CLASSES), EACH)
    values = centres[labels] + random.normal(size=(len(labels), DIM))
    return torch.from_numpy(np.abs(values)).float(), torch.from_numpy(labels)


FEATURES, LABELS = features()
WEIGHT = 0.3
RULE = TwoCovarianceRule(TwoCovariance.fit(FEATURES, LABELS, information_weight=WEIGHT))


def photo(number):
    return Photo(f"digest {number}", FEATURES[number], f"{number}.jpg", "2026-01-31T12:00:00+00:00")


def gallery(chosen, rule=RULE):
    """chosen: numbers of photos, enrolled one after the other under the class of each."""
    made = Gallery(DIM, rule)
    for number in chosen:
        made.enroll(f"class {int(LABELS[number])}", [photo(number)])
    return made


def written_out(query, members):
    """log p(query | the class of these photos) - log p(query | a class never seen), direction by direction."""
    model = RULE.model
    mapped, y = model.transform(FEATURES[members]).double(), model.transform(query[None]).double()[0]
    k, psi = len(members), model.psi
    mean, variance = k * psi / (k * psi + 1) * mapped.mean(0), psi / (k * psi + 1)
    seen = Normal(mean, (1 + variance).sqrt()).log_prob(y).sum()
    return float(seen - Normal(0.0, (1 + psi).sqrt()).log_prob(y).sum())


def test_scores_are_the_log_likelihood_ratios_of_classes_of_any_size():
    members = {0: [0], 1: [8, 9, 10], 2: list(range(16, 24))}
    made = gallery([number for own in members.values() for number in own])
    queries = FEATURES[[5, 12, 40]]
    expected = [[written_out(query, own) for own in members.values()] for query in queries]
    np.testing.assert_allclose(made.scores(queries).numpy(), expected, rtol=1e-4, atol=1e-3)


@given(st.permutations(range(0, CLASSES * EACH, 3)))
def test_the_order_of_photos_does_not_matter(order):
    made, sorted_one = gallery(order), gallery(sorted(order))
    columns = [made.names.index(name) for name in sorted_one.names]
    scores = made.scores(FEATURES)[:, columns]
    torch.testing.assert_close(scores, sorted_one.scores(FEATURES), rtol=1e-5, atol=1e-4)


def test_the_same_photo_twice_is_no_new_evidence():
    once, twice = gallery([0, 8]), gallery([0, 8, 0, 0])
    assert torch.equal(once.scores(FEATURES), twice.scores(FEATURES))
    assert twice.counts.tolist() == [1, 1]


def test_enroll_then_forget_changes_nothing():
    made = gallery([0, 8, 9])
    before = made.scores(FEATURES)
    made.enroll("another", [photo(30), photo(31)])
    made.forget("another")
    assert torch.equal(made.scores(FEATURES), before)


def test_forgetting_keeps_the_counts_with_their_classes():
    made = gallery([0, 8, 9, 16, 17, 18])
    made.forget("class 1")
    assert torch.equal(made.scores(FEATURES), gallery([0, 16, 17, 18]).scores(FEATURES))


def test_a_snapshot_and_the_state_of_the_rule_bring_everything_back():
    made = gallery(range(20))
    again = Gallery.from_snapshot(made.snapshot(), rule_from_state(RULE.name, RULE.state()))
    torch.testing.assert_close(again.scores(FEATURES), made.scores(FEATURES), rtol=1e-5, atol=1e-4)


def test_the_same_classes_under_another_rule():
    made = gallery(range(20))
    torch.testing.assert_close(made.under(COSINE).scores(FEATURES), gallery(range(20), COSINE).scores(FEATURES))
    torch.testing.assert_close(made.under(COSINE).under(RULE).scores(FEATURES), made.scores(FEATURES))


def test_more_photos_of_a_class_are_better_evidence():
    query = FEATURES[7:8]
    few, many = gallery([0, 8]), gallery([0, 1, 2, 3, 4, 5, 6, 8])
    assert many.scores(query)[0, 0] > few.scores(query)[0, 0]


def test_a_rule_of_a_newer_version_is_refused():
    with pytest.raises(StoreError, match="newer fscil"):
        rule_from_state("quantum", {})


def test_an_empty_gallery_scores_nothing():
    assert Gallery(DIM, RULE).scores(FEATURES).shape == (len(FEATURES), 0)


def test_a_gallery_read_at_once_is_that_of_its_photos_one_by_one(monkeypatch):
    monkeypatch.setattr(enrolled_classes, "CLASSES_AT_ONCE", 2)
    for rule in (RULE, COSINE):
        made = gallery(range(0, 40, 2), rule)
        again = Gallery.from_snapshot(made.snapshot(), rule)
        assert again.names == made.names
        assert torch.equal(again.counts, made.counts)
        torch.testing.assert_close(again.prototypes, made.prototypes, rtol=1e-5, atol=1e-5)
        for each in (made, again):
            each.enroll("another", [photo(41)])
            each.enroll("class 0", [photo(1)])
        torch.testing.assert_close(again.scores(FEATURES), made.scores(FEATURES), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rule", [RULE, COSINE], ids=lambda rule: rule.name)
def test_leaving_out_is_what_rebuilding_the_gallery_gives(rule):
    """Every photo against a gallery without its class, and against one without the photo; class 5 has a single one."""
    rows = [0, 1, 2, 8, 9, 16, 17, 18, 19, 24, 25, 32, 40]
    known, unknown = leave_one_class_out(FEATURES[rows], LABELS[rows], rule.default_score, rule)

    def evidence(enrolled, row):
        made = gallery(enrolled, rule)
        return float(rule.unknown_score(rule.default_score, made.scores(FEATURES[row : row + 1]), made.counts))

    expected_known, expected_unknown = [], []
    for row in rows:
        others = [each for each in rows if LABELS[each] != LABELS[row]]
        expected_unknown.append(evidence(others, row))
        without = [each for each in rows if each != row]
        if LABELS[row] in LABELS[without]:
            expected_known.append(evidence(without, row))
    assert known.tolist() == pytest.approx(expected_known, rel=1e-4, abs=1e-4)
    assert unknown.tolist() == pytest.approx(expected_unknown, rel=1e-4, abs=1e-4)


def test_unknown_is_decided_by_the_nearest_class_and_by_how_much_its_photos_tell():
    """Information of k photos about one more, direction by direction: half the logarithm of a ratio of variances."""
    chosen = [0, 8, 9, 10, 11, 16, 17]
    made, psi, rows = gallery(chosen), RULE.model.psi, [1, 12, 18, 30]
    found = RULE.unknown_score("log_ratio", made.scores(FEATURES[rows]), made.counts)
    for row, evidence in zip(rows, found.tolist(), strict=True):
        members = [[each for each in chosen if LABELS[each] == label] for label in (0, 1, 2)]
        ratios = [written_out(FEATURES[row], own) for own in members]
        k = len(members[int(np.argmax(ratios))])
        information = float(((1 + psi) / (1 + psi / (k * psi + 1))).log().sum()) / 2
        assert evidence == pytest.approx(max(ratios) + WEIGHT * information, rel=1e-4, abs=1e-3)
        assert information > 0


def test_a_rule_that_was_stored_without_a_weight_of_information_decides_by_the_ratio_alone():
    made = gallery([0, 8, 9, 10])
    state = RULE.state()
    again = rule_from_state("two_covariance", state)
    assert again.model.information_weight == WEIGHT
    del state["information_weight"]
    before = rule_from_state("two_covariance", state)
    scores = made.scores(FEATURES)
    assert torch.equal(before.unknown_score("log_ratio", scores, made.counts), scores.amax(1))
    for weight in (torch.nan, -0.1, 1.1):
        with pytest.raises(StoreError, match="out of their bounds"):
            rule_from_state("two_covariance", {**state, "information_weight": torch.tensor(weight)})


def test_a_rule_that_was_stored_without_degrees_of_freedom_is_of_gaussians():
    state = RULE.state()
    del state["degrees"]
    assert rule_from_state("two_covariance", state).model.degrees is None
    for degrees in (torch.nan, torch.inf, -1.0, 0.5):
        with pytest.raises(StoreError, match="degrees of freedom"):
            rule_from_state("two_covariance", {**state, "degrees": torch.tensor(degrees)})


def test_a_gallery_by_student_scores_as_its_model_does_all_at_once_and_one_by_one():
    model = TwoCovariance.fit(FEATURES, LABELS, rescale=False, degrees=20.0)
    rule, chosen = TwoCovarianceRule(model), [0, 8, 9, 10, 16, 17]
    made = gallery(chosen, rule)
    mapped, labels = model.transform(FEATURES), LABELS[chosen]
    means = torch.stack([mapped[chosen][labels == label].mean(0) for label in range(3)])
    expected = model.log_ratio(mapped, means, made.counts)
    torch.testing.assert_close(made.scores(FEATURES), expected, rtol=1e-4, atol=1e-3)
    each = torch.arange(len(FEATURES)) % 3
    own = rule.own_scores(FEATURES, made.prototypes[each], made.counts[each])
    torch.testing.assert_close(own, expected.gather(1, each[:, None])[:, 0], rtol=1e-4, atol=1e-3)


def test_leaving_out_one_photo_of_a_class():
    rows = [8, 9, 10, 11]
    expected = [written_out(FEATURES[row], [each for each in rows if each != row]) for row in rows]
    assert leave_one_photo_out(FEATURES[rows], RULE).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-3)
