"""AUROC, kappa, balanced accuracy, sensitivity and specificity: equal to scikit-learn's, with intervals that cover, and over groups."""

import json

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from vitling.errors import UserError
from vitling.evaluation import resampling
from vitling.evaluation.intervals import wilson_interval
from vitling.evaluation.metrics import Evaluation, measure
from vitling.evaluation.operating_point import Wanted, fit_threshold, measure_point
from vitling.evaluation.resampling import Ranking, resample, share_interval


def scored(images=400, classes=4, seed=0, skill=1.0, rounding=None):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (images,), generator=generator)
    logits = torch.randn(images, classes, generator=generator)
    logits[torch.arange(images), labels] += skill
    return (logits if rounding is None else (logits * rounding).round() / rounding), labels


def names(classes):
    return [f"class {i}" for i in range(classes)]


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("rounding", [None, 1])
def test_numbers_are_those_of_scikit_learn(classes, rounding):
    """Rounded logits have many ties."""
    logits, labels = scored(classes=classes, rounding=rounding)
    result = measure(logits, labels, names(classes))
    truth, seen, probabilities = labels.numpy(), logits.argmax(1).numpy(), logits.double().softmax(1).numpy()
    assert result.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(truth, seen))
    assert result.kappa == pytest.approx(sk.cohen_kappa_score(truth, seen), abs=1e-6)
    one_by_one = [sk.roc_auc_score(truth == c, probabilities[:, c]) for c in range(classes)]
    assert [row["auroc"] for row in result.per_class] == pytest.approx(one_by_one, abs=1e-6)
    assert result.auroc == pytest.approx(np.mean(one_by_one), abs=1e-6)
    for c, row in enumerate(result.per_class):
        assert row["accuracy"] == pytest.approx(sk.recall_score(truth == c, seen == c))
        assert row["specificity"] == pytest.approx(sk.recall_score(truth != c, seen != c))
        clean = int(((truth != c) & (seen != c)).sum())
        assert row["specificity_interval"] == pytest.approx(wilson_interval(clean, int((truth != c).sum())))
    assert result.kappa_quadratic is None


def test_of_ordered_numbers_kappa_has_quadratic_weights_too():
    logits, labels = scored(classes=5)
    result = measure(logits, labels, ["0", "1", "2", "3", "4"])
    expected = sk.cohen_kappa_score(labels.numpy(), logits.argmax(1).numpy(), weights="quadratic")
    assert result.kappa_quadratic == pytest.approx(expected, abs=1e-6)
    assert result.kappa_quadratic_interval[0] < expected < result.kappa_quadratic_interval[1]
    assert measure(logits, labels, ["4", "1", "2", "3", "0"]).kappa_quadratic is None
    assert measure(*scored(classes=2), ["0", "1"]).kappa_quadratic is None


def test_each_resample_has_the_numbers_that_scikit_learn_gives_it(monkeypatch):
    """The sums over ranks and cells against scikit-learn on the images themselves, drawn with the same generator."""
    logits, labels = scored(120, 3, rounding=2)
    truth, seen, probabilities = labels.numpy(), logits.argmax(1).numpy(), logits.double().softmax(1).numpy()
    monkeypatch.setattr(resampling, "RESAMPLES", 100)  # scikit-learn takes its time
    rng = np.random.default_rng(0)
    kappa, balanced, auroc = [], [], []
    for _ in range(100):
        drawn = rng.integers(0, 120, 120)
        kappa.append(sk.cohen_kappa_score(truth[drawn], seen[drawn]))
        balanced.append(sk.balanced_accuracy_score(truth[drawn], seen[drawn]))
        auroc.append(np.mean([sk.roc_auc_score(truth[drawn] == c, probabilities[drawn, c]) for c in range(3)]))
    found = resample(probabilities, truth, seen)
    assert found.resamples == 100
    for ours, theirs in ((found.kappa, kappa), (found.balanced_accuracy, balanced), (found.auroc, auroc)):
        assert ours == pytest.approx(np.percentile(theirs, (2.5, 97.5)), abs=1e-6)


def test_a_ranking_counts_every_pair_and_ties_half():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, positive = rng.integers(0, 5, 30) / 4, rng.random(30) < 0.4
        ranking = Ranking(scores, positive, np.arange(30), 30)
        expected = sk.roc_auc_score(positive, scores)
        assert ranking.auroc(np.ones((30, 1), np.float32))[0] == pytest.approx(expected)


