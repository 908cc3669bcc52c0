"""Several labels per image: from the sources of data to strata, batches, loss, scores and thresholds."""

import csv
import os
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from several_data import NAMES, corners, write_arrays
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import nn

from vitling.data import open_dataset
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import prepare_training_data, split_training
from vitling.data.targets import combination_strata
from vitling.errors import UserError
from vitling.evaluation.average_precision import Precision, mean_average_precision, standard_error
from vitling.evaluation.several import measure_several
from vitling.evaluation.temperature import fit_label_temperature
from vitling.evaluation.thresholds import Thresholds, best_f1_threshold, fit_thresholds
from vitling.methods import METHODS, create_method
from vitling.recipes import Recipe
from vitling.runs.metadata import ModelMetadata
from vitling.training.setup import MOST_WEIGHT, class_weights


def refusal(*arguments, **options) -> str:
    with pytest.raises(UserError) as caught:
        open_dataset(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def targets_of(*arguments, **options):
    return open_dataset(*arguments, **options).splits["train"].targets


@pytest.fixture
def files(tmp_path):
    """60 images as files, and which labels each has."""
    images, has = corners(60)
    (tmp_path / "images").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "images" / f"{i}.png")
    return tmp_path, has


def write_table(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


# --- arrays -----------------------------------------------------------------------------------------------------------


def test_arrays_of_zeros_and_ones_are_several_labels(tmp_path):
    dataset = open_dataset(write_arrays(tmp_path / "a.npz"))
    assert (dataset.target.kind, dataset.class_names) == ("several", NAMES)
    assert np.array_equal(dataset.splits["train"].targets, corners(160)[1])
    assert dataset.splits["test"].targets.dtype == np.float32


def test_labels_without_names_are_numbered_and_matched_by_place(tmp_path):
    images, has = corners(40)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=has.astype(bool))
    dataset = open_dataset(tmp_path / "a.npz")
    assert dataset.class_names == ["0", "1", "2", "3"]
    seen = open_dataset(tmp_path / "a.npz", class_names=NAMES, labels="several")
    assert np.array_equal(seen.splits["train"].targets, has)
    assert any("have no names" in note for note in seen.notes)


def test_one_label_per_image_stays_a_class(tmp_path):
    images, has = corners(40)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=has[:, :1])
    dataset = open_dataset(tmp_path / "a.npz")
    assert dataset.target.kind == "classes"
    assert dataset.splits["train"].targets is None
    assert "labels=several expects" in refusal(tmp_path / "a.npz", labels="several")


@pytest.mark.parametrize(
    ("column", "words"),
    [(0, "fewer than two training images have the label 'top left'"), (1, "every training image has the label")],
)
def test_labels_that_cannot_be_learnt_are_refused(tmp_path, column, words):
    images, has = corners(40)
    has[:, 0] = column
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=has, class_names=np.array(NAMES))
    assert words in refusal(tmp_path / "a.npz")


def test_numbers_beyond_one_are_no_labels(tmp_path):
    images, has = corners(40)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=2 * has)
    assert "one label per image is needed" in refusal(tmp_path / "a.npz")
    assert "other values than 0 and 1" in refusal(tmp_path / "a.npz", labels="several")


def test_exactly_one_label_everywhere_is_noted(tmp_path):
    images, has = corners(40)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=np.eye(4, dtype=np.uint8)[has.sum(1) % 4])
    assert any("exactly one of the labels" in note for note in open_dataset(tmp_path / "a.npz").notes)


def test_images_without_their_labels_are_learnt_from(tmp_path):
    dataset = open_dataset(f"unlabelled:{write_arrays(tmp_path / 'a.npz')}")
    assert not dataset.labelled
    assert dataset.splits["train"].targets is None
    assert dataset.target.kind == "classes"


# --- tables -----------------------------------------------------------------------------------------------------------


