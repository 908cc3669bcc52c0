import hashlib
import json

import pytest
import yaml

from vitling.errors import UserError
from vitling.recipes import (
    Augment,
    Optim,
    Recipe,
    all_keys,
    from_dict,
    load_recipe,
    named_recipes,
    override,
    replace,
    save_recipe,
    to_dict,
)
from vitling.runs.asked import asked_for, is_digest_of, recipe_digest
from vitling.runs.run import Run


@pytest.mark.parametrize("name", named_recipes())
def test_every_named_recipe_survives_yaml_and_says_what_it_is(name, tmp_path):
    recipe = load_recipe(name)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert named_recipes()[name].__doc__.strip()


def test_settings_take_the_declared_type_of_their_field():
    recipe = override(
        Recipe(),
        ["optim.lr=5e-4", "img_size=32", "optim.betas=0.9,0.95", "model_args.depth=3", "freeze=norm.*,cls_token"],
    )
    assert recipe.optim.lr == 5e-4
    assert recipe.img_size == 32
    assert recipe.optim.betas == (0.9, 0.95)
    assert recipe.model_args == {"depth": 3}
    assert recipe.freeze == ("norm.*", "cls_token")


@pytest.mark.parametrize("text", ["img_size=24x32", "img_size=24,32", "img_size=[24, 32]"])
def test_a_size_that_is_not_square_can_be_written_in_three_ways(text):
    assert override(Recipe(), [text]).img_size == (24, 32)


def test_scientific_notation_in_free_arguments_is_a_number():
    assert override(Recipe(), ["method_args.label_smoothing=1e-1"]).method_args == {"label_smoothing": 0.1}


def test_text_stays_as_it_was_typed():
    recipe = override(Recipe(), ["init=runs/no #2: yes", "model=@odd"])
    assert (recipe.init, recipe.model) == ("runs/no #2: yes", "@odd")
    assert override(Recipe(), {"data": "/photographs #2"}).data == "/photographs #2"


def test_a_name_pattern_may_hold_dots():
    assert override(Recipe(), ["optim.lr_factors.blocks.*=0.1"]).optim.lr_factors == {"blocks.*": 0.1}


def test_yaml_words_for_true_and_false_still_mean_the_choice_off_and_on():
    assert override(Recipe(), ["compile=off"]).compile == "off"
    assert override(Recipe(), ["compile=on"]).compile == "on"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optim.lrr=1", "unknown recipe key 'optim.lrr'. Did you mean optim.lr"),
        ("epoch=3", "unknown recipe key 'epoch'. Did you mean epochs or soup_epochs?"),
        ("fit=padd", "fit=padd is not one of resize, pad, crop"),
        ("epochs=1.5", "epochs=1.5 must be an integer"),
        ("epochs=many", "epochs=many must be an integer"),
        ("epochs=0", "epochs=0 is out of range"),
        ("epochs", "write key=value"),
        ("fraction=0", "fraction=0.0 is out of range"),
        ("img_size=1,2,3", "img_size=1,2,3"),
        ("optim=3", "optim must be a group of keys"),
        ("model_args=3", "model_args is a group"),
        ("optim.warmup_epochs=200", "optim.warmup_epochs=200 leaves nothing of epochs=100"),
        ("optim.decay_all=maybe", "must be true or false"),
        ("folds=1", "folds=1 is out of range"),
        ("fold=4", "fold=4 needs folds= too"),
        ("epochs=[1", "epochs=[1 cannot be read"),
        ("epochs=.inf", "epochs=inf must be an integer"),
        ("seed=-1", "seed=-1 is out of range"),
        ("img_size=0", "img_size=0 is out of range"),
        ("img_size=-8", "img_size=-8 is out of range"),
        ("patience_epochs=-1", "patience_epochs=-1 is out of range"),
        ("optim.clip_grad=-1", "optim.clip_grad=-1.0 is out of range"),
        ("optim.cooldown_epochs=100", "optim.cooldown_epochs=100 leaves nothing of epochs=100"),
    ],
)
def test_a_wrong_setting_says_what_was_given_and_what_is_allowed(setting, message):
    with pytest.raises(UserError) as error:
        override(Recipe(), [setting])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_fold_outside_of_the_folds_is_refused():
    with pytest.raises(UserError, match="fold=5 is out of range; it must be 0 to 4"):
        Recipe(folds=5, fold=5)