def test_intervals_are_the_same_every_time_and_cover_the_truth():
    assert measure(*scored(), names(4)) == measure(*scored(), names(4))
    wide = measure(*scored(20_000, seed=99), names(4))
    covered = {"kappa": 0, "auroc": 0, "balanced_accuracy": 0}
    for seed in range(60):
        one = measure(*scored(150, seed=seed), names(4))
        for name in covered:
            low, high = getattr(one, f"{name}_interval")
            covered[name] += low <= getattr(wide, name) <= high
    # Of 60 at 95 %, fewer than 51 happen once in a thousand times.
    assert all(count >= 51 for count in covered.values()), covered


def test_more_scores_get_fewer_resamples():
    logits, labels = scored(4000, 1000, skill=3)
    found = resample(logits.double().softmax(1).numpy(), labels.numpy(), logits.argmax(1).numpy())
    assert found.resamples == 200
    assert found.auroc[0] < found.auroc[1]


def test_a_class_without_images_has_no_numbers_and_does_not_count():
    logits, labels = scored(classes=3)
    labels[labels == 2] = 1
    result = measure(logits, labels, names(3))
    assert result.per_class[2]["auroc"] is result.per_class[2]["accuracy"] is None
    assert result.per_class[2]["specificity"] is not None
    assert result.auroc == pytest.approx(np.mean([row["auroc"] for row in result.per_class[:2]]))
    json.loads(result.to_json(), parse_constant=pytest.fail)


def test_images_of_one_class_only_and_images_that_are_all_correct_have_no_made_up_intervals():
    logits, labels = scored(classes=2)
    lone = measure(logits, torch.zeros_like(labels), names(2))
    assert lone.auroc is None
    assert lone.auroc_interval is None
    json.loads(lone.to_json(), parse_constant=pytest.fail)
    perfect = measure(torch.eye(2)[labels] * 9, labels, names(2))
    assert (perfect.auroc, perfect.kappa, perfect.balanced_accuracy) == (1, 1, 1)
    assert perfect.auroc_interval is perfect.kappa_interval is perfect.balanced_accuracy_interval is None
    assert "no interval: every resample gives the same" in perfect.agreement_facts()["AUROC"]


# --- groups -----------------------------------------------------------------------------------------------------------


def of_patients(patients, each, seed):
    """Predictions that are correct or wrong by patient, half of them: the images of one say the same."""
    rng = np.random.default_rng(seed)
    labels = torch.as_tensor(np.repeat(np.arange(patients) % 2, each))
    known = torch.as_tensor(np.repeat(rng.random(patients) < 0.5, each))
    logits = torch.nn.functional.one_hot(torch.where(known, labels, 1 - labels), 2).float()
    noise = torch.as_tensor(rng.normal(0, 0.1, logits.shape)).float()
    return logits + noise, labels, np.repeat([f"p{i}" for i in range(patients)], each)


def test_with_groups_every_interval_is_over_them():
    logits, labels, groups = of_patients(40, 25, 0)
    by_image, by_group = (measure(logits, labels, names(2), groups=of) for of in (None, groups))
    assert (by_image.groups, by_group.groups) == (None, 40)
    for name in ("top1_interval", "kappa_interval", "auroc_interval", "balanced_accuracy_interval"):
        (low, high), (group_low, group_high) = getattr(by_image, name), getattr(by_group, name)
        assert group_high - group_low > 3 * (high - low), name
    for row, grouped in zip(by_image.per_class, by_group.per_class, strict=True):
        assert grouped["accuracy"] == row["accuracy"]
        assert np.diff(grouped["interval"]) > 3 * np.diff(row["interval"])
        assert np.diff(grouped["specificity_interval"]) > 3 * np.diff(row["specificity_interval"])
    assert "over 40 groups" in by_group.agreement_facts()["intervals"]


def test_only_the_interval_over_groups_covers_what_new_patients_give():
    """The truth is a half. Of 60 datasets, intervals over images hardly ever hold it; those over patients nearly always."""
    by_image = by_group = 0
    for seed in range(60):
        logits, labels, groups = of_patients(40, 25, seed)
        hits = (logits.argmax(1) == labels).numpy()
        for over in (None, groups):
            low, high = share_interval(hits, over)
            inside = low <= 0.5 <= high
            by_image, by_group = by_image + (inside and over is None), by_group + (inside and over is not None)
    assert by_group >= 51
    assert by_image <= 30