def test_columns_of_zeros_and_ones_are_labels_and_other_columns_are_not(files):
    folder, has = files
    rows = [[f"images/{i}.png", *own, i % 7, i // 3] for i, own in enumerate(has.tolist())]
    table = write_table(folder / "a.csv", ["path", *NAMES, "age", "patient"], rows)
    dataset = open_dataset(table)
    assert (dataset.target.kind, dataset.class_names) == ("several", NAMES)
    assert np.array_equal(dataset.splits["train"].targets, has)
    assert any("'age'" in note for note in dataset.notes)
    grouped = open_dataset(table, group="patient").splits["train"]
    assert len(set(grouped.groups.tolist())) == 20
    assert "no column label" in refusal(table, labels="classes")


@pytest.mark.parametrize("separator", [";", "|"])
def test_a_column_of_names_is_several_labels_where_that_is_asked_for(files, separator):
    folder, has = files
    rows = [
        [f"images/{i}.png", separator.join(n for n, own in zip(NAMES, row, strict=True) if own)]
        for i, row in enumerate(has)
    ]
    table = write_table(folder / "a.csv", ["path", "label"], rows)
    dataset = open_dataset(table, labels="several")
    order = [dataset.class_names.index(name) for name in NAMES]
    assert np.array_equal(dataset.splits["train"].targets[:, order], has)
    assert "has no label" in refusal(table)


def test_an_image_may_have_a_row_for_each_label(files):
    folder, has = files
    rows = [[f"images/{i}.png", NAMES[k]] for i, own in enumerate(has) for k in np.flatnonzero(own)]
    targets = targets_of(write_table(folder / "a.csv", ["path", "label"], rows), labels="several")
    assert len(targets) == (has.sum(1) > 0).sum()
    assert targets.sum() == has.sum()


def test_a_cell_that_is_neither_zero_nor_one_is_named(files):
    folder, has = files
    rows = [[f"images/{i}.png", *own] for i, own in enumerate(has.tolist())]
    write_table(folder / "a_train.csv", ["path", *NAMES], rows[:40])
    rows[50][2] = "maybe"
    write_table(folder / "a_test.csv", ["path", *NAMES], rows[40:])
    assert "a_test.csv line 12: top right is 'maybe'" in refusal(folder / "a_train.csv")


def test_parquet_has_columns_of_labels_or_lists_of_names(files):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, has = files
    blobs = [(folder / "images" / f"{i}.png").read_bytes() for i in range(60)]
    columns = {name: has[:, k].astype(bool) for k, name in enumerate(NAMES)}
    parquet.write_table(arrow.table({"image": blobs, **columns}), folder / "columns.parquet")
    assert np.array_equal(targets_of(folder / "columns.parquet"), has)
    lists = [[name for name, own in zip(NAMES, row, strict=True) if own] for row in has]
    parquet.write_table(arrow.table({"image": blobs, "label": lists}), folder / "lists.parquet")
    dataset = open_dataset(folder / "lists.parquet", labels="several")
    order = [dataset.class_names.index(name) for name in NAMES]
    assert np.array_equal(dataset.splits["train"].targets[:, order], has)


def test_lists_of_names_that_nobody_said_are_lists_are_classes_with_a_note(files):
    folder, _ = files
    rows = [[f"images/{i}.png", ("a", "a;b", "b|c", "c")[i % 4]] for i in range(40)]
    dataset = open_dataset(write_table(folder / "a.csv", ["path", "label"], rows))
    assert dataset.class_names == ["a", "a;b", "b|c", "c"]
    assert [note for note in dataset.notes if "set labels=several" in note] == [
        "2 of the 4 classes of a.csv look like lists of labels, such as 'a;b'; if these images have several labels, set labels=several"
    ]
    for labels in ("classes", "several"):
        assert not any("look like lists" in note for note in open_dataset(folder / "a.csv", labels=labels).notes)
    rows = [[f"images/{i}.png", ("a;b", "c|d", "e")[i % 3]] for i in range(40)]  # names that never come alone
    assert open_dataset(write_table(folder / "b.csv", ["path", "label"], rows)).notes == []


def test_a_rare_list_and_an_empty_cell_beside_lists_hint_at_several_labels(files):
    folder, _ = files
    rows = [[f"images/{i}.png", ("a", "b")[i % 2]] for i in range(40)]
    table = write_table(folder / "a.csv", ["path", "label"], [*rows, ["images/40.png", "a;b"]])
    assert "only one training image of class 'a;b'" in refusal(table)
    assert "If 'a;b' is a list of labels, set labels=several" in refusal(table)
    table = write_table(folder / "b.csv", ["path", "label"], [*rows, ["images/40.png", ""], ["images/41.png", "a;b"]])
    assert "line 42 has no label; fill it in; where the cells are lists of names, set labels=several" in refusal(table)
    assert refusal(table, labels="classes").endswith("fill it in")
    assert refusal(write_table(folder / "c.csv", ["path", "label"], [*rows, ["images/40.png", ""]])).endswith(
        "fill it in"
    )


def test_parquet_says_what_looks_like_lists_of_names(files):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, _ = files
    blobs = [(folder / "images" / f"{i}.png").read_bytes() for i in range(40)]
    cells = [("a", "a;b", "b")[i % 3] for i in range(40)]
    parquet.write_table(arrow.table({"image": blobs, "label": cells}), folder / "a.parquet")
    assert any("look like lists of labels" in note for note in open_dataset(folder / "a.parquet").notes)
    parquet.write_table(arrow.table({"image": blobs, "label": [None, *cells[1:]]}), folder / "b.parquet")
    assert "set labels=several" in refusal(folder / "b.parquet")


@pytest.mark.parametrize(("cell", "shown"), [("2", "'2'"), ("", "''"), ("yes", "'yes'")])
def test_one_wrong_cell_of_a_label_is_named_and_not_a_reason_to_leave_the_label_out(files, cell, shown):
    folder, has = files
    rows = [[f"images/{i}.png", *own, i % 7] for i, own in enumerate(has.tolist())]
    rows[30][2] = cell
    text = refusal(write_table(folder / "a.csv", ["path", *NAMES, "age"], rows))
    assert f"a.csv line 32: top right is {shown}, and all else in this column is 0 or 1" in text
    assert "write 1 where an image has the label, else 0" in text
    rows[40][2] = rows[41][2] = cell
    assert "(2 more cells are wrong there)" in refusal(write_table(folder / "b.csv", ["path", *NAMES, "age"], rows))
    for row in rows[::5]:
        row[2] = "7"  # a column that is something else
    dataset = open_dataset(write_table(folder / "c.csv", ["path", *NAMES, "age"], rows))
    assert dataset.class_names == [name for name in NAMES if name != "top right"]
    assert any("'top right'" in note for note in dataset.notes)


def test_one_wrong_cell_of_two_labels_is_named(files):
    folder, has = files
    rows = [[f"images/{i}.png", *own[:2]] for i, own in enumerate(has.tolist())]
    rows[0][1] = "2"
    assert "line 2: a is '2'" in refusal(write_table(folder / "a.csv", ["path", "a", "b"], rows))


def test_one_wrong_cell_of_a_parquet_column_is_named(files):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, has = files
    blobs = [(folder / "images" / f"{i}.png").read_bytes() for i in range(60)]
    columns = {name: has[:, k].tolist() for k, name in enumerate(NAMES)}
    columns[NAMES[1]][5] = None
    parquet.write_table(arrow.table({"image": blobs, **columns}), folder / "a.parquet")
    assert "a.parquet row 5 (counted from 0): top right is ''" in refusal(folder / "a.parquet")


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["copies", "hard links", "links"])
def test_an_image_in_several_folders_has_their_labels(files, way):
    folder, has = files
    for name in NAMES:
        (folder / "tree" / name).mkdir(parents=True)
    for i, own in enumerate(has):
        for k in np.flatnonzero(own):
            here, there = folder / "images" / f"{i}.png", folder / "tree" / NAMES[k]
            if way == "copies":
                shutil.copy(here, there / f"{i}.png")
            elif way == "hard links":
                os.link(here, there / f"{i}-{k}.png")
            else:
                os.symlink(here, there / f"{i}-{k}.png")
    dataset = open_dataset(folder / "tree", labels="several")
    targets = dataset.splits["train"].targets
    assert len(targets) == (has.sum(1) > 0).sum()
    assert targets.sum(0).tolist() == [has[:, NAMES.index(name)].sum() for name in dataset.class_names]
    plain = open_dataset(folder / "tree")
    assert len(plain.splits["train"]) == has.sum()
    assert any("set labels=several" in note for note in plain.notes) == (way != "copies")


def test_other_images_of_the_same_name_stay_apart(files):
    folder, _ = files
    for k, name in enumerate(("a", "b")):
        (folder / "tree" / name).mkdir(parents=True)
        for i in range(4):
            shutil.copy(folder / "images" / f"{2 * i + k}.png", folder / "tree" / name / f"{i}.png")
    assert len(open_dataset(folder / "tree", labels="several").splits["train"]) == 8


@pytest.mark.parametrize("data", ["digits", "hf:owner/name", "list.txt", "images.zip", "https://host/{0..3}.tar"])
def test_what_has_one_label_each_is_refused_before_anything_is_read(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("a/1.png 0\n")
    (tmp_path / "images.zip").write_bytes(b"not read")
    assert "have one label each" in refusal(data, labels="several")


def test_what_is_not_there_is_said_to_be_missing():
    assert "no such path" in refusal("nothing/here", labels="several")


# --- other data -------------------------------------------------------------------------------------------------------


def test_labels_are_ordered_as_the_model_has_them(files):
    folder, has = files
    rows = [[f"images/{i}.png", *own] for i, own in enumerate(has.tolist())]
    table = write_table(folder / "a.csv", ["path", *NAMES], rows)
    assert np.array_equal(targets_of(table, class_names=NAMES[::-1], labels="several"), has[:, ::-1])
    assert "does not say which images have the label 'more'" in refusal(
        table, class_names=[*NAMES, "more"], labels="several"
    )
    assert "that the model does not know" in refusal(table, class_names=NAMES[:3], labels="several")


def test_a_label_that_a_list_never_names_is_on_no_image(files):
    folder, _ = files
    rows = [[f"images/{i}.png", "a;b" if i % 2 else "b" * (i % 3)] for i in range(60)]
    table = write_table(folder / "a.csv", ["path", "label"], [row for row in rows if row[1] in ("", "b", "a;b")])
    seen = open_dataset(table, class_names=["c", "b", "a"], labels="several")
    assert seen.splits["train"].targets[:, 0].sum() == 0
    assert any("has the label 'c'" in note for note in seen.notes)


# --- fingerprints and splits ------------------------------------------------------------------------------------------


def test_other_labels_are_other_data(tmp_path):
    first = open_dataset(write_arrays(tmp_path / "a.npz")).fingerprint
    labels = corners(160)[1]
    labels[3] = 1 - labels[3]
    assert open_dataset(write_arrays(tmp_path / "b.npz", train_labels=labels)).fingerprint != first


def test_subsets_and_batches_carry_the_targets(tmp_path):
    path = write_arrays(tmp_path / "a.npz")
    recipe = Recipe(data=str(path), img_size=16)
    for memory in (1.0, 0.0):
        data = prepare_training_data(recipe, Reading(memory_gb=memory, workers=0), model_size=(16, 16))
        train, val = split_training(data.dataset, recipe)
        assert np.array_equal(data.train.targets.numpy(), train.targets)
        index = torch.tensor([5, 2, 9])
        [batch] = data.val.batches([index])
        assert torch.equal(data.val.targets[batch["index"]], torch.tensor(val.targets)[index])


@pytest.mark.parametrize("grouped", [False, True])
def test_every_stratum_can_be_divided(grouped):
    rng = np.random.default_rng(0)
    for count in (7, 40, 400):
        targets = (rng.random((count, 6)) < np.array([0.5, 0.3, 0.1, 0.05, 0.02, 0.01])).astype(np.float32)
        groups = np.array([f"g{i // 3}" for i in range(count)]) if grouped else None
        found = combination_strata(targets, groups)
        units = np.arange(count) if groups is None else groups
        assert set(found) == set(range(found.max() + 1))
        assert all(len(set(units[found == stratum])) >= 2 for stratum in set(found))


def test_common_combinations_are_divided_in_proportion(tmp_path):
    dataset = open_dataset(write_arrays(tmp_path / "a.npz", train=160))
    train, val = split_training(dataset, Recipe(val_fraction=0.25))
    shares = [images.targets.mean(axis=0) for images in (train, val)]
    assert len(val) == 40
    assert np.abs(shares[0] - shares[1]).max() < 0.1
    assert not set(train.rows) & set(val.rows)


def test_a_label_that_validation_takes_whole_is_refused_or_left_one(tmp_path):
    labels = corners(160)[1]
    labels[:, 3] = 0
    labels[[4, 60], 3] = 1
    dataset = open_dataset(write_arrays(tmp_path / "a.npz", train_labels=labels))
    for seed in range(5):
        train, val = split_training(dataset, Recipe(val_fraction=0.25, seed=seed))
        assert (train.targets[:, 3].sum(), val.targets[:, 3].sum()) == (1, 1)


# --- loss -------------------------------------------------------------------------------------------------------------


class Known(nn.Module):
    """Answers what it is told to."""

    num_classes = 4

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, images):
        return self.logits


def learning(logits, class_weights=None, **how):
    from vitling.data.targets import Target

    return create_method(
        "supervised",
        Known(logits),
        num_classes=4,
        class_weights=class_weights,
        target=Target("several", tuple(NAMES)),
        **how,
    )


def batch_of(count=6, **more):
    torch.manual_seed(0)
    has = torch.tensor(corners(count)[1]).float()
    return torch.randn(count, 4), {"image": torch.randn(count, 3, 8, 8), "target": has, **more}


def test_the_loss_is_torchs():
    logits, batch = batch_of()
    loss = learning(logits)(batch, 0.0)["loss"]
    assert torch.equal(loss, F.binary_cross_entropy_with_logits(logits, batch["target"]))


def test_the_loss_weighs_positives():
    logits, batch = batch_of()
    weights = torch.tensor([1.0, 2.0, 0.5, 20.0])
    loss = learning(logits, class_weights=weights)(batch, 0.0)["loss"]
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, batch["target"], pos_weight=weights))