def test_unknown_keys_in_a_file_are_refused(tmp_path):
    (tmp_path / "r.yaml").write_text("model: resnet18\nepocs: 3\n")
    with pytest.raises(UserError, match="unknown recipe key 'epocs'"):
        load_recipe(tmp_path / "r.yaml")


def test_a_file_that_is_no_yaml_or_not_there_is_one_clear_line(tmp_path):
    (tmp_path / "r.yaml").write_text("model: [resnet18\n")
    with pytest.raises(UserError, match="is not valid YAML"):
        load_recipe(tmp_path / "r.yaml")
    with pytest.raises(UserError, match="no recipe file"):
        load_recipe(tmp_path / "absent.yaml")


def test_an_unknown_recipe_name_is_met_with_a_suggestion():
    with pytest.raises(UserError, match="Did you mean digits/vit_nano"):
        load_recipe("digits/vit_nanno")


def test_keys_are_all_known():
    assert {"optim.lr", "augment.erase", "fit", "compile"} <= set(all_keys())


def test_a_variation_changes_only_what_it_names():
    base = Recipe()
    assert replace(base, epochs=7) == Recipe(epochs=7)
    assert base.augment == Augment()
    assert base.optim == Optim()


# --- records of earlier versions --------------------------------------------------------------------------------------

NEWEST = (
    "labels",
    "group",
    "test_crops",
    "test_shifts",
    "soup_epochs",
    "unlabelled",
    "unlabelled_method",
    "unlabelled_time",
    "unlabelled_test",
)  # added last
NEWER = ("test_crop", "interpolation", "test_mirror", "keep", "shuffle_buffer", "test_split", *NEWEST)
NEWER_AUGMENT = ("crop_at", "crop_when", "interpolation", "crop_padding_mode", "cutout")


def as_recorded_before(recipe):
    """What a version without the newer keys wrote."""
    tree = to_dict(recipe)
    for key in NEWER:
        tree.pop(key)
    for key in NEWER_AUGMENT:
        tree["augment"].pop(key)
    return tree


@pytest.mark.parametrize("crop", ["none", "pad", "resized"])
@pytest.mark.parametrize("train_size", [None, 72, (72, 72)])
def test_a_record_without_the_newer_keys_means_what_it_meant(tmp_path, crop, train_size):
    recipe = Recipe(img_size=(64, 64), train_size=train_size, fit="crop", augment=Augment(crop=crop))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(as_recorded_before(recipe)))))
    read = load_recipe(tmp_path)
    # Without a train_size, images were fitted to the model's size before they were cropped.
    expected = (64, 64) if crop == "resized" and train_size is None else train_size
    assert read == replace(recipe, train_size=expected)
    assert (read.test_crop, read.interpolation, read.augment.interpolation) == (None, "bicubic", "random")


@pytest.mark.parametrize("key", NEWER)
def test_a_record_without_the_newest_key_alone_means_what_it_meant(tmp_path, key):
    recipe = Recipe(img_size=(64, 64), train_size=(72, 72))
    tree = json.loads(json.dumps(to_dict(recipe)))
    del tree[key]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    assert load_recipe(tmp_path) == recipe


def test_a_file_of_a_few_keys_is_no_record(tmp_path):
    (tmp_path / "mine.yaml").write_text("img_size: 64\ntrain_size: null\naugment: {crop: resized}\n")
    assert load_recipe(tmp_path / "mine.yaml").train_size is None


def test_a_recipe_that_is_written_now_is_read_as_it_is(tmp_path):
    recipe = Recipe(img_size=(64, 64), augment=Augment(crop="resized"))
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path) == recipe


