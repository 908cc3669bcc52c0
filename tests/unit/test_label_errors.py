"""Confident learning on probabilities made by hand, and what it says of clean and of shuffled labels."""

import torch

from vitling.diagnose.label_errors import confident_errors, find_label_errors, rank_by_doubt


def classifier(labels, accuracy, generator, classes=5):
    """Probabilities of a model that is sure where it is right, and unsure where it is wrong."""
    correct = torch.rand(len(labels), generator=generator) < accuracy
    guess = torch.where(correct, labels, torch.randint(0, classes, labels.shape, generator=generator))
    lead = torch.where(correct, 0.5 + 0.5 * torch.rand(len(labels), generator=generator), torch.tensor(0.1))
    probabilities = torch.full((len(labels), classes), 0.0)
    probabilities += ((1 - lead) / classes)[:, None]
    probabilities[torch.arange(len(labels)), guess] += lead
    return probabilities


def test_shuffled_labels_are_found_and_clean_ones_left_alone():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 5, (1000,), generator=generator)
    given = truth.clone()
    given[:100] = (given[:100] + 1) % 5
    probabilities = classifier(truth, 0.9, generator)
    found = find_label_errors(probabilities, given)
    wrong = set(range(100))
    hits = len(wrong & set(found.index.tolist()))
    assert hits / len(found.index) > 0.95
    assert hits > 80
    assert torch.equal(found.suggested[:10], truth[found.index[:10]])
    assert len(wrong & set(rank_by_doubt(probabilities, given)[:100].tolist())) > 85
    assert len(find_label_errors(probabilities, truth).index) < 20


def test_a_class_without_images_is_nobodys_suggestion():
    probabilities = torch.tensor([[0.5, 0.1, 0.4], [0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    found = find_label_errors(probabilities, torch.tensor([0, 1, 0]))
    assert found.joint[:, 2].sum() == 0
    assert found.joint.sum() == 2 or found.joint.sum() == 3


def test_the_surest_predictions_of_a_weak_model_agree_with_clean_labels_and_not_with_shuffled_ones():
    generator = torch.Generator().manual_seed(1)
    truth = torch.randint(0, 5, (2000,), generator=generator)
    given = truth.clone()
    given[:400] = (given[:400] + 2) % 5
    probabilities = classifier(truth, 0.5, generator)
    assert confident_errors(probabilities, truth).interval[0] < 0.01
    low, high = confident_errors(probabilities, given).interval
    assert low < 0.2 < high


def test_a_handful_of_images_says_nothing_of_labels():
    assert confident_errors(torch.eye(5), torch.arange(5)) is None