def test_smoothing_goes_towards_a_half():
    logits, batch = batch_of()
    loss = learning(logits, label_smoothing=0.2)(batch, 0.0)["loss"]
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, batch["target"] * 0.8 + 0.1))


def test_mixed_images_have_mixed_labels():
    logits, batch = batch_of()
    method = learning(logits, mixup=0.8)
    torch.manual_seed(3)
    loss = method(batch, 0.0)["loss"]
    torch.manual_seed(3)
    share, _ = method.mix.draw(6, 8, 8)
    share = share[:, None]
    mixed = batch["target"] * share + batch["target"].flip(0) * (1 - share)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, mixed))


def test_weighted_and_mixed_images_count_as_each_of_the_two_would():
    logits, batch = batch_of(weight=torch.tensor([2.0, 0.5, 1.0, 1.0, 0.0, 1.5]))
    method = learning(logits, cutmix=1.0)
    torch.manual_seed(3)
    loss = method(batch, 0.0)["loss"]
    torch.manual_seed(3)
    share, _ = method.mix.draw(6, 8, 8)

    def each(targets):
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)

    own, other = each(batch["target"]) * batch["weight"], each(batch["target"].flip(0)) * batch["weight"].flip(0)
    torch.testing.assert_close(loss, (own * share + other * (1 - share)).mean())


