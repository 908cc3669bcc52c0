import pytest

from vitling.errors import UserError
from vitling.recipes import Augment, Optim, Recipe, all_keys, load_recipe, named_recipes, override, replace, save_recipe


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
        ("epoch=3", "unknown recipe key 'epoch'. Did you mean epochs?"),
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