def test_where_no_draw_of_groups_differs_the_interval_is_that_of_as_many_images():
    groups = np.repeat(np.arange(8), 50)
    assert share_interval(np.ones(400, bool), groups) == wilson_interval(8, 8)
    assert share_interval(np.ones(400, bool)) == wilson_interval(400, 400)
    low, high = share_interval(np.arange(10) < 5, np.zeros(10))
    assert (low, high) == wilson_interval(0.5, 1)
    assert low < 0.1
    assert high > 0.9


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_result_survives_its_file_and_files_of_earlier_versions_open():
    result = measure(*scored(), names(4), data="made up", split="test", groups=np.arange(400) // 4)
    held = (np.linspace(0, 1, 50), np.arange(50) > 20)
    result.operating_point = measure_point(Wanted("class 1", sensitivity=0.9), held, held)
    again = Evaluation.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    assert again.top1_interval == result.top1_interval
    assert again.auroc_interval == result.auroc_interval
    tree = json.loads(result.to_json())
    for name in list(tree):
        if name.startswith(("balanced", "kappa", "auroc", "groups", "resamples", "operating")):
            del tree[name]
    for row in tree["per_class"]:
        for name in list(row):
            if name.startswith(("specificity", "auroc")):
                del row[name]
    old = Evaluation.from_json(json.dumps(tree))
    assert old.auroc is old.kappa is old.groups is None
    assert old.agreement_facts() == {}
    assert old._repr_html_()


def test_the_frame_has_each_class_as_a_test_for_it():
    pytest.importorskip("pandas")
    frame = measure(*scored(), names(4)).to_frame()
    assert [*frame.columns[5:]] == [
        f"{what}{end}" for what in ("specificity", "auroc") for end in ("", "_low", "_high")
    ]
    assert (frame["auroc_low"] < frame["auroc"]).all()
    assert (frame["auroc"] < frame["auroc_high"]).all()


# --- operating points -------------------------------------------------------------------------------------------------


def test_a_threshold_is_the_highest_that_finds_enough_and_the_lowest_that_leaves_enough_alone():
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    positive = np.array([0, 0, 1, 0, 1, 0, 1, 1, 1, 1], bool)
    rng = np.random.default_rng(0)
    cases = [(scores, positive), *((rng.random(40).round(2), rng.random(40) < 0.5) for _ in range(20))]
    for values, truth in cases:
        for at_least in (0.3, 0.5, 0.8, 0.95, 1.0):
            found = fit_threshold(values, truth, Wanted("x", sensitivity=at_least))
            assert (values[truth] >= found).mean() >= at_least
            assert all((values[truth] >= t).mean() < at_least for t in values if t > found)
            found = fit_threshold(values, truth, Wanted("x", specificity=at_least))
            assert (values[~truth] < found).mean() >= at_least
            assert all((values[~truth] < t).mean() < at_least for t in values[~truth] if t < found)


def test_what_a_threshold_gives_is_measured_on_other_images_than_it_was_fitted_on():
    rng = np.random.default_rng(0)

    def draw(count):
        truth = rng.random(count) < 0.3
        return rng.normal(0.4 + 0.2 * truth, 0.1), truth

    held, seen = draw(200), draw(5000)
    point = measure_point(Wanted("ill", sensitivity=0.95), held, seen)
    assert point["val_sensitivity"] >= 0.95
    scores, truth = seen
    assert point["sensitivity"] == (scores[truth] >= point["threshold"]).mean()
    assert point["specificity"] == (scores[~truth] < point["threshold"]).mean()
    assert point["sensitivity_interval"] == wilson_interval(
        int((scores[truth] >= point["threshold"]).sum()), int(truth.sum())
    )
    grouped = measure_point(Wanted("ill", sensitivity=0.95), held, seen, np.arange(5000) // 500)
    assert grouped["sensitivity"] == point["sensitivity"]
    assert grouped["sensitivity_interval"] != point["sensitivity_interval"]


def test_what_cannot_be_wanted_is_refused():
    for arguments in (dict(), dict(sensitivity=0.9, specificity=0.9)):
        with pytest.raises(UserError, match="give one of the two"):
            Wanted("ill", **arguments)
    for value in (0, -0.1, 1.1, 95, float("nan")):
        with pytest.raises(UserError, match="out of range"):
            Wanted("ill", specificity=value)
    with pytest.raises(UserError, match=r"no class 'il' to be positive\. Did you mean ill"):
        Wanted("il", sensitivity=0.9).find_class(["well", "ill"])
    with pytest.raises(UserError, match="no validation image is of 'ill'"):
        fit_threshold(np.ones(3), np.zeros(3, bool), Wanted("ill", sensitivity=0.9))
    with pytest.raises(UserError, match="of other classes than 'ill'"):
        fit_threshold(np.ones(3), np.ones(3, bool), Wanted("ill", specificity=0.9))