@pytest.mark.parametrize("crop", ["pad", "resized"])
@pytest.mark.parametrize("train_size", [None, (64, 64), (72, 72)])
def test_checkpoints_of_earlier_versions_belong_to_their_recipes(crop, train_size):
    recipe = Recipe(img_size=(64, 64), train_size=train_size, augment=Augment(crop=crop))
    text = json.dumps(json.loads(json.dumps(as_recorded_before(recipe))), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert is_digest_of(digest, from_dict(as_recorded_before(recipe)))
    assert is_digest_of(recipe_digest(recipe), recipe)
    # A crop of the picture itself is not what an earlier version trained with, and neither are other settings.
    assert is_digest_of(digest, recipe) == (crop == "pad" or train_size is not None)
    assert not is_digest_of(digest, replace(recipe, test_crop=0.9))
    assert not is_digest_of(digest, replace(recipe, epochs=7))


def test_checkpoints_without_the_newest_keys_belong_to_their_recipes():
    recipe = Recipe(img_size=(64, 64), test_crop=0.9, augment=Augment(crop="resized"))
    tree = {key: value for key, value in to_dict(recipe).items() if key not in NEWEST}
    digest = hashlib.sha256(json.dumps(json.loads(json.dumps(tree)), sort_keys=True).encode()).hexdigest()
    assert is_digest_of(digest, recipe)
    assert not is_digest_of(digest, replace(recipe, unlabelled="images"))


def test_the_command_of_a_run_that_was_recorded_before_still_finds_it(tmp_path):
    recipe = Recipe(img_size=64, augment=Augment(crop="resized"))
    asked = asked_for(recipe, None)
    (tmp_path / "run.json").write_text(json.dumps({"asked": {**asked, "recipe": as_recorded_before(recipe)}}))
    assert Run(tmp_path).claim(asked)
    with pytest.raises(UserError, match="holds another run"):
        Run(tmp_path).claim(asked_for(replace(recipe, test_crop=0.9), None))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.2])
def test_a_test_crop_out_of_range_is_refused(share):
    with pytest.raises(UserError, match=r"test_crop=.* is out of range; it must be more than 0 and at most 1"):
        Recipe(test_crop=share)


@pytest.mark.parametrize("scale", ["0,0", "0.5,0.1", "-1,1", "0.5,2"])
def test_a_crop_scale_out_of_range_is_refused_before_images_are_read(scale):
    with pytest.raises(UserError, match=r"augment.crop_scale=.* is out of range; it must be (more than 0|a range)"):
        override(Recipe(), [f"augment.crop_scale={scale}"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("interpolation=random", "interpolation=random is not one of bilinear, bicubic"),
        ("augment.interpolation=nearest", "is not one of bilinear, bicubic, random"),
        ("augment.crop_at=32", "is not one of img_size, original"),
        ("augment.crop_when=never", "is not one of first, last"),
        ("test_crop=half", "test_crop=half must be a number"),
    ],
)
def test_settings_of_the_images_way_are_checked(setting, message):
    with pytest.raises(UserError, match=message):
        override(Recipe(), [setting])


def test_the_papers_recipes_crop_fit_and_order_as_the_releases_do():
    recipes = {name: make() for name, make in named_recipes().items()}
    crops = {name: r for name, r in recipes.items() if r.augment.crop == "resized" and r.fit == "crop"}
    assert {name.split("/")[0] for name in crops} == {"bootstrapping", "dhvt", "lvvit", "t2t"}
    assert all(r.train_size is None for r in recipes.values())
    shares = {(name.split("/")[0], r.test_crop) for name, r in crops.items()}
    assert shares == {("bootstrapping", 0.875), ("dhvt", 0.875), ("t2t", 0.9), ("lvvit", 0.9), ("lvvit", 1.0)}
    assert {name for name, r in crops.items() if r.test_crop == 1.0} == {
        f"lvvit/{name}"
        for name in (
            "imagenet_m",
            "imagenet_m_384",
            "imagenet_m_448",
            "imagenet_l",
            "imagenet_l_448",
            "imagenet_l_512",
            "table8_m",
            "table8_l",
        )
    }
    assert {name.split("/")[0] for name, r in recipes.items() if r.augment.crop_when == "last"} == {"lvvit"}
    assert {name.split("/")[0] for name, r in recipes.items() if r.augment.crop_at == "original"} == {"bootstrapping"}
    for name, recipe in recipes.items():
        if recipe.method_args.get("labels") == "labels/imagenet":
            assert recipe.method_args["axes"] == "official", name
