"""The parts of an improvement that need no training: who gets which images, what is tried, who goes on, and what may be claimed."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from vitling.data.sources.dataset import open_dataset
from vitling.errors import UserError
from vitling.improvement.bracket import plan_bracket, survivors
from vitling.improvement.candidates import (
    RULES,
    Candidate,
    Situation,
    augmentation,
    combine,
    propose,
    relative_cost,
)
from vitling.improvement.confirmation import count_pairs
from vitling.improvement.holdout import divide, hold_out
from vitling.improvement.record import Improvement
from vitling.improvement.symptoms import Symptoms
from vitling.planning.survey import survey_data
from vitling.recipes import Augment, Recipe, load_recipe, override

# --- who gets which images --------------------------------------------------------------------------------------------


def labels(images: int, classes: int = 4) -> np.ndarray:
    return np.arange(images) % classes


def shown(rows) -> set[tuple[str, int]]:
    return {("train", i) for i in rows.train.tolist()} | {("val", i) for i in rows.val.tolist()}


@pytest.mark.parametrize("val", [12, 100, 799, 800, 5000])
@pytest.mark.parametrize("own_val", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_what_confirms_takes_part_in_nothing_else(val, own_val, again):
    found = divide(labels(2000), labels(val), own_val=own_val, may_train_again=again)
    confirming, choosing, validating = shown(found.confirm), shown(found.choose), shown(found.validate)
    assert confirming
    assert choosing
    assert validating
    assert not confirming & (choosing | validating)
    # A run that is compared as it is has learned from none of them.
    assert found.again or not len(found.confirm.train)


def test_a_large_validation_split_is_halved_and_no_training_image_is_taken():
    found = divide(labels(9000), labels(1000), own_val=False, may_train_again=True)
    assert (len(found.confirm), len(found.choose)) == (500, 500)
    assert not len(found.choose.train)
    assert not found.again


def test_a_small_validation_split_is_enlarged_from_the_training_images_and_that_is_said():
    found = divide(labels(1300), labels(140), own_val=False, may_train_again=True)
    assert found.again
    assert len(found.confirm.train) == 260  # a fifth: fewer than wanted, since more would hurt
    assert len(found.choose) > 140
    assert "140 validation images are few: 260 training images are held out to confirm" in found.note
    larger = divide(labels(9500), labels(500), own_val=False, may_train_again=True)
    assert len(larger.confirm) == 1000


def test_without_the_time_to_train_the_run_again_all_of_the_validation_split_confirms():
    found = divide(labels(1300), labels(140), own_val=False, may_train_again=False)
    assert len(found.confirm.val) == 140
    assert not found.again
    assert not len(found.choose.val)
    assert set(found.validate.train.tolist()) < set(found.choose.train.tolist())


def test_a_class_with_an_only_validation_image_leaves_it_to_those_that_choose():
    val = np.array([0] * 500 + [1] * 499 + [2])
    found = divide(labels(3000, 3), val, own_val=True, may_train_again=True)
    assert 999 in found.choose.val
    assert len(found.confirm) + len(found.choose) == 1000


def write_data(path, per_class: int, classes: int = 3):
    """An npz whose pixels say which image each is."""
    count = per_class * classes
    pixels = np.zeros((count, 16, 16), np.uint8)
    pixels[:, 0, 0], pixels[:, 0, 1] = np.arange(count) % 256, np.arange(count) // 256
    np.savez(
        path,
        train_images=pixels,
        train_labels=labels(count, classes),
        test_images=pixels[:classes],
        test_labels=labels(classes, classes),
    )
    return str(path)


def numbers(images) -> set[int]:
    return {int(images.read(i)[0, 0, 0]) + 256 * int(images.read(i)[0, 1, 0]) for i in range(len(images))}


def test_neither_trials_nor_the_winner_can_open_what_confirms_and_trials_have_no_test_split(tmp_path):
    data = write_data(tmp_path / "data.npz", 200)
    recipe = Recipe(data=data, model="vit_tiny_patch16_224")
    held, images = hold_out(open_dataset(data), recipe, tmp_path / "parts.json", may_train_again=True)
    confirming = numbers(images["confirm"])
    assert len(confirming) == held.counts["confirm"] == 108
    trial, final = (open_dataset(made.data) for made in (held.trial(recipe), held.final(recipe)))
    for dataset in (trial, final):
        for split in ("train", "val"):
            assert not confirming & numbers(dataset.splits[split])
        assert not numbers(dataset.splits["train"]) & numbers(dataset.splits["val"])
    assert set(trial.splits) == {"train", "val"}
    assert set(final.splits) == {"train", "val", "test"}
    assert numbers(final.splits["train"]) | numbers(final.splits["val"]) | confirming == set(range(600))
    assert len(final.splits["train"]) > len(trial.splits["train"])
    assert [len(trial.splits["train"]), len(trial.splits["val"])] == [held.counts["trial_train"], held.counts["choose"]]


def test_a_recipe_with_folds_and_a_fraction_is_divided_within_what_it_used(tmp_path):
    data = write_data(tmp_path / "data.npz", 200)
    recipe = Recipe(data=data, model="vit_tiny_patch16_224", folds=5, fold=2, fraction=0.5)
    held, _ = hold_out(open_dataset(data), recipe, tmp_path / "parts.json", may_train_again=False)
    assert held.counts["confirm"] == 120
    assert held.counts["final_train"] + held.counts["validate"] == 240
    made = held.trial(recipe)
    assert (made.folds, made.fraction) == (0, 1.0)


def test_too_few_images_of_a_class_are_one_line_that_names_it(tmp_path):
    count = np.array([0] * 100 + [1] * 100 + [2] * 3)
    np.savez(
        tmp_path / "few.npz",
        train_images=np.zeros((203, 16, 16), np.uint8),
        train_labels=count,
        class_names=["a", "b", "rare"],
    )
    recipe = Recipe(data=str(tmp_path / "few.npz"), model="vit_tiny_patch16_224")
    with pytest.raises(UserError, match="too few images"):
        hold_out(open_dataset(recipe.data), recipe, tmp_path / "parts.json", may_train_again=True)
    assert not (tmp_path / "parts.json").exists()


# --- what is tried ----------------------------------------------------------------------------------------------------

FINE = Symptoms(
    train_top1=0.97,
    held_out_top1=0.93,
    held_out_images=100,
    worst=[("3", 0.4, 10)],
    imbalance=1.1,
    loss_falls=False,
    epochs=50,
    seconds=60.0,
)
OVERFITTING = replace(FINE, train_top1=1.0, held_out_top1=0.6)
UNDERFITTING = replace(FINE, train_top1=0.5, held_out_top1=0.48)
DIGITS = load_recipe("digits/vit_nano")


@pytest.fixture(scope="module")
def digits():
    return survey_data(open_dataset("digits"), brief=True)


def situation(survey, recipe=DIGITS, symptoms=FINE, size=(8, 8), **given) -> Situation:
    return Situation(override(recipe, {"img_size": size}), size, symptoms, survey, steps=500, **given)


def colour(survey):
    return replace(survey, channels=3, smallest=(32, 32), median=(32, 32), largest=(32, 32))


def photographs(survey):
    return replace(survey, channels=3, smallest=(90, 120), median=(300, 400), largest=(600, 800))


def named(found: list) -> dict:
    return {entry.name: entry for entry in found}


def test_every_idea_is_tried_or_left_out_with_a_reason(digits):
    candidates, omitted = propose(situation(digits))
    assert len(candidates) + len(omitted) == len(RULES)
    assert all(entry.reason for entry in (*candidates, *omitted))
    assert len({entry.name for entry in (*candidates, *omitted)}) == len(RULES)


def test_what_the_run_is_already_is_not_advised(digits):
    one_block = override(DIGITS, {"model_args.depth": 1})
    _, omitted = propose(situation(digits, one_block))
    assert "one block" in named(omitted)["smaller"].reason
    _, omitted = propose(situation(digits, load_recipe("digits/dhvt_nano")))
    assert named(omitted)["DHVT"].reason == "dhvt_nano is one"
    plain = override(DIGITS, {"augment.crop": "none", "augment.hflip": 0.0})
    _, omitted = propose(situation(digits, plain))
    assert named(omitted)["weaker augmentation"].reason == "there is none"


def test_what_the_data_does_not_ask_for_is_left_out(digits):
    _, omitted = propose(situation(digits))
    left = named(omitted)
    assert "1.1 times" in left["balance"].reason
    assert "8 x 8" in left["larger images"].reason
    assert "no pre-trained weights were given" in left["pre-training"].reason
    candidates, _ = propose(situation(digits, symptoms=replace(FINE, imbalance=12.0)))
    assert named(candidates)["balance"].changes == {"balance": "sampler"}


def test_what_is_expected_first_follows_from_what_the_run_shows(digits):
    house = override(load_recipe("vitling/tiny"), {"augment.crop": "pad"})
    many = colour(digits)
    over, _ = propose(situation(many, house, OVERFITTING, (32, 32)))
    under, _ = propose(situation(many, house, UNDERFITTING, (32, 32)))
    assert over[0].name == "stronger augmentation"
    assert under[0].name == "larger"
    names = [candidate.name for candidate in over]
    assert names.index("smaller") < names.index("larger")
    assert [candidate.weight for candidate in over] == sorted((candidate.weight for candidate in over), reverse=True)


def test_the_sizes_of_the_house_family_come_with_their_own_optimiser(digits):
    candidates, _ = propose(situation(colour(digits), load_recipe("vitling/nano"), UNDERFITTING, (32, 32)))
    changed = named(candidates)["larger"].apply(override(load_recipe("vitling/nano"), {"img_size": (32, 32)}))
    assert (changed.model, changed.optim.name) == ("hybrid_vit_tiny", "sgd")
    assert changed.model_args["stem_full_size"]
    assert changed.img_size == (32, 32)


def test_a_larger_plain_vit_is_left_out_with_the_row_of_the_paper(digits):
    wide = Recipe(model="vit_tiny_patch16_224", model_args=dict(patch_size=4, embed_dim=192, depth=2, num_heads=3))
    _, omitted = propose(situation(colour(digits), wide, FINE, (32, 32)))
    assert "Bootstrapping paper, table 1" in named(omitted)["larger"].reason
    assert "DHVT paper, table 4" in named(omitted)["smaller patches"].reason


def test_photographs_can_be_shown_larger_and_smaller(digits):
    house = load_recipe("vitling/nano")
    candidates, _ = propose(situation(photographs(digits), house, FINE, (64, 64)))
    assert named(candidates)["larger images"].changes["img_size"] == (96, 96)
    assert min(named(candidates)["smaller images"].changes["img_size"]) < 64


def test_what_cannot_be_built_is_left_out_with_the_reason_of_whoever_refuses_it(digits):
    cnn = Recipe(model="resnet18", data="digits")
    candidates, omitted = propose(situation(colour(digits), cnn, FINE, (32, 32)))
    assert "resnet18 has no patches" in named(omitted)["smaller patches"].reason
    assert "token labels" in named(omitted)  # it has none
    assert "larger" not in named(candidates)


def test_weights_that_were_given_are_tried_first_unless_they_know_what_is_held_out(digits):
    candidates, _ = propose(situation(digits, init="weights.safetensors"))
    assert candidates[0].name == "pre-training"
    _, omitted = propose(situation(digits, init="runs/a", init_reason="runs/a has learnt from the same images"))
    assert "same images" in named(omitted)["pre-training"].reason


def test_a_method_of_its_own_is_not_replaced(digits):
    agent = override(DIGITS, {"method": "bootstrap", "method_args": {"agent": "resnet9_nano", "feature_weight": 0.0}})
    _, omitted = propose(situation(digits, agent))
    for name in ("agent", "token labels", "distillation"):
        assert "method=bootstrap already" in named(omitted)[name].reason


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"augment.crop": "none", "augment.hflip": 0.0}, "none"),
        ({}, "light"),
        ({"method_args.cutmix": 1.0}, "moderate"),
        ({"augment.randaugment": "rand-m9-mstd0.5-inc1"}, "strong"),
    ],
)
def test_augmentation_has_four_levels_and_the_next_one_up_and_down_is_tried(digits, changes, level):
    recipe = override(
        Recipe(
            model="vit_tiny_patch16_224",
            model_args=dict(patch_size=4, embed_dim=16, depth=2, num_heads=2),
            augment=Augment(),
        ),
        changes,
    )
    assert augmentation(recipe) == level
    levels = ("none", "light", "moderate", "strong")
    here = situation(colour(digits), recipe, FINE, (32, 32))
    candidates = named(propose(here)[0])
    for name, step in (("stronger augmentation", 1), ("weaker augmentation", -1)):
        place = levels.index(level) + step
        if not 0 <= place < 4:
            assert name not in candidates
        else:
            assert levels.index(augmentation(candidates[name].apply(recipe))) in (place, place + 1)


def test_a_network_of_twice_the_depth_costs_about_twice_as_much(digits):
    shallow = Recipe(model="vit_tiny_patch16_224", model_args=dict(patch_size=4, embed_dim=32, depth=4, num_heads=2))
    here = situation(colour(digits), shallow, FINE, (32, 32))
    assert relative_cost(here.recipe, here) == 1
    assert relative_cost(override(here.recipe, {"model_args.depth": 8}), here) == pytest.approx(2, abs=0.1)
    taught = override(here.recipe, {"method": "distillation", "method_args": {"teacher": "auto"}})
    assert relative_cost(taught, here) > 1


def test_two_changes_are_combined_only_where_they_do_not_touch_the_same():
    larger = Candidate("larger", {"model": "a", "model_args": {}, "optim": {}}, "")
    faster = Candidate("higher rate", {"optim.lr": 1.0}, "")
    mirror = Candidate("mirroring", {"augment.hflip": 0.5}, "")
    colours = Candidate("colours", {"augment.color_jitter": 0.5}, "")
    agent = Candidate("agent", {"method": "bootstrap", "method_args": {}}, "")
    mixing = Candidate("mixing", {"method_args.cutmix": 1.0}, "")
    both = combine(larger, mirror)
    assert both.changes == {**larger.changes, **mirror.changes}
    assert both.parents == ("larger", "mirroring")
    assert combine(mirror, colours) is not None
    assert combine(larger, faster) is None
    assert combine(agent, mixing) is None


# --- who goes on ------------------------------------------------------------------------------------------------------


def test_the_rounds_halve_and_their_wall_time_is_what_there_is():
    bracket = plan_bracket(8, 240.0, least_seconds=5, seeds=1, jobs=1, overhead=0.0)
    assert bracket.sizes == (8, 4, 2)
    first = bracket.round_seconds(0, 240.0, 0.0)
    spent = sum(2**number * first * size for number, size in enumerate(bracket.sizes))
    assert (first, spent) == (10.0, 240.0)
    # what is left after a round that took longer is what the next ones share
    assert bracket.round_seconds(1, 120.0, 0.0) == 15.0
    assert bracket.round_seconds(2, 80.0, 1.0) == (80 - 2) / 2


@pytest.mark.parametrize(("seeds", "jobs", "waves"), [(1, 1, 8), (2, 1, 16), (1, 2, 4), (1, 3, 3), (3, 2, 12)])
def test_several_at_a_time_take_less_and_several_seeds_more(seeds, jobs, waves):
    bracket = plan_bracket(8, 1000.0, least_seconds=1, seeds=seeds, jobs=jobs, overhead=0.0)
    assert bracket.waves(0) == waves


def test_a_short_time_has_room_for_fewer_candidates_and_a_shorter_one_for_none():
    sizes = [
        found and found.sizes[0]
        for found in (
            plan_bracket(20, s, least_seconds=6, seeds=1, jobs=1, overhead=0.5) for s in (600, 100, 40, 13, 12)
        )
    ]
    assert sizes == [12, 4, 2, 2, None]


def test_the_baseline_always_goes_on_with_the_best_others_and_the_loss_breaks_a_tie():
    scores = {"as it is": (80.0, -0.5), "a": (90.0, -0.3), "b": (90.0, -0.2), "c": (70.0, -0.1)}
    assert survivors(scores, "as it is", 3) == ["as it is", "b", "a"]
    assert survivors(scores, "as it is", 2) == ["as it is", "b"]


# --- what may be claimed ----------------------------------------------------------------------------------------------


def test_a_difference_that_the_interval_separates_from_zero_is_claimed_with_it():
    winner = [True] * 360 + [False] * 40
    start = [True] * 340 + [False] * 60
    found = count_pairs(winner, start)
    assert (found.only_winner, found.only_start, found.images) == (20, 0, 400)
    assert found.better
    assert (
        found.sentence("larger")
        == f"larger is better by 5.0 ± {found.ci95:.1f} points on 400 images that took no part in the choice"
    )
    assert 2.0 < found.ci95 < 2.5
    assert found.p_value == pytest.approx(2 / 2**20)


def test_a_difference_that_may_be_chance_is_not_claimed():
    found = count_pairs([True, False, True, True] * 10, [True, True, True, False] * 10)
    assert not found.better
    assert found.sentence("larger").startswith("nothing was better: larger differs by +0.0 ± ")
    worse = count_pairs([False] * 50, [True] * 50)
    assert worse.sentence("larger").startswith("nothing was better: larger is worse by 100.0")


# --- the record -------------------------------------------------------------------------------------------------------

RECORD = {
    "vitling": "0.2.0",
    "asked": {"source": "run", "budget_seconds": 60.0, "changes": [], "seeds": 1, "init": ""},
    "may_train_again": False,
    "recipe": {"model": "vit_nano"},
    "holdout": dict(note="why", again=False, trial_train=9, choose=3, final_train=9, validate=3, confirm=3),
    "environment": {"command": "vitling improve run", "torch": "2"},
    "symptoms": {},
    "observations": ["it knows all"],
    "candidates": [
        dict(name=name, changes={"epochs": 3}, reason="why", evidence="", weight=1.0, parents=[])
        for name in ("baseline", "longer")
    ],
    "omitted": [{"name": "other", "reason": "why"}],
    "bracket": {"sizes": [2], "seeds": 1, "jobs": 1},
    "images_per_second": 100.0,
    "rounds": [{"seconds": 6.0, "names": ["baseline", "longer"], "scores": {"baseline": [50, -1], "longer": [60, -1]}}],
    "search_until": 30.0,
    "final_seconds": 20.0,
    "winner": "longer",
    "confirmation": dict(
        images=3, only_winner=1, only_start=0, winner_top1=1, start_top1=0.5, difference=1, low=-1, high=1, p_value=1
    ),
    "spent_seconds": 50.0,
    "sentence": "nothing was better",
}


def places(tree, path=()):
    """Every place of a tree but those that are free."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if key not in ("vitling", "symptoms", "changes", "torch", "recipe", "seeds", "init"):
            yield (*path, key)
            if isinstance(value, dict | list):
                yield from places(value, (*path, key))


