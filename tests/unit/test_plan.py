"""The rules of a plan: sizes, patches, epochs, warnings and expectations, without any training."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from vitling.data.probe import probe_accuracy
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import ArrayImages
from vitling.errors import UserError
from vitling.models import build_model
from vitling.models.macs import count_macs, count_saved_bytes
from vitling.planning.conflicts import find_conflicts, pretrained_hint
from vitling.planning.expectation import band, expect
from vitling.planning.machine import Machine, find_machine
from vitling.planning.plan import plan
from vitling.planning.rules import choose
from vitling.planning.sizes import whole_patch
from vitling.planning.survey import Copies, Survey, survey_data
from vitling.recipes import DEFAULT, Recipe, load_recipe, named_recipes, override, replace

SIZES = [f"hybrid_vit_{size}" for size in ("nano", "tiny", "mini", "small", "medium", "base")]


def a_dataset(size=(32, 32), channels=3, counts=(60, 60), **splits) -> Dataset:
    """Images of noise; `splits` are further ones, name=count."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(counts)), counts)
    images = {
        "train": ArrayImages(rng.integers(0, 256, (len(labels), *size, channels), dtype=np.uint8), labels, "train")
    }
    for split, count in splits.items():
        pixels = rng.integers(0, 256, (count, *size, channels), dtype=np.uint8)
        images[split] = ArrayImages(pixels, np.arange(count) % len(counts), split)
    return Dataset("noise", [f"class {i}" for i in range(len(counts))], channels, images, "")