def test_balance_weighs_rare_labels_up_to_a_limit(tmp_path):
    labels = corners(160)[1]
    labels[:, 3] = 0
    labels[[4, 60], 3] = 1
    data = prepare_training_data(
        Recipe(data=str(write_arrays(tmp_path / "a.npz", train_labels=labels)), img_size=16),
        Reading(),
        model_size=(16, 16),
    )
    share = data.train.targets.mean(0)
    weights = class_weights(data.train, 4)
    assert weights[3] == MOST_WEIGHT
    torch.testing.assert_close(weights[:3], ((1 - share) / share)[:3])


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.unlabelled])
def test_a_method_learns_several_labels_or_refuses_them(name):
    from vitling.data.targets import Target
    from vitling.methods import check_target

    target = Target("several", tuple(NAMES))
    if name == "supervised":
        check_target(name, target)
        return
    with pytest.raises(UserError, match=f"method={name} does not learn labels=several; use method=supervised"):
        check_target(name, target)


# --- scores -----------------------------------------------------------------------------------------------------------


def answers(count=120, *, ties=False, seed=0):
    rng = np.random.default_rng(seed)
    truth = corners(count, seed)[1]
    scores = truth * 0.6 + rng.normal(0, 0.6, truth.shape)
    return (np.round(scores, 1) if ties else scores), truth


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_scikit_learns(ties):
    scores, truth = answers(ties=ties)
    expected = average_precision_score(truth, scores, average=None)
    assert mean_average_precision(scores, truth) == pytest.approx(expected.mean(), abs=1e-12)
    ones = np.ones((120, 1), np.float32)
    for k in range(4):
        found = Precision(scores[:, k], truth[:, k] > 0, np.arange(120), 120).average(ones)
        assert found[0] == pytest.approx(expected[k], abs=1e-12)