def test_a_record_that_is_whole_is_read(tmp_path):
    (tmp_path / "improve.json").write_text(json.dumps(RECORD))
    state = Improvement(tmp_path)
    assert state.finished
    assert [row[0] for row in state.table()[1]] == ["longer", "baseline"]


@pytest.mark.parametrize("path", list(places(RECORD)), ids=lambda path: ".".join(map(str, path)))
def test_a_record_that_is_damaged_anywhere_is_one_line(tmp_path, path):
    tree = copy.deepcopy(RECORD)
    above = tree
    for key in path[:-1]:
        above = above[key]
    above[path[-1]] = [{"x": "y"}]
    (tmp_path / "improve.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match=r"improve\.json is corrupted: "):
        Improvement(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"candidates": []},
        {"winner": "nobody"},
        {"rounds": 3 * RECORD["rounds"]},
        {"rounds": [{"seconds": 6.0, "names": ["baseline", "nobody"]}]},
        {"bracket": {"sizes": [], "seeds": 1, "jobs": 1}},
        {"images_per_second": 0},
        {"sentence": ""},
    ],
)
def test_a_record_that_does_not_fit_itself_is_one_line(tmp_path, change):
    (tmp_path / "improve.json").write_text(json.dumps({**RECORD, **change}))
    with pytest.raises(UserError, match=r"improve\.json is corrupted: "):
        Improvement(tmp_path)


@pytest.mark.parametrize("key", ["rounds", "candidates", "symptoms", "observations", "omitted"])
def test_a_record_that_lacks_a_step_is_one_line(tmp_path, key):
    (tmp_path / "improve.json").write_text(json.dumps({k: v for k, v in RECORD.items() if k != key}))
    with pytest.raises(UserError, match=r"improve\.json is corrupted: it "):
        Improvement(tmp_path)
