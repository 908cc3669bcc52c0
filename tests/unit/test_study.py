"""The parts of a study that need no training: intervals, budgets, names, MACs."""

import math
from dataclasses import asdict, replace

import pytest
import timm
import torch
from torch import nn

from vitling.cli.terminal import parse_fractions, parse_seeds
from vitling.errors import UserError
from vitling.evaluation.intervals import confidence_interval
from vitling.methods import METHODS
from vitling.methods.token_labeling import TokenLabeling
from vitling.models.macs import count_macs
from vitling.recipes import Optim, Recipe, load_recipe, read_recipes, scale_epochs
from vitling.studies.results import plus_minus, short_number
from vitling.studies.study import study
from vitling.training.budget import Speed, fit_to_budget

SPEED = Speed(fixed=2.0, step=0.1, validation=0.5, steps_per_epoch=10, validate_every=1, threads=1)


def test_the_interval_of_three_values_is_that_of_student():
    # standard deviation 1, t(0.975, 2) = 4.302653
    assert confidence_interval([9.0, 10.0, 11.0]) == pytest.approx((10.0, 4.302653 / math.sqrt(3)), rel=1e-6)


def test_one_value_has_a_mean_and_no_interval():
    centre, ci95 = confidence_interval([7.0])
    assert centre == 7.0
    assert math.isnan(ci95)
    assert plus_minus(centre, ci95) == "7.00"


def test_numbers_are_short():
    assert [short_number(n) for n in (12, 5200, 701178, 21545550, 4783468544)] == [
        "12",
        "5.20 k",
        "0.70 M",
        "21.5 M",
        "4.78 G",
    ]


def test_a_budget_buys_the_epochs_that_fit_and_more_of_them_on_less_data():
    # 92 % of 100 s, less 2 s, in epochs of 1.5 s; on half of the data an epoch takes 1 s
    assert fit_to_budget(Recipe(), SPEED, 100.0).epochs == 60
    assert fit_to_budget(Recipe(), SPEED, 100.0, fraction=0.5).epochs == 90


LABELLED = Recipe(epochs=60, img_size=32, method="token_labeling", method_args=dict(relabel="auto"))


def test_a_run_that_is_needed_first_gets_a_quarter_of_the_budget_and_the_rest_is_shortened_by_it():
    first = Speed(fixed=1.0, step=0.2, validation=0.0, steps_per_epoch=10, validate_every=1, threads=1)
    # 25 s less 1 s are 12 epochs of 2 s; 92 - 2 - 1 - 24 = 65 s are left for epochs of 1.5 s
    fitted = fit_to_budget(LABELLED, replace(SPEED, first=first), 100.0)
    assert (fitted.epochs, fitted.method_args["annotator_epochs"]) == (43, 12)


def test_the_epochs_of_a_run_that_is_needed_first_stand_in_the_recipe_so_that_it_can_be_repeated():
    shorter = TokenLabeling.with_first_epochs(scale_epochs(LABELLED, 10), 4)
    assert TokenLabeling.first_run(shorter).epochs == 4
    assert TokenLabeling.first_run(LABELLED).epochs == 50
    assert replace(SPEED, first=SPEED).run_seconds(shorter) == pytest.approx(2 + 10 * 1.5 + 2 + 4 * 1.5)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_trains_nothing_first_says_so(name):
    recipe = Recipe(epochs=60, method=name)
    assert METHODS[name].first_run(recipe) is None
    assert METHODS[name].with_first_epochs(recipe, 4) == recipe


def test_a_budget_below_an_epoch_is_refused_with_both_times():
    with pytest.raises(UserError, match=r"an epoch of \w+ takes about 1\.5 s here.*leaves 0\.8 s of the budget of 3 s"):
        fit_to_budget(Recipe(), SPEED, 3.0)


def test_a_speed_survives_its_file_and_one_of_an_older_version_is_read():
    speed = replace(SPEED, first=SPEED)
    tree = asdict(speed)
    assert Speed.from_dict(tree) == speed
    tree["preparing"] = tree.pop("first")
    assert Speed.from_dict(tree) == speed