def test_average_precision_of_a_resample_is_that_of_its_images():
    scores, truth = answers(ties=True)
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, 120, (5, 120))
    weights = np.stack([np.bincount(rows, minlength=120) for rows in drawn], axis=1).astype(np.float32)
    found = Precision(scores[:, 0], truth[:, 0] > 0, np.arange(120), 120).average(weights)
    expected = [average_precision_score(truth[rows, 0], scores[rows, 0]) for rows in drawn]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_label_without_positives_is_no_part_of_the_mean():
    scores, truth = answers()
    truth[:, 2] = 0
    expected = average_precision_score(truth[:, [0, 1, 3]], scores[:, [0, 1, 3]])
    assert mean_average_precision(scores, truth) == pytest.approx(expected)
    assert mean_average_precision(scores, np.zeros_like(truth)) is None


def test_first_batches_without_any_label_have_a_score_too():
    from vitling.data.targets import Target
    from vitling.evaluation.scores import validation_scores

    found = validation_scores(Target("several", tuple(NAMES)), torch.randn(5, 4), torch.zeros(5, 4), with_error=True)
    assert (found["map"], found["error"], found["images"]) == (0.0, 0.0, 5.0)


def test_the_standard_error_shrinks_with_the_images():
    few, many = (standard_error(*answers(count)) for count in (60, 960))
    assert 2 < few / many < 8