def a_survey(train=5000, classes=10, largest=(32, 32), smallest=None, channels=3, **facts) -> Survey:
    counts = {str(i): train // classes for i in range(classes)}
    known = dict(images={"train": train, "test": 1000}, bits=8, unreadable=[], probe_accuracy=0.5)
    sizes = dict(smallest=smallest or largest, median=largest, largest=largest)
    return Survey("made", class_counts=counts, channels=channels, **{**known, **sizes, **facts})


def a_machine(kind: str = "cpu", macs_per_second: float = 1e10) -> Machine:
    """One whose every step takes as long as its multiply-adds say."""

    def step(candidate) -> float:
        recipe, model, size = candidate
        return recipe.batch_size * count_macs(model, size) / macs_per_second

    return Machine("made", kind, "no", step)


def chosen(dataset: Dataset, *settings: str, kind: str = "cpu", budget: float | None = None, **rate) -> Recipe:
    seen = survey_data(dataset, brief=True)
    return choose(dataset, seen, settings, machine=a_machine(kind, **rate), budget_seconds=budget)[0]


def conflicts(size=(32, 32), **changes) -> list[str]:
    return find_conflicts(override(Recipe(), changes), size, classes=10, channels=3)


@pytest.mark.parametrize(
    ("size", "epochs", "img_size", "patch"),
    [
        ((8, 8), 100, (8, 8), 2),
        ((16, 16), 100, (16, 16), 2),
        ((28, 28), 100, (28, 28), 4),
        ((32, 32), 100, (32, 32), 4),
        ((64, 64), 100, (64, 64), 8),
        ((30, 50), 100, (32, 52), 4),
        ((96, 96), 100, (96, 96), 8),
        ((97, 97), 100, (64, 64), 8),
        ((16, 16), 5, (16, 16), 4),  # of nano, which few epochs get
        ((28, 28), 5, (32, 32), 8),
        ((64, 64), 5, (64, 64), 16),
        ((30, 50), 5, (32, 56), 8),
    ],
)
def test_small_images_keep_their_size_in_whole_patches_and_the_model_can_be_built(size, epochs, img_size, patch):
    recipe = chosen(a_dataset(size), f"epochs={epochs}")
    assert (recipe.img_size, recipe.model_args["patch_size"]) == (img_size, patch)
    build_model(recipe.model, num_classes=2, in_chans=3, img_size=recipe.img_size, **recipe.model_args)


def test_photographs_are_larger_on_a_gpu_and_trained_for_longer():
    data = a_dataset((100, 120))
    cpu, gpu = chosen(data), chosen(data, kind="gpu")
    assert gpu.img_size > cpu.img_size
    assert gpu.epochs > cpu.epochs
    assert gpu.compile == "auto"
    assert cpu.augment.crop == gpu.augment.crop == "resized"
    assert cpu.train_size is None  # crops are cut from the pictures themselves


@pytest.mark.slow  # builds every size, several times
def test_a_longer_budget_changes_the_model_and_not_only_the_epochs():
    data = a_dataset((16, 16), counts=(500, 500))
    models = [chosen(data, budget=10.0 * 4**power).model for power in range(11)]
    assert list(dict.fromkeys(models)) == SIZES  # each larger than the one before
    fast = chosen(data, budget=10.0, macs_per_second=1e13).model
    assert SIZES.index(fast) > SIZES.index(models[0])


def test_few_images_that_are_seen_often_get_the_larger_network():
    few, many = a_dataset((16, 16), counts=(60, 60)), a_dataset((16, 16), counts=(1500, 1500))
    assert [chosen(few, f"epochs={epochs}").model for epochs in (5, 12)] == SIZES[:2]
    assert [chosen(many, f"epochs={epochs}").model for epochs in (5, 18)] == SIZES[:2]  # 13,500 and 48,600 images shown
    assert chosen(few, budget=30.0, macs_per_second=1e9).model == SIZES[1]
    assert chosen(many, budget=30.0, macs_per_second=1e7).model == SIZES[0]


@pytest.mark.slow  # builds the largest networks
def test_many_photographs_on_a_gpu_get_a_large_network_at_a_large_size():
    few, many = a_survey(train=800, largest=(300, 400)), a_survey(train=50_000, classes=100, largest=(300, 400))
    for seen, least, side in ((few, 1e6, 96), (many, 2e7, 160)):
        data = a_dataset((8, 8), counts=[seen.images["train"] // len(seen.class_counts)] * len(seen.class_counts))
        recipe, _ = choose(data, seen, machine=find_machine("cuda:a100"))
        model = build_model(recipe.model, num_classes=2, in_chans=3, img_size=recipe.img_size, **recipe.model_args)
        assert sum(p.numel() for p in model.parameters()) > least
        assert min(recipe.img_size) >= side
        assert recipe.epochs >= 300


def test_a_device_that_is_elsewhere_is_known_by_name_and_slower_ones_take_longer():
    recipe = load_recipe("vitling/base")
    model = build_model(recipe.model, num_classes=2, in_chans=3, img_size=(192, 192), **recipe.model_args)
    rates = [find_machine(name).images_per_second((recipe, model, (3, 192, 192))) for name in ("t4", "cuda:h100")]
    assert rates[0] < rates[1]
    with pytest.raises(UserError, match=r"unknown device 'cuda:a1000'\. Did you mean a100"):
        find_machine("cuda:a1000")


def test_augmentation_grows_with_the_number_of_epochs():
    data = a_dataset((16, 16), counts=(500, 500))
    short, light, medium = (chosen(data, f"epochs={epochs}") for epochs in (5, 20, 60))
    small, long = (chosen(data, f"model={SIZES[size]}", "epochs=400") for size in (2, 3))
    assert short.augment.color_jitter == 0 < light.augment.color_jitter
    assert "cutmix" not in light.method_args
    assert not light.augment.randaugment
    assert medium.method_args["cutmix"]
    assert medium.augment.randaugment.startswith("rand-m5-")
    assert medium.augment.color_jitter == 0  # RandAugment changes colours itself
    assert long.augment.randaugment.startswith("rand-m9-")
    assert (long.augment.color_jitter, long.augment.cutout) == (0, 0)  # RandAugment and erasing do both
    assert small.augment == medium.augment  # a network of up to a million parameters has enough to learn
    assert "mixup" not in medium.method_args
    assert long.method_args["mixup"]
    taught = chosen(data, f"model={SIZES[3]}", "epochs=400", "method=token_labeling")
    assert "mixup" not in taught.method_args


def test_tiny_images_are_neither_moved_nor_mirrored_and_grey_ones_not_mirrored():
    tiny, grey = chosen(a_dataset((8, 8))), chosen(a_dataset(channels=1))
    assert (tiny.augment.crop, tiny.augment.hflip, tiny.test_mirror) == ("none", 0.0, False)
    assert (grey.augment.crop, grey.augment.hflip, grey.test_mirror) == ("pad", 0.0, False)
    assert (chosen(a_dataset()).augment.hflip, chosen(a_dataset()).test_mirror) == (0.5, True)


def test_predictions_ask_the_mirror_image_only_where_training_shows_it():
    assert not chosen(a_dataset(), "augment.hflip=0").test_mirror  # writing in colour, for instance
    assert chosen(a_dataset(channels=1), "augment.hflip=0.5").test_mirror
    assert not chosen(a_dataset(), "test_mirror=false").test_mirror


def test_speed_is_that_of_the_batches_that_are_trained():
    """Few images get small batches, which take more time per image."""

    def step(candidate) -> float:
        return 0.1  # whatever the batch

    data = a_dataset((8, 8), counts=(8, 8))
    machine = Machine("made", "cpu", "no", step)
    for settings in ([], ["model=resnet9_test"], [f"model={SIZES[0]}"]):
        recipe, _ = choose(data, survey_data(data, brief=True), settings, machine=machine, budget_seconds=100.0)
        assert recipe.batch_size < 8
        assert recipe.epochs == round(0.9 * 100 / 0.1 * recipe.batch_size / 14)  # 14 of 16 images are learnt from


def test_a_budget_says_how_many_epochs_there_are_and_what_suits_so_many():
    data = a_dataset((16, 16), counts=(500, 500))
    for model in ([], ["model=resnet9_test"]):
        short = chosen(data, "epochs=400", *model, budget=5.0, macs_per_second=1e9)
        assert short.epochs < 50
        assert "cutmix" not in short.method_args
        assert not short.augment.randaugment
    longest = chosen(a_dataset((8, 8), counts=(8, 8)), f"model={SIZES[0]}", budget=1e6, macs_per_second=1e12)
    assert longest.epochs == 100_000


def test_a_size_that_does_not_fit_into_the_memory_of_a_gpu_is_not_taken():
    data = a_dataset((8, 8), counts=(2000,) * 2)

    def step(candidate) -> float:
        if sum(p.numel() for p in candidate[1].parameters()) > 1e6:
            raise torch.OutOfMemoryError("too large")
        return 0.01

    machine = Machine("made", "gpu", "no", step)
    for budget in (None, 1e5):
        recipe, _ = choose(data, survey_data(data, brief=True), machine=machine, budget_seconds=budget)
        assert recipe.model == SIZES[2]


def test_small_images_begin_at_full_size_in_large_networks_too():
    recipe = chosen(a_dataset((16, 16), counts=(1500, 1500)), kind="gpu")
    assert recipe.model == SIZES[4]
    assert recipe.model_args["stem_full_size"]
    photographs = chosen(a_dataset((100, 100), counts=(1500, 1500)), kind="gpu")
    assert not photographs.model_args["stem_full_size"]


def test_few_images_get_no_large_network_however_long_a_gpu_has():
    few = a_dataset((8, 8), counts=(50, 50))
    assert chosen(few, kind="gpu", budget=1e5, macs_per_second=1e13).model == SIZES[3]
    assert chosen(few, kind="gpu").model == SIZES[3]


def test_fewer_images_get_more_epochs_and_a_batch_that_leaves_four_steps():
    few, many = chosen(a_dataset(counts=(8, 8))), chosen(a_dataset((8, 8), counts=(1000, 1000)))
    assert few.epochs > many.epochs
    assert few.batch_size <= 14 / 3
    assert many.batch_size == load_recipe(DEFAULT).batch_size


def test_very_unbalanced_classes_are_drawn_equally_often():
    assert chosen(a_dataset(counts=(100, 60))).balance == "none"
    assert chosen(a_dataset(counts=(100, 5))).balance == "sampler"


def test_what_the_user_asks_for_comes_first_and_the_rest_follows_it():
    data = a_dataset()
    recipe, choices = choose(data, survey_data(data, brief=True), ["epochs=2", "img_size=60"], machine=a_machine())
    assert (recipe.epochs, recipe.img_size) == (2, 60)
    assert recipe.optim.warmup_epochs < 2
    assert recipe.model_args["patch_size"] == 4  # 8 does not divide 60
    reasons = {choice.what: (choice.value, choice.reason) for choice in choices}
    assert reasons["epochs"] == ("2", "as you asked")
    assert reasons["image size"] == ("60", "as you asked")
    assert chosen(data, "model_args.patch_size=16").model_args["patch_size"] == 16


def test_another_model_gets_none_of_the_sizes_and_rates_meant_for_ours():
    assert chosen(a_dataset()).optim.name == "sgd"
    assert chosen(a_dataset(), "model=resnet18").optim.name == "adamw"
    assert chosen(a_dataset(), "model=resnet18", "optim.name=sgd").optim.name == "sgd"
    assert chosen(a_dataset(), "model=resnet18").optim.lr_factors == {}
    assert chosen(a_dataset(), "model=resnet18").model_args == {}
    assert chosen(a_dataset((100, 120)), "model=deit_tiny_patch16_224").img_size == (224, 224)


def test_a_size_of_the_house_family_that_is_named_is_trained_as_its_own_recipe_says():
    for size, model in zip(("nano", "tiny", "small"), (SIZES[0], SIZES[1], SIZES[3]), strict=True):
        recipe, choices = choose(
            data := a_dataset(), survey_data(data, brief=True), [f"model={model}"], machine=a_machine()
        )
        own = load_recipe(f"vitling/{size}")
        assert (recipe.model, recipe.optim.name, recipe.ema_decay) == (model, own.optim.name, own.ema_decay)
        assert {key: recipe.model_args[key] for key in own.model_args} == own.model_args
        assert ("model", model, "as you asked") in {(choice.what, choice.value, choice.reason) for choice in choices}
    assert chosen(a_dataset(), f"model={SIZES[3]}", "epochs=2").epochs == 2


def test_another_model_gets_a_smaller_patch_where_its_own_is_too_large_for_the_images():
    assert chosen(a_dataset((28, 28)), "model=vit_tiny_patch16_224").model_args == {"patch_size": 4}
    assert chosen(a_dataset((100, 120)), "model=deit_tiny_patch16_224").model_args == {}
    assert chosen(a_dataset((8, 8)), "model=lvvit_test").model_args == {"patch_size": 2}
    assert chosen(a_dataset((8, 8)), "model=dhvt_test", "model_args.patch_size=4").model_args == {"patch_size": 4}


def test_every_choice_has_a_reason():
    data = a_dataset(counts=(100, 5))
    _, choices = choose(data, survey_data(data, brief=True), machine=a_machine())
    assert all(choice.reason for choice in choices)
    wanted = {"model", "image size", "patch", "epochs", "averaging", "augmentation", "agent", "balance"}
    assert wanted <= {choice.what for choice in choices}


def test_small_patches_are_warned_of_only_without_a_convolutional_stem():
    assert "patch_size=4" in conflicts(model="vit_tiny_patch16_224", **{"model_args.patch_size": 2})[0]
    assert not conflicts(model="vit_tiny_patch16_224", **{"model_args.patch_size": 4})
    assert not conflicts(model="dhvt_test", **{"model_args.patch_size": 2})
    assert conflicts(model="dhvt_test", **{"model_args.patch_size": 2, "model_args.sope": False})


def test_many_images_with_a_test_split_leave_more_to_learn_from():
    many = dict(counts=(600,) * 10, size=(8, 8), channels=1)
    assert chosen(a_dataset(**many, test=10)).val_fraction == 0.05
    assert chosen(a_dataset(**many, test=10), "val_fraction=0.2").val_fraction == 0.2
    for other in (a_dataset(**many), a_dataset(**many, test=10, val=10), a_dataset(counts=(50,) * 10, test=10)):
        assert chosen(other).val_fraction == 0.1


def test_a_larger_plain_vit_is_warned_of_and_a_larger_hybrid_or_cnn_is_not():
    wide = {"model_args.embed_dim": 384, "model_args.depth": 1, "model_args.num_heads": 6}
    assert "61.25" in conflicts(model="vit_tiny_patch16_224", **wide, **{"model_args.patch_size": 4})[0]
    assert not conflicts(model="dhvt_test", **wide)
    assert not conflicts(model="resnet18")


def test_mixing_images_with_token_labels_is_warned_of():
    taught = dict(model="lvvit_test", method="token_labeling")
    assert "mixup and cutmix" in conflicts(**taught, **{"method_args.mixup": 0.8, "method_args.cutmix": 1.0})[0]
    assert not conflicts(**taught)


def test_dropped_positions_are_warned_of_only_without_convolutions():
    without = dict(model="dhvt_test") | {"model_args.sope": False, "model_args.abs_pos_embed": False}
    plain = {**without, "model_args.daff": False}
    assert any("58.72" in line for line in conflicts(**plain))
    assert any("58.72" in line for line in conflicts(**plain, **{"model_args.head_tokens": False}))
    assert not conflicts(**without)
    assert not conflicts(**{**plain, "model_args.abs_pos_embed": True})
    none = {"model_args.patch_size": 4, "model_args.pos_embed": "none"}
    assert "58.72" in conflicts(model="vit_tiny_patch16_224", **none)[0]


def test_our_own_small_recipes_hit_no_warning():
    for name in ("folder/vit_nano", "folder/dhvt_nano", "folder/resnet18", DEFAULT):
        recipe = named_recipes()[name]()
        size = (recipe.img_size, recipe.img_size) if isinstance(recipe.img_size, int) else recipe.img_size or (32, 32)
        assert find_conflicts(recipe, size, classes=10, channels=3) == []


def test_published_weights_are_recommended_for_few_colour_photographs_only():
    photographs = a_survey(train=800, largest=(300, 400), smallest=(200, 200))
    assert "init=timm/" in pretrained_hint(photographs, Recipe())
    assert not pretrained_hint(photographs, Recipe(init="runs/a"))
    for other in (
        a_survey(train=800),
        a_survey(train=800, largest=(300, 400), channels=1),
        a_survey(train=100_000, largest=(300, 400)),
        a_survey(train=800, largest=(300, 400), bits=12),
    ):
        assert not pretrained_hint(other, Recipe())


def test_expectations_rise_with_the_images_shown_and_widen_with_few_test_images():
    band = expect(a_survey(), 200_000)
    assert 0.1 < band.low < band.high < 1
    assert expect(a_survey(), 2_000_000).low > band.low > expect(a_survey(), 20_000).low
    few = expect(a_survey(images={"train": 5000, "test": 20}), 200_000)
    assert few.low < band.low
    assert few.high > band.high
    assert expect(a_survey(probe_accuracy=0.99), 200_000).low > 0.9


@pytest.mark.parametrize("probe", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("shown", [1, 1e5, 1e9])
@pytest.mark.parametrize("tested", [1, 359, 10_000])
def test_the_band_lies_within_what_is_possible_and_is_never_a_single_number(probe, shown, tested):
    found = band(probe, 10, shown, tested)
    assert 0 <= found.low < found.high <= 1


def test_nothing_is_promised_where_the_labels_may_be_noise():
    assert expect(a_survey(probe_accuracy=0.11), 200_000).low < 0.1


def test_a_probe_learns_what_patches_show_and_nothing_from_noise():
    import torch

    rng = np.random.default_rng(0)
    labels = torch.arange(120) % 3
    stripes = np.stack([np.indices((32, 32))[0] * 40, np.indices((32, 32))[1] * 40, np.indices((32, 32)).sum(0) * 40])
    pixels = (stripes[labels][:, None] + rng.integers(0, 60, (120, 1, 32, 32))) % 256
    assert probe_accuracy(torch.tensor(pixels, dtype=torch.uint8), labels) > 0.95
    noise = torch.tensor(rng.integers(0, 256, (120, 1, 32, 32)), dtype=torch.uint8)
    assert probe_accuracy(noise, labels) < 0.5
    assert probe_accuracy(torch.zeros_like(noise), labels) < 0.5
    assert probe_accuracy(noise[:1], labels[:1]) == 0


def test_a_survey_counts_splits_classes_copies_and_leaks():
    data = a_dataset(counts=(20, 30), test=10, val=4)
    data.splits["train"].array[7] = data.splits["train"].array[3]
    data.splits["test"].array[2] = data.splits["train"].array[11]
    seen = survey_data(data)
    assert seen.images == {"train": 50, "test": 10, "val": 4}
    assert seen.class_counts == {"class 0": 20, "class 1": 30}
    assert seen.imbalance == 1.5
    assert seen.copies == Copies(1, [("train[7]", "train[3]")])
    assert seen.leaks == {"test": Copies(1, [("test[2]", "train[11]")]), "val": Copies(0, [])}
    assert seen.looked_at == seen.total == 64
    brief = survey_data(data, brief=True)
    assert brief.copies is brief.leaks is brief.probe_accuracy is None


def test_classes_that_are_only_counted_are_taken_for_grades_where_they_are_few():
    def notes(names: list[str]) -> str:
        data = a_dataset((8, 8), counts=(4,) * len(names))
        return " ".join(survey_data(dataclasses.replace(data, class_names=names), brief=True).notes)

    assert "look like grades" in notes([str(i) for i in range(5)])
    assert "look like grades" in notes([str(i) for i in range(1, 11)])  # somebody called them so
    assert not notes([str(i) for i in range(10)])


def test_large_data_is_looked_at_in_part(monkeypatch):
    monkeypatch.setattr("vitling.planning.survey.MOST_ROWS", 30)
    seen = survey_data(a_dataset(counts=(50, 50), test=50))
    assert seen.looked_at == 30
    assert seen.total == 150


def test_the_data_is_no_setting():
    with pytest.raises(UserError, match="leave data= out"):
        plan("digits", ["data=cifar10"])
    with pytest.raises(UserError, match="Did you mean epochs"):
        plan("digits", ["epoch=3"], brief=True)


def test_a_given_recipe_is_left_as_it_is():
    recipe = load_recipe("digits/vit_nano")
    planned = plan("digits", ["epochs=7"], recipe=recipe, brief=True)
    assert planned.recipe == override(recipe, ["epochs=7"])
    assert planned.choices == planned.warnings == []
    assert planned.seconds is None


@pytest.mark.parametrize(("size", "patch"), [(60, 4), (100, 4), (75, 8), (299, 16), (225, 16)])
def test_a_size_that_no_patch_divides_does_not_get_thousands_of_tokens(size, patch):
    assert whole_patch((size, size)) == patch


@pytest.mark.parametrize(("median", "side"), [((20, 30), 32), ((33, 40), 48), ((80, 90), 64)])
def test_small_photographs_are_not_enlarged(median, side):
    data = a_dataset((100, 120))
    seen = a_survey(train=120, classes=2, smallest=(18, 20), median=median, largest=(120, 100))
    assert choose(data, seen, machine=a_machine())[0].img_size == (side, side)


@pytest.mark.parametrize("probe", [0.12, 0.55])
@pytest.mark.parametrize("shown", [100, 300, 1000])
def test_a_band_is_never_upside_down(probe, shown):
    found = band(probe, 10 if probe < 0.5 else 2, shown, 1000)
    assert 0 <= found.low <= found.high <= 1


def test_a_size_that_does_not_fit_into_memory_is_not_taken():
    def find(candidate):
        raise torch.OutOfMemoryError("CUDA out of memory")

    machine = Machine("made", "gpu", "bf16", find)
    assert machine.images_per_second((Recipe(), nn.Linear(2, 2), (3, 8, 8))) == 0
    assert not machine.measured


@pytest.mark.slow
def test_a_network_is_not_planned_for_a_card_that_is_too_small_for_it():
    recipe = load_recipe("vitling/base")
    model = build_model(recipe.model, num_classes=10, in_chans=3, img_size=(192, 192), **recipe.model_args)
    candidate = (recipe, model, (3, 192, 192))
    assert find_machine("cuda:rtx4060").images_per_second(candidate) == 0
    assert find_machine("cuda:a100").images_per_second(candidate) > 0
    parts = (replace(recipe, accumulate=4), *candidate[1:])
    assert find_machine("cuda:rtx4060").images_per_second(parts) > 0


def test_what_waits_for_the_backward_pass_is_counted_once_and_without_weights():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.GELU(), nn.Linear(5, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # The input of either linear layer, and what the activation began from.
    assert count_saved_bytes(model, (3, 2, 2)) == 4 * (12 + 5 + 5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