def test_scaled_epochs_keep_the_shape_of_the_schedule():
    recipe = Recipe(epochs=100, optim=Optim(warmup_epochs=10, decay_epochs=30, cooldown_epochs=5))
    scaled = scale_epochs(recipe, 20)
    assert (scaled.epochs, scaled.optim.warmup_epochs, scaled.optim.decay_epochs) == (20, 2, 6)
    assert scaled.optim.cooldown_epochs == 1


def test_recipes_are_read_with_names_and_settings():
    found = read_recipes(["digits/vit_nano", "low rate: digits/vit_nano optim.lr=1e-4", "epochs=7"])
    assert list(found) == ["digits/vit_nano", "low rate"]
    assert [recipe.epochs for recipe in found.values()] == [7, 7]
    assert found["low rate"].optim.lr == 1e-4
    assert found["digits/vit_nano"].optim.lr == load_recipe("digits/vit_nano").optim.lr


def test_a_recipe_with_settings_and_no_name_is_called_by_both():
    assert list(read_recipes(["digits/vit_nano epochs=9"])) == ["digits/vit_nano epochs=9"]


def test_a_recipe_file_is_called_by_its_stem(tmp_path):
    (tmp_path / "mine.yaml").write_text("epochs: 11\n")
    assert read_recipes([str(tmp_path / "mine.yaml")])["mine"].epochs == 11


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["digits/vit_nan"], "unknown recipe 'digits/vit_nan'. Did you mean digits/vit_nano"),
        (["digits/vit_nano", "digits/vit_nano"], "two recipes are called 'digits/vit_nano'"),
        (["digits/vit_nano epoch=3"], "unknown recipe key 'epoch'"),
        (["digits/vit_nano nonsense"], "'nonsense' is not a setting"),
        (["a: digits/vit_nano 'x"], "with balanced quotes"),
        ([""], "is not a recipe"),
    ],
)
def test_what_is_no_recipe_is_refused(items, message):
    with pytest.raises(UserError, match=message):
        read_recipes(items)


@pytest.mark.parametrize("text", ["", "none", "0", "1,x", "-1"])
def test_what_are_no_seeds_is_refused(text):
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


def test_seeds_and_fractions_are_read():
    assert (parse_seeds("5"), parse_seeds("0,3")) == (5, [0, 3])
    assert parse_fractions("0.1,.5,1") == [0.1, 0.5, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(fractions=(0.5, 1.5)), "the fraction 1.5 is out of range"),
        (dict(seeds=[1, 1]), "seeds=1,1 must be one or more distinct values"),
        (dict(seeds=0), "seeds=none must be one or more"),
        (dict(split="train"), "unknown split 'train'; a study compares test or val"),
        (dict(jobs=0), "jobs=0 is out of range"),
        (dict(recipes={}), "at least one recipe"),
        (dict(recipes={"a b": Recipe(), "a-b": Recipe()}), "'a b' and 'a-b' map to the same folder"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_and_leaves_no_trace(changes, message, tmp_path):
    arguments = dict(recipes={"a": Recipe()}, folder=tmp_path / "study") | changes
    with pytest.raises(UserError, match=message):
        study(**arguments)
    assert not (tmp_path / "study").exists()


def test_a_folder_with_other_files_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex"):
        study({"a": Recipe()}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_macs_of_a_linear_layer_are_its_weights():
    class OnPixels(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(3 * 4 * 4, 10))

    assert count_macs(OnPixels(), (3, 4, 4)) == 480


def test_macs_count_both_products_inside_attention_and_leave_the_model_as_it_was():
    sizes = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=10, class_token=False)
    model = timm.create_model("vit_tiny_patch16_224", global_pool="avg", **sizes).train()
    tokens, width = 4, 16
    patches, products = tokens * 3 * 16 * width, 2 * tokens * tokens * width
    layers = tokens * width * (3 * width + width + 8 * width)
    assert count_macs(model, (3, 8, 8)) == patches + products + layers + width * 10
    assert model.training
    assert model.blocks[0].attn.fused_attn == timm.create_model("vit_tiny_patch16_224").blocks[0].attn.fused_attn
    with torch.device("meta"):
        unreal = timm.create_model("vit_tiny_patch16_224", global_pool="avg", **sizes)
    assert count_macs(unreal, (3, 8, 8)) == count_macs(model, (3, 8, 8))