def test_an_evaluation_agrees_with_scikit_learn():
    scores, truth = answers()
    logits, targets = torch.tensor(scores), torch.tensor(truth).float()
    thresholds = Thresholds([0.5, 0.6, 0.4, 0.5], [], 50, "")
    result = measure_several(logits, targets, NAMES, thresholds, temperature=2.0, split="test")
    probabilities = torch.sigmoid(logits / 2).numpy()
    called = probabilities >= np.array(thresholds.values)
    assert result.map == pytest.approx(average_precision_score(truth, scores), abs=1e-6)
    assert result.auroc == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)
    assert result.macro_f1 == pytest.approx(f1_score(truth, called, average="macro"), abs=1e-6)
    assert result.micro_f1 == pytest.approx(f1_score(truth, called, average="micro"), abs=1e-6)
    assert result.exact_match == (called == truth).all(1).mean()
    for name in ("map", "auroc", "macro_f1", "micro_f1", "exact_match"):
        low, high = getattr(result, f"{name}_interval")
        assert low < getattr(result, name) < high
    assert type(result).from_json(result.to_json()).to_json() == result.to_json()
    assert len(result.to_frame()) == 4


def test_intervals_over_few_groups_are_wider():
    scores, truth = answers(400)
    thresholds = Thresholds([0.5] * 4, [], 50, "")
    logits, targets = torch.tensor(scores), torch.tensor(truth).float()
    wide, narrow = (
        measure_several(logits, targets, NAMES, thresholds, groups=groups) for groups in (np.arange(400) // 40, None)
    )
    assert wide.groups == 10
    assert np.diff(wide.map_interval) > np.diff(narrow.map_interval) * 0.5
    assert wide.map == narrow.map


def test_what_is_not_defined_is_left_out_and_said():
    scores, truth = answers()
    truth[:, 2] = 0
    result = measure_several(
        torch.tensor(scores),
        torch.tensor(truth).float(),
        NAMES,
        Thresholds([0.5] * 4, ["low left"], 9, ""),
        split="test",
    )
    row = result.per_label[2]
    assert (row["average_precision"], row["auroc"], row["recall"], row["fitted"]) == (None, None, None, False)
    assert any("low left" in note for note in result.notes)
    assert type(result).from_json(result.to_json()).to_json() == result.to_json()


# --- thresholds and temperature ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_a_threshold_has_the_best_f1_of_all(ties):
    scores, truth = answers(ties=ties)
    scores = 1 / (1 + np.exp(-scores))
    for k in range(4):
        found = best_f1_threshold(scores[:, k], truth[:, k] > 0)
        reached = f1_score(truth[:, k], scores[:, k] >= found)
        assert reached == max(f1_score(truth[:, k], scores[:, k] >= x) for x in scores[:, k])
        assert np.abs(scores[:, k] - found).min() > 0


def test_a_label_without_validation_positives_gets_one_half():
    scores, truth = answers()
    truth[:, 1] = 0
    found = fit_thresholds(1 / (1 + np.exp(-scores)), truth, NAMES)
    assert (found.values[1], found.unfitted) == (0.5, ["top right"])
    assert "top right" in found.reason


def test_the_temperature_lowers_the_loss():
    scores, truth = answers(400)
    logits, targets = torch.tensor(scores) * 10, torch.tensor(truth).float()
    temperature = fit_label_temperature(logits, targets)
    losses = [
        F.binary_cross_entropy_with_logits(logits / t, targets.double()).item()
        for t in (temperature, temperature * 1.2, temperature / 1.2, 1)
    ]
    assert min(losses) == losses[0]


# --- what travels -----------------------------------------------------------------------------------------------------


def test_metadata_of_classes_says_nothing_of_labels(tmp_path):
    from tiny_run import make_tiny_run

    entries = ModelMetadata.of_run(make_tiny_run(tmp_path)).to_dict()
    assert not {"labels", "thresholds"} & set(entries)
    metadata = ModelMetadata.from_dict({**entries, "labels": "several", "thresholds": [0.25, 0.5]}, "x")
    assert ModelMetadata.from_strings(metadata.to_strings(), "x") == metadata
    with pytest.raises(UserError, match="thresholds"):
        ModelMetadata.from_dict({**entries, "labels": "several", "thresholds": [0.25]}, "x")


@pytest.mark.parametrize("several", [True, False])
def test_a_split_without_images_is_refused(tmp_path, several):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (20, 3)) if several else np.arange(20) % 2
    arrays = dict(train_images=rng.integers(0, 256, (20, 8, 8), dtype=np.uint8), train_labels=labels)
    arrays |= dict(test_images=np.zeros((0, 8, 8), np.uint8), test_labels=labels[:0])
    np.savez(tmp_path / "empty.npz", **arrays)
    with pytest.raises(UserError, match="has no image in the split 'test'"):
        open_dataset(tmp_path / "empty.npz")


def test_a_threshold_of_tiny_probabilities_tells_them_apart():
    assert 1e-12 < best_f1_threshold(np.array([1e-10, 1e-12]), np.array([True, False])) < 1e-10
