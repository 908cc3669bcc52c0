"""Images of one patient, slide or video are on one side of every split: where groups come from, who keeps them whole, what is said."""

import csv
import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from image_trees import message, save, tree
from PIL import Image
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedGroupKFold

from vitling.data import ArrayImages, Found, carve_validation, k_folds, open_dataset, register_source, take_fraction
from vitling.data.groups import name_prefix
from vitling.data.pipeline.training_data import split_training
from vitling.data.probe import PENALTY, _leave_one_out, fit_probe
from vitling.data.sources.memory import keep
from vitling.errors import UserError
from vitling.evaluation.intervals import paired_interval
from vitling.improvement.confirmation import count_pairs
from vitling.improvement.holdout import divide, hold_out
from vitling.recipes import Recipe, from_dict, to_dict

CLASSES = 4


def patients(count=80, classes=CLASSES, seed=0, most=12, mixed=False):
    """Labels and groups: every patient has 1 to `most` images, of one class, or of any."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, count)
    groups = np.repeat([f"p{i:03d}" for i in range(count)], sizes)
    labels = rng.integers(0, classes, len(groups)) if mixed else np.repeat(np.arange(count) % classes, sizes)
    order = rng.permutation(len(groups))
    return labels[order], groups[order]


def apart(groups, first, second):
    return not set(groups[first]) & set(groups[second])


def shares(labels, part):
    return np.bincount(labels[part], minlength=CLASSES) / np.bincount(labels, minlength=CLASSES)


# --- dividing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_a_validation_split_takes_whole_groups_in_proportion_to_the_classes(mixed, fraction, seed):
    labels, groups = patients(mixed=mixed)
    train, val = carve_validation(labels, fraction=fraction, seed=seed, groups=groups)
    assert sorted([*train, *val]) == list(range(len(labels)))
    assert apart(groups, train, val)
    # A class has 20 groups: half of its largest one is as far from the share as whole groups can be made to stay.
    assert np.abs(shares(labels, val) - fraction).max() < 0.07
    assert set(labels[train]) == set(labels[val]) == set(range(CLASSES))


def test_the_seed_draws_other_groups_and_the_same_seed_the_same():
    labels, groups = patients()
    first, again, other = (carve_validation(labels, seed=seed, groups=groups)[1] for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_validation_is_not_made_of_the_smallest_groups():
    labels, groups = patients(400)
    sizes = Counter(groups)
    held = np.mean(
        [sizes[g] for s in range(20) for g in set(groups[carve_validation(labels, seed=s, groups=groups)[1]])]
    )
    assert held == pytest.approx(np.mean(list(sizes.values())), rel=0.1)


def test_a_rare_class_of_two_groups_is_on_both_sides_and_one_of_a_single_group_stays_in_training():
    labels = np.array([0] * 40 + [1] * 6 + [2] * 5)
    groups = np.array([f"a{i // 4}" for i in range(40)] + ["b0"] * 3 + ["b1"] * 3 + ["c"] * 5)
    for seed in range(10):
        train, val = carve_validation(labels, seed=seed, groups=groups)
        assert apart(groups, train, val)
        assert set(labels[val]) == {0, 1}
        assert set(labels[train]) == {0, 1, 2}


def test_groups_that_cannot_be_divided_are_refused_in_a_line():
    labels = np.array([0, 0, 1, 1])
    with pytest.raises(UserError, match="all images are of one group"):
        carve_validation(labels, groups=np.array(["x"] * 4))
    with pytest.raises(UserError, match="each class needs two groups"):
        carve_validation(labels, groups=np.array(["x", "x", "y", "y"]))
    with pytest.raises(UserError, match="3 groups for 4 images"):
        carve_validation(labels, groups=np.array(["x", "y", "z"]))
    with pytest.raises(UserError, match="3 folds of 2 groups"):
        k_folds(np.array([0, 1, 0, 1]), 3, groups=np.array(["x", "x", "y", "y"]))
    with pytest.raises(UserError, match="class 'b' of a single group"):
        k_folds(labels, 2, groups=np.array(["x", "y", "z", "z"]), class_names=["a", "b"])
    with pytest.raises(UserError, match="knows no groups"):
        take_fraction(labels, 0.5, rule="bootstrapping", groups=np.array(["x", "y", "z", "w"]))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("k", [2, 5, 10])
def test_folds_have_whole_groups_and_are_as_balanced_as_scikit_learns(mixed, k):
    labels, groups = patients(mixed=mixed)
    ours = k_folds(labels, k, 3, groups=groups)
    theirs = StratifiedGroupKFold(k, shuffle=True, random_state=3).split(labels, labels, groups)
    assert sorted(np.concatenate([val for _, val in ours])) == list(range(len(labels)))
    for train, val in ours:
        assert apart(groups, train, val)
        assert len(val)
        assert set(labels[train]) == set(range(CLASSES))

    def uneven(folds):
        return np.mean([np.abs(shares(labels, val) - 1 / k).max() for _, val in folds])

    assert uneven(ours) <= uneven(theirs) + 0.01


def test_every_fold_has_a_group_and_every_class_stays_in_training_where_groups_are_few():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        groups = np.repeat([f"g{i}" for i in range(8)], rng.integers(2, 9, 8))
        labels = rng.integers(0, 3, len(groups))
        if any(len(set(groups[labels == c])) < 2 for c in range(3)):
            continue
        for train, val in k_folds(labels, 8, seed, groups=groups):
            assert len(set(groups[val])) == 1
            assert set(labels[train]) == {0, 1, 2}


@pytest.mark.parametrize("mixed", [False, True])
def test_a_fraction_takes_whole_groups_and_lies_inside_a_larger_one(mixed):
    labels, groups = patients(mixed=mixed)
    before: set[int] = set()
    for fraction in (0.02, 0.1, 0.3, 0.5, 0.9, 1.0):
        kept = take_fraction(labels, fraction, 1, groups=groups)
        assert apart(groups, kept, np.setdiff1d(np.arange(len(labels)), kept))
        assert before <= set(kept)
        assert set(labels[kept]) == set(range(CLASSES))
        if fraction >= 0.1:
            assert len(kept) == pytest.approx(fraction * len(labels), abs=7)
            assert np.abs(shares(labels, kept) - fraction).max() < 0.12
        before = set(kept)
    assert len(before) == len(labels)


def test_without_groups_every_split_is_what_it_was():
    """Positions that the version before groups gave."""
    labels = np.arange(30) % 3
    assert carve_validation(labels, fraction=0.2, seed=1)[1].tolist() == [7, 12, 17, 22, 24, 26]
    assert k_folds(labels, 3, 1)[0][1].tolist() == [0, 1, 9, 11, 13, 15, 17, 24, 28, 29]
    assert take_fraction(labels, 0.2, 1).tolist() == [7, 12, 17, 22, 24, 26]


# --- where they come from ---------------------------------------------------------------------------------------------


def listed(root, rows, name="list.csv", columns=("path", "label", "patient")):
    with open(root / name, "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return root / name


def by_patient(root, split=None):
    """A CSV of two classes, each of 6 patients with 4 images."""
    rows = []
    for p in range(12):
        for i in range(4):
            path = f"images/{p:02d}x{i}.png"
            save(root / path, 20 * p + i)
            rows.append([path, "ab"[p % 2], f"p{p}", *([split(p)] if split else [])])
    return listed(root, rows, columns=("path", "label", "patient", *(["split"] if split else [])))


def groups_of(images):
    assert images.groups is not None
    return set(images.groups.tolist())


def test_a_column_of_a_table_is_the_group_and_is_kept_whole(tmp_path):
    data = by_patient(tmp_path)
    recipe = Recipe(data=str(data), group="Patient", val_fraction=0.25)
    dataset = open_dataset(data, group=recipe.group)
    assert any("12 groups in train, by Patient, of 4 to 4 images" in note for note in dataset.notes)
    train, val = split_training(dataset, recipe)
    assert not groups_of(train) & groups_of(val)
    assert 2 <= len(groups_of(val)) <= 4  # one or two of the six of each class: both are as far from a quarter
    folds = [split_training(dataset, replace(recipe, folds=3, fold=fold))[1] for fold in range(3)]
    assert sorted(g for val in folds for g in groups_of(val)) == sorted(f"p{i}" for i in range(12))
    part, _ = split_training(dataset, replace(recipe, fraction=0.5))
    assert groups_of(part) < groups_of(train)
    assert len(part) == 4 * len(groups_of(part))


def test_a_column_that_looks_like_groups_is_said_and_not_used(tmp_path):
    dataset = open_dataset(by_patient(tmp_path))
    assert dataset.splits["train"].groups is None
    assert any("has a column patient, which is not used; group=patient keeps" in note for note in dataset.notes)
    assert not any("is not used" in note for note in open_dataset(tmp_path / "list.csv", group="patient").notes)


def test_groups_belong_to_the_fingerprint_and_not_to_that_of_the_images(tmp_path):
    data = by_patient(tmp_path)
    without, grouped = open_dataset(data), open_dataset(data, group="patient")
    assert without.fingerprint == without.image_fingerprint == grouped.image_fingerprint != grouped.fingerprint
    text = data.read_text().replace("p3", "p5")
    data.write_text(text)
    assert open_dataset(data).fingerprint == without.fingerprint
    assert open_dataset(data, group="patient").fingerprint != grouped.fingerprint


def test_data_at_hand_is_not_taken_for_that_with_other_groups(tmp_path):
    data = by_patient(tmp_path)
    without = open_dataset(data)
    grouped = open_dataset(data, group="patient", opened=without)
    assert grouped.splits["train"].groups is not None
    assert open_dataset(data, opened=grouped).splits["train"].groups is None
    assert open_dataset(data, group="patient", opened=grouped) is grouped


def test_a_group_in_two_splits_of_the_data_is_said(tmp_path):
    dataset = open_dataset(by_patient(tmp_path, split=lambda p: "train"), group="patient")
    assert not any("in both" in note for note in dataset.notes)
    rows = [
        [f"images/{p:02d}x{i}.png", "ab"[p % 2], f"p{p}", "test" if i == 0 and p < 4 else "train"]
        for p in range(12)
        for i in range(4)
    ]
    dataset = open_dataset(listed(tmp_path, rows, columns=("path", "label", "patient", "split")), group="patient")
    note = next(note for note in dataset.notes if "in both" in note)
    assert note.startswith("4 groups are in both train and test of the data itself (4 images of test), the first: p0")


def test_a_list_of_test_images_may_lack_the_groups(tmp_path):
    whole = by_patient(tmp_path).read_text().splitlines()
    (tmp_path / "x_train.csv").write_text("\n".join(whole[:41]))
    (tmp_path / "x_test.csv").write_text("\n".join(line.rpartition(",")[0] for line in [whole[0], *whole[41:]]))
    dataset = open_dataset(tmp_path / "x_train.csv", group="patient")
    assert dataset.splits["test"].groups is None
    assert dataset.splits["train"].groups is not None
    assert any(note.startswith("test without groups") for note in dataset.notes)


def test_a_class_of_a_single_group_is_said(tmp_path):
    rows = [[f"{i}.png", "rare" if i < 4 else "common", "p0" if i < 4 else f"p{i}"] for i in range(20)]
    for path, *_ in rows:
        save(tmp_path / path)
    notes = open_dataset(listed(tmp_path, rows), group="patient").notes
    assert any(note.startswith("class 'rare' of a single group, which stays in training") for note in notes)


def test_tables_without_the_column_or_with_an_empty_cell_are_refused(tmp_path):
    data = by_patient(tmp_path)
    assert "group=patients: " in message(data, group="patients")
    assert "Did you mean patient" in message(data, group="patients")
    data.write_text(data.read_text().replace(",p5\n", ",\n", 1).replace(",p5\r\n", ",\r\n", 1))
    assert "has no patient; fill it in" in message(data, group="patient")


def arrays(path, **more):
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 6, 6), dtype=np.uint8) for n in (24, 8))
    np.savez(
        path, train_images=train, train_labels=np.arange(24) % 2, test_images=test, test_labels=np.arange(8) % 2, **more
    )
    return path


def test_arrays_of_groups_are_taken_for_what_they_say_and_others_by_name(tmp_path):
    groups = np.arange(24) // 4
    data = arrays(tmp_path / "a.npz", train_groups=groups, test_groups=np.full(8, 77))
    dataset = open_dataset(data)
    assert groups_of(dataset.splits["train"]) == set("012345")
    assert groups_of(dataset.splits["test"]) == {"77"}
    train, val = split_training(dataset, Recipe(data=str(data)))
    assert not groups_of(train) & groups_of(val)
    named = arrays(tmp_path / "b.npz", train_slide=groups.astype(str)[:, None])
    assert open_dataset(named).splits["train"].groups is None
    assert any(
        "has an array train_slide, which is not used; group=slide keeps" in note for note in open_dataset(named).notes
    )
    assert groups_of(open_dataset(named, group="slide").splits["train"]) == set("012345")
    assert "has no array train_patient; its arrays are: train_images" in message(named, group="patient")
    assert "has no array train_groups" in message(arrays(tmp_path / "c.npz", test_groups=np.arange(8)))
    assert "expected a number or word per image, (24,)" in message(arrays(tmp_path / "d.npz", train_groups=groups[1:]))
    assert "expected a number or word" in message(arrays(tmp_path / "e.npz", train_groups=groups + 0.5))


def scans(root):
    for name in ("ill", "well"):
        for p in range(6):
            for i in range(3):
                save(root / name / f"patient{p}{name[0]}_{i:03d}.png", 40 * p + i)
    return root


@pytest.mark.parametrize(
    "group", ["regex:^(.+)_", "^(patient\\d+[iw])", r"^(\w+?)_", "regex:/(patient[^/]+)_\\d+\\.png$"]
)
def test_a_pattern_finds_groups_in_file_names(tmp_path, group):
    dataset = open_dataset(scans(tmp_path), group=group)
    assert groups_of(dataset.splits["train"]) == {f"patient{p}{c}" for p in range(6) for c in "iw"}
    train, val = split_training(dataset, Recipe(data=str(tmp_path), group=group))
    assert not groups_of(train) & groups_of(val)


def test_a_pattern_that_cannot_be_used_is_refused_in_a_line(tmp_path):
    scans(tmp_path)
    assert "is not a regular expression" in message(tmp_path, group="regex:^(")
    assert "has 0 pairs of parentheses" in message(tmp_path, group="regex:^p")
    assert "has 2 pairs of parentheses" in message(tmp_path, group="(a)(b)")
    save(tmp_path / "ill" / "odd.png")
    assert "finds no group in 1 of 37 file names, the first: odd.png" in message(tmp_path, group="regex:^(.+)_")
    assert "names a column or an array" in message(tmp_path, group="patient")
    assert "names a column or an array" in message("digits", group="patient")
    assert "looks at file names, and the images of digits have none" in message("digits", group="(a)")


def test_a_parquet_table_and_a_hub_table_have_columns(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def encoded(value):
        file = io.BytesIO()
        Image.new("L", (6, 6), value).save(file, "PNG")
        return file.getvalue()

    table = {
        "image": [encoded(10 * i) for i in range(24)],
        "label": ["ab"[i % 2] for i in range(24)],
        "patient": [i // 4 for i in range(24)],
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet", row_group_size=5)
    plain = open_dataset(tmp_path / "t.parquet")
    assert any("has a column patient, which is not used" in note for note in plain.notes)
    assert plain.splits["train"].groups is None
    dataset = open_dataset(tmp_path / "t.parquet", group="patient")
    assert dataset.splits["train"].groups.tolist() == [str(i // 4) for i in range(24)]
    assert dataset.splits["train"].read(7).max() == 70  # groups of rows are another thing
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"]), "patient": datasets.Value("int64")}
    )
    rows = {**table, "image": [{"bytes": b, "path": None} for b in table["image"]], "label": [i % 2 for i in range(24)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    saved = open_dataset(tmp_path / "saved", group="patient")
    assert saved.splits["train"].groups.tolist() == [str(i // 4) for i in range(24)]


def test_a_source_of_a_plug_in_brings_its_own_groups():
    def read(what):
        images = ArrayImages(np.zeros((8, 4, 4, 1), np.uint8), np.arange(8) % 2)
        images.groups = np.arange(8).astype(str)
        return Found(["a", "b"], {"train": images}, [], "case")

    register_source("grouped-cases", read)
    assert any("8 groups in train, by case" in note for note in open_dataset("grouped-cases").notes)
    assert "names a column or an array" in message("grouped-cases", group="patient")


def test_images_in_memory_with_other_groups_are_other_data():
    images = ArrayImages(np.zeros((8, 4, 4, 1), np.uint8), np.arange(8) % 2)
    first = keep(images, ["a", "b"])
    grouped = images.subset(range(8))
    grouped.groups = np.arange(8).astype(str)
    assert keep(grouped, ["a", "b"]).name != first.name


def test_the_key_of_a_recipe_survives_a_round_trip_and_records_without_it_open():
    recipe = Recipe(group="patient")
    assert from_dict(to_dict(recipe)) == recipe
    tree = to_dict(Recipe())
    del tree["group"]
    assert from_dict(tree) == Recipe()


# --- who else divides -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("may_train_again", [False, True])
@pytest.mark.parametrize("own_val", [False, True])
@pytest.mark.parametrize("patients_in_val", [20, 300])
def test_what_confirms_chooses_and_is_learnt_from_share_no_group(may_train_again, own_val, patients_in_val):
    labels, groups = patients(200, most=8)
    val_labels, val_groups = patients(patients_in_val, seed=1, most=8)
    val_groups = np.char.add("v", val_groups)
    found = divide(
        labels, val_labels, own_val=own_val, may_train_again=may_train_again, train_groups=groups, val_groups=val_groups
    )
    held = {
        name: set(groups[rows.train]) | set(val_groups[rows.val])
        for name, rows in (("confirm", found.confirm), ("choose", found.choose))
    }
    assert held["confirm"]
    assert held["choose"]
    assert not held["confirm"] & held["choose"]
    learnt = np.setdiff1d(np.arange(len(labels)), np.concatenate([found.confirm.train, found.choose.train]))
    assert not set(groups[learnt]) & (held["confirm"] | held["choose"])


def test_an_improvement_holds_whole_patients_out(tmp_path):
    data = by_patient(tmp_path)
    recipe = Recipe(data=str(data), group="patient")
    holdout, images = hold_out(
        open_dataset(data, group="patient"), recipe, tmp_path / "parts.json", may_train_again=True
    )
    assert not groups_of(images["confirm"]) & groups_of(images["learn"])
    trial = holdout.trial(recipe)
    opened = open_dataset(trial.data, group=trial.group)
    assert not groups_of(opened.splits["train"]) & groups_of(opened.splits["val"])
    assert not groups_of(opened.splits["train"]) & groups_of(images["confirm"])


def test_a_confirmation_counts_patients_not_images():
    """Of ten patients with fifty images each, the winner gains one and loses none: images are sure of it, patients are not."""
    groups = np.repeat(np.arange(10), 50)
    start, winner = np.isin(groups, range(5)).tolist(), np.isin(groups, range(6)).tolist()
    by_image, by_patient = count_pairs(winner, start), count_pairs(winner, start, groups)
    assert by_image.difference == by_patient.difference == 10
    assert by_image.better
    assert not by_patient.better
    assert by_image.p_value < 1e-6
    assert by_patient.p_value == 1
    same = count_pairs(start, start, groups)
    assert (same.low, same.high) == pytest.approx([100 * end for end in paired_interval(0, 0, 10)])


def test_the_linear_classifier_of_a_plan_leaves_whole_groups_out():
    """Backgrounds tell the patient, and patients the class: left out alone an image is known, with its patient it is not."""
    rng = np.random.default_rng(0)
    backgrounds = rng.integers(0, 256, (30, 3, 16, 16))
    noise = rng.integers(-20, 21, (30, 10, 3, 16, 16))
    pixels = torch.as_tensor((backgrounds[:, None] + noise).clip(0, 255).astype(np.uint8).reshape(-1, 3, 16, 16))
    groups = np.repeat(np.arange(30), 10)
    labels = torch.as_tensor(groups % 2)
    assert fit_probe(pixels, labels).accuracy > 0.95
    assert fit_probe(pixels, labels, groups=groups).accuracy < 0.75


def test_a_group_is_left_out_as_if_it_had_never_been_there():
    torch.manual_seed(0)
    features, labels, groups = torch.randn(60, 8), torch.arange(60) % 3, np.arange(60) // 7
    left_out, _, offset = _leave_one_out(features, labels, groups)
    kernel = features @ features.T
    penalty = PENALTY * kernel.diagonal().mean().item() + 1e-6
    targets = np.eye(3)[labels.numpy()]
    for group in range(9):
        rest = groups != group
        alone = Ridge(penalty).fit(features.numpy()[rest], targets[rest])
        expected = alone.predict(features.numpy()[~rest]) - offset.numpy()
        np.testing.assert_allclose(left_out[torch.as_tensor(~rest)].numpy(), expected, atol=1e-4)


# --- names that suggest groups ----------------------------------------------------------------------------------------

GROUPED = {
    "patient12_003.png": [f"patient{p}_{i:03d}.png" for p in range(8) for i in range(4)],
    "P0012-slice04": [f"P{p:04d}-slice{i:02d}.png" for p in range(8) for i in range(4)],
    "IMG_12_a": [f"IMG_{p}_{i}.jpg" for p in range(8) for i in "abc"],
    "chest X-rays": [f"{p:08d}_{i:03d}.png" for p in range(8) for i in range(5)],
    "pneumonia": [f"person{p}_bacteria_{i}.jpeg" for p in range(8) for i in range(3)],
    "eyes": [f"{p}_{side}.jpeg" for p in range(10, 20) for side in ("left", "right")],
    "videos": [f"video{p}_frame{i:05d}.jpg" for p in range(6) for i in range(9)],
    "slides": [f"SOB_B_A-14-{p}AB-40-{i:03d}.png" for p in range(22540, 22548) for i in range(4)],
    "malaria": [f"C{p}P1thinF_IMG_20150619_11475{p % 10}a_cell_{i}.png" for p in range(30, 38) for i in range(4)],
    "traffic signs": [f"{p:05d}_{i:05d}.ppm" for p in range(8) for i in range(30)],
    "subjects": [f"s{p}_t{t}_{i}.png" for p in range(4) for t in range(2) for i in range(3)],
}
COUNTERS = {
    "0001.png": [f"{i:04d}.png" for i in range(40)],
    "image_0001.jpg": [f"image_{i:04d}.jpg" for i in range(40)],
    "rose_12.jpg": [f"rose_{i}.jpg" for i in range(40)],
    "cat.0.jpg": [f"cat.{i}.jpg" for i in range(40)],
    "ISIC": [f"ISIC_{24306 + i:07d}.jpg" for i in range(40)],
    "ImageNet": [f"n01440764_{100 + 7 * i}.JPEG" for i in range(40)],
    "ImageNet val": [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(40)],
    "birds": [f"Black_Footed_Albatross_{i:04d}_{796000 + i}.jpg" for i in range(40)],
    "Caltech": [f"001_{i:04d}.jpg" for i in range(40)],
    "VOC": [f"{year}_{i:06d}.jpg" for year in range(2007, 2013) for i in range(8)],
    "camera": [f"IMG_20210304_{100000 + 37 * i}.jpg" for i in range(20)]
    + [f"IMG_20210{m}05_{100000 + i}.jpg" for m in range(4, 9) for i in range(5)],
    "DSC": [f"DSC_{i:04d}.JPG" for i in range(40)],
    "hashes": [f"{i * 2654435761 % 2**32:08x}-{i * 40503 % 65536:04x}-{i * 9973 % 65536:04x}.png" for i in range(40)],
    "batches": [f"data_batch_{b}_{i:04d}.png" for b in range(1, 6) for i in range(8)],
    "sizes": [f"tile_224x224_{i}.png" for i in range(40)],
    "folds": [f"fold{f}_{i}.png" for f in range(5) for i in range(8)],
    "dates": [f"2020-01-{d:02d}_{i}.png" for d in range(1, 9) for i in range(5)],
    "plants": [f"{i * 2654435761 % 2**32:08x}-d81a___FREC_Scab {3000 + i}.JPG" for i in range(40)],
    "words": [f"a photo of a cat {i}.png" for i in range(40)],
    "screenshots": [f"Screenshot_2021-03-04-{10 + i % 8}-{i % 60:02d}-{7 * i % 60:02d}.png" for i in range(40)],
    "pairs": [f"image_{i:04d}_{3 * i:04d}.png" for i in range(40)],
    "rendered": [f"DSC_{i:04d}_{i % 7:03d}_{i % 5:03d}.JPG" for i in range(40)],
    "one pair": [f"image_{i:04d}.jpg" for i in range(40)] + ["scan12_1.png", "scan12_2.png"],
}


def named(root, names):
    for folder in ("a", "b"):
        (root / folder).mkdir()
        for name in names:
            (root / folder / name).write_bytes(PNG)
    return root


_file = io.BytesIO()
Image.new("L", (6, 6)).save(_file, "PNG")
PNG = _file.getvalue()


@pytest.mark.parametrize("kind", GROUPED)
def test_file_names_that_look_like_groups_are_said(tmp_path, kind):
    notes = open_dataset(named(tmp_path, GROUPED[kind])).notes
    found = [note for note in notes if "file names look as if" in note]
    assert len(found) == 1
    assert "group='regex:^(.+)[-_ ]'" in found[0]
    # And what it proposes works, and silences it.
    grouped = open_dataset(tmp_path, group="regex:^(.+)[-_ ]")
    assert 3 < len(groups_of(grouped.splits["train"])) <= len(GROUPED[kind]) / 2
    assert not any("file names look as if" in note for note in grouped.notes)


@pytest.mark.parametrize("kind", COUNTERS)
def test_plain_counters_are_not_taken_for_groups(tmp_path, kind):
    assert not [note for note in open_dataset(named(tmp_path, COUNTERS[kind])).notes if "file names" in note]


def test_what_a_name_has_before_its_last_counter():
    assert name_prefix("a/b/patient12_003.png") == "patient12"
    assert name_prefix("P0012-slice04.tif") == "p0012"
    for plain in (
        "0001.png",
        "image_0001.jpg",
        "rose_12.jpg",
        "class3_0001.png",
        "v2_17.png",
        "2021-03-04_7.png",
        "10x_3.png",
    ):
        assert name_prefix(plain) is None, plain


TILES = {
    "TCGA": ([f"TCGA-A1-A0S{p}-x{x}-y{y}.png" for p in "BCDEFG" for x in range(3) for y in range(3)], 2),
    "TCGA, sparse": ([f"TCGA-A{p}-A0SB-x{13 * p + i}-y{7 * i}.png" for p in range(6) for i in range(6)], 2),
    "rows and columns": ([f"slide{p}_{x:04d}_{y:04d}.png" for p in range(6) for x in range(3) for y in range(3)], 2),
    "rows and columns, sparse": ([f"slide{p}_{97 * i:04d}_{31 * i:04d}.png" for p in range(6) for i in range(6)], 2),
    "short numbers": ([f"slide{p}_{x}_{y}.png" for p in range(6) for x in range(3) for y in range(3)], 2),
    "words apart": ([f"slide_{p}_x_{x}_y_{y}.png" for p in range(6) for x in range(3) for y in range(3)], 4),
    "tile and place": ([f"P{p}_tile{i}_r{i}_c{i % 3}.png" for p in range(6) for i in range(6)], 3),
    "place in one": ([f"P{p}_x{i}y{i % 3}.png" for p in range(6) for i in range(6)], 1),
    "magnifications": ([f"SOB-{p}AB-{m}-{i:03d}.png" for p in range(6) for m in (40, 100) for i in range(3)], 2),
}


@pytest.mark.parametrize("kind", TILES)
def test_tiles_are_grouped_by_what_they_are_cut_from(tmp_path, kind):
    names, parts = TILES[kind]
    notes = [note for note in open_dataset(named(tmp_path, names)).notes if "file names look as if" in note]
    assert len(notes) == 1
    group = notes[0].partition("group='")[2].rpartition("'")[0]
    assert group == "regex:^(.+)[-_ ]" + (parts - 1) * ".*[-_ ]"
    assert len(groups_of(open_dataset(tmp_path, group=group).splits["train"])) == 6


def test_a_patient_is_not_taken_for_a_place_where_too_few_groups_would_be_left(tmp_path):
    names = [f"site_{s}_{p:03d}_{i:03d}.png" for s in (1, 2) for p in range(6) for i in range(4)]
    notes = open_dataset(named(tmp_path, names)).notes
    assert any(note.endswith("group='regex:^(.+)[-_ ]'") for note in notes)


@pytest.mark.parametrize("folder", ["patient{}", "{:03d}", "Case-{}/scan"])
@pytest.mark.parametrize("split", ["", "train/"])
def test_folders_inside_class_folders_that_look_like_groups_are_said(tmp_path, folder, split):
    for label in "ab":
        for patient in range(5):
            for i in range(3):
                save(tmp_path / split / label / folder.format(patient) / f"{i}.png", 20 * patient + i)
    notes = [note for note in open_dataset(tmp_path).notes if note.startswith("folders look as if")]
    assert len(notes) == 1
    assert f"3 of one class are in {split}b/{folder.format(4)}" in notes[0]
    save(tmp_path / split / "a" / "loose.png")  # which is a group of its own
    group = notes[0].partition("group='")[2].rpartition("'")[0]
    grouped = open_dataset(tmp_path, group=group)
    expected = {folder.format(patient).partition("/")[0] for patient in range(5)}
    assert groups_of(grouped.splits["train"]) == expected | {"loose.png"}
    assert not any("look as if" in note for note in grouped.notes)


@pytest.mark.parametrize(
    "folders",
    [
        ["monday", "tuesday", "wednesday", "thursday"],
        ["batch_1", "batch_2", "batch_3", "batch_4"],
        ["2020-01-03", "2020-01-04", "2020-02-03", "2020-03-03"],
        ["n02085620", "n02085782", "n02085936", "n02086079"],
        [f"{i * 37 % 256:02x}" for i in range(40)],
        ["scan1", "scan2"],
    ],
)
def test_other_folders_inside_class_folders_are_no_groups(tmp_path, folders):
    assert not [
        n for n in open_dataset(tree(tmp_path, *(f"{c}/{f}" for c in "ab" for f in folders))).notes if "look" in n
    ]


def test_folders_of_a_list_whose_labels_are_no_folders_are_no_groups(tmp_path):
    rows = [[f"images_{k:03d}/{i}.png", "ab"[i % 2]] for k in range(6) for i in range(4)]
    for path, _ in rows:
        save(tmp_path / path)
    assert open_dataset(listed(tmp_path, rows, columns=("path", "label"))).notes == []


def test_images_without_file_names_suggest_nothing():
    assert open_dataset("digits").notes == []


def test_a_tree_of_counters_has_no_note(tmp_path):
    assert open_dataset(tree(tmp_path, "a", "b", count=12)).notes == []


def test_rows_of_one_image_are_said_and_can_be_kept_together(tmp_path):
    raters = [[f"{i}.png", str(i % 2)] for i in range(10) for _ in range(3)]
    for path, *_ in raters:
        save(tmp_path / path)
    data = listed(tmp_path, raters, columns=("path", "label"))
    note = next(
        note for note in open_dataset(data).notes if note.startswith("10 of 10 files of train stand in several rows")
    )
    dataset = open_dataset(data, group=note.partition("group='")[2].partition("'")[0])
    train, val = split_training(dataset, Recipe(data=str(data), folds=3, fold=0))
    assert not set(train.names) & set(val.names)
    data = listed(tmp_path, [[*row, f"p{n}"] for n, row in enumerate(raters)], columns=("path", "label", "patient"))
    assert "0.png is of two groups, p0 and p1" in message(data, group="patient")


def test_the_column_of_labels_is_no_column_of_groups(tmp_path):
    data = by_patient(tmp_path)
    assert "group=label is the column of labels" in message(data, group="label")
    data.write_text(data.read_text().replace("label,patient", "diagnosis,class", 1))
    assert open_dataset(data, group="class").splits["train"].groups is not None
