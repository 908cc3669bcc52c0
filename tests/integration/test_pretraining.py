"""Learning without labels, end to end: the command, resuming, what begins from it, and a run of two stages."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from command import error
from command import vitling as run_command
from PIL import Image
from safetensors.torch import load_file

import vitling
from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.dataset import open_dataset
from vitling.errors import UserError
from vitling.planning.plan import plan
from vitling.recipes import Optim, Recipe, replace
from vitling.training.beginning import train
from vitling.training.settings import Settings
from vitling.training.signals import Interrupted

pytestmark = pytest.mark.slow

ONE_THREAD = Settings(threads=1, precision="no")
TINY = ["model=boot_vit_test", "img_size=16", "epochs=2", "batch_size=32", "fraction=0.2"]
LABELS = Recipe(
    model="boot_vit_test",
    img_size=16,
    data="digits",
    epochs=2,
    fraction=0.2,
    batch_size=32,
    optim=Optim(warmup_epochs=0),
)


class StopAt(Callback):
    """Behaves like a user who presses Ctrl-C in a given step of a training that calls itself so."""

    def __init__(self, step, method):
        self.at, self.method, self.now = step, method, ""

    def on_start(self, facts):
        self.now = facts["method"]

    def on_step(self, epoch, step, steps, loss, images_per_second):
        if self.now == self.method and epoch * steps + step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


class Said(Callback):
    def __init__(self):
        self.lines = []

    def log(self, message):
        self.lines.append(message)


def what_is_left(path):
    weights = load_file(path / "best" / "model.safetensors")
    return (path / "metrics.jsonl").read_text(), {name: value.tolist() for name, value in weights.items()}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "pretrained"
    longer = [
        "model=boot_vit_test",
        "model_args.patch_size=4",
        "img_size=16",
        "epochs=5",
        "batch_size=32",
        "fraction=0.5",
        "optim.lr=3e-3",
    ]
    return vitling.pretrain("digits", path, longer, settings=ONE_THREAD)


@pytest.mark.parametrize(
    ("method", "model"),
    [("masked_images", "boot_vit_test"), ("masked_images", "resnet9_test"), ("dino", "resnet9_test")],
)
def test_a_resumed_pretraining_repeats_the_uninterrupted_one(tmp_path, method, model):
    changes = [*TINY[1:], f"model={model}", f"method={method}"]
    vitling.pretrain("digits", tmp_path / "whole", changes, settings=ONE_THREAD)
    with pytest.raises(Interrupted):
        vitling.pretrain("digits", tmp_path / "parts", changes, settings=ONE_THREAD, callback=StopAt(11, method))
    vitling.pretrain("digits", tmp_path / "parts", changes, settings=ONE_THREAD)
    assert what_is_left(tmp_path / "whole") == what_is_left(tmp_path / "parts")


def test_pictures_are_drawn_while_it_learns(tmp_path):
    """Every fifth validation, not only when it is over."""
    drawn = []

    class Looks(vitling.Callback):
        def on_validation(self, record, timing):
            drawn.append((tmp_path / "run" / "reconstructions.png").exists())

    vitling.pretrain("digits", tmp_path / "run", [*TINY[1:], "epochs=6"], settings=ONE_THREAD, callback=Looks())
    assert drawn == [False] * 4 + [True] * 2


def test_a_run_without_labels_says_what_it_measured(pretrained):
    records = pretrained.metrics()
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5]
    assert records[-1]["val_loss"] < records[0]["val_loss"]
    assert all("val_top1" not in record for record in records)
    assert 0 <= records[-1]["val_neighbours_top1"] <= 1  # digits has labels, and the last validation looks at them
    assert pretrained.info["best"].keys() == {"val_loss", "epoch"}
    assert pretrained.info["best"]["epoch"] == 5
    assert what_is_left(pretrained.path)[1] == {
        name: value.tolist() for name, value in load_file(pretrained.path / "last" / "model.safetensors").items()
    }
    assert "without labels" in (pretrained.path / "report.html").read_text()
    with Image.open(pretrained.path / "reconstructions.png") as picture:
        assert picture.width > 300


@pytest.mark.parametrize(
    "words",
    [("evaluate",), ("export", "--to", "timm"), ("diagnose",), ("improve", "--budget", "1m"), ("relabel", "digits")],
)
def test_commands_that_need_a_classifier_say_what_to_do(pretrained, words):
    command, *others = words
    assert f"vitling train DATA init={pretrained.path}" in error(command, pretrained.path, *others)
    assert not pretrained.path.with_name("pretrained-improved").exists()


def test_a_training_takes_network_and_size_from_the_run_and_everything_but_the_classifier(pretrained, tmp_path):
    planned = plan("digits", [f"init={pretrained.path}", "epochs=1", "fraction=0.2", "batch_size=32"], brief=True)
    assert (planned.recipe.model, planned.recipe.img_size) == ("boot_vit_test", (16, 16))
    assert any("from whose weights it begins" in choice.reason for choice in planned.choices)
    recipe = replace(planned.recipe, optim=Optim(lr=1e-12, min_lr=0.0, warmup_epochs=0, weight_decay=0.0))
    run = vitling.train(recipe, tmp_path / "run", settings=ONE_THREAD, dataset=planned.dataset)
    before, after = (load_file(path / "best" / "model.safetensors") for path in (pretrained.path, run.path))
    assert set(after) - set(before) == {"head.weight", "head.bias"}
    assert all(torch.allclose(value, after[name], atol=1e-6) for name, value in before.items())


def test_another_model_than_that_of_the_run_is_refused(pretrained):
    with pytest.raises(UserError, match=r"cannot begin from .* whose model is boot_vit_test"):
        plan("digits", [f"init={pretrained.path}", "model=resnet9_nano"], brief=True)


def save_images(folder, images):
    folder.mkdir(parents=True, exist_ok=True)
    for i, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{i}.png")


@pytest.fixture
def folders(tmp_path):
    write_folders(tmp_path, channels=3)
    return tmp_path


def write_folders(tmp_path, channels):
    """Labelled images with a test split, and unlabelled ones, three of which are test images."""
    rng = np.random.default_rng(0)

    def draw(count):
        return rng.integers(0, 256, (count, 16, 16, channels), dtype=np.uint8)

    test = draw(6)
    for name, part in (("a", slice(0, 3)), ("b", slice(3, 6))):
        save_images(tmp_path / "data" / "train" / name, draw(20))
        save_images(tmp_path / "data" / "test" / name, test[part])
    save_images(tmp_path / "loose", [*draw(60), *test[:3]])


def test_both_stages_resume_exactly_and_test_images_never_enter(folders):
    recipe = replace(LABELS, data=str(folders / "data"), unlabelled=str(folders / "loose"), fraction=1.0, batch_size=8)
    recipe, said = replace(recipe, unlabelled_time=0.5), Said()
    whole = train(recipe, folders / "whole", settings=ONE_THREAD, callback=said)
    assert any("3 of the unlabelled images are also in the test split" in line for line in said.lines)
    assert whole.info["first_stage"]["images"] == 60
    assert whole.first_stage.info["data"]["train_images"] + whole.first_stage.info["data"]["val_images"] == 60
    again = folders / "again"
    for method in ("masked_images", "supervised"):
        with pytest.raises(Interrupted):
            train(recipe, again, settings=ONE_THREAD, callback=StopAt(2, method))
    train(recipe, again, settings=ONE_THREAD)
    assert what_is_left(folders / "whole") == what_is_left(again)
    assert what_is_left(folders / "whole" / "pretraining") == what_is_left(again / "pretraining")


def test_images_of_the_data_itself_are_taken_without_those_it_validates_or_tests_on(folders):
    recipe = replace(
        LABELS, data=str(folders / "data"), unlabelled=str(folders / "data"), fraction=1.0, batch_size=8, epochs=1
    )
    run = train(recipe, folders / "run", settings=ONE_THREAD)
    assert run.info["first_stage"] == {
        "images": run.info["data"]["train_images"],
        "left_out": {"validation": run.info["data"]["val_images"], "test": 0},
        "with_test": False,
        "method": "masked_images",
    }


def test_test_images_enter_where_that_is_asked_for_and_the_run_says_so(folders):
    recipe = replace(
        LABELS, data=str(folders / "data"), unlabelled=str(folders / "loose"), fraction=1.0, batch_size=8, epochs=1
    )
    said = Said()
    run = vitling.train(replace(recipe, unlabelled_test=True), folders / "run", settings=ONE_THREAD, callback=said)
    assert run.info["first_stage"]["images"] == 63
    assert any("unlabelled_test=true" in line for line in said.lines)
    assert "unlabelled_test=true" in (run.path / "report.html").read_text()


def test_a_run_that_has_seen_the_test_images_is_begun_from_only_where_that_is_asked_for(folders):
    short = [*TINY[:2], "epochs=1", "batch_size=8"]
    pretrained = vitling.pretrain(folders / "loose", folders / "pretrained", short, settings=ONE_THREAD)
    own = dict(init=str(pretrained.path), model_args=pretrained.recipe.model_args)
    recipe = replace(LABELS, data=str(folders / "data"), fraction=1.0, batch_size=8, epochs=1, **own)
    with pytest.raises(UserError, match=r"has learnt from 3 images that .* tests on"):
        vitling.train(recipe, folders / "run", settings=ONE_THREAD)
    assert not (folders / "run").exists()
    # Its weights under another name, and a run that has begun from it.
    longer = vitling.pretrain(
        folders / "data", folders / "longer", [*short, f"init={pretrained.path}"], settings=ONE_THREAD
    )
    for init in (pretrained.path / "best", pretrained.path / "best" / "model.safetensors", longer.path):
        with pytest.raises(UserError, match=r"has learnt from 3 images that .* tests on"):
            vitling.train(replace(recipe, init=str(init)), folders / "run", settings=ONE_THREAD)
    said = Said()
    run = vitling.train(replace(recipe, unlabelled_test=True), folders / "run", settings=ONE_THREAD, callback=said)
    assert any(line.startswith("3 test images were learnt from without labels") for line in said.lines)
    assert run.info["seen_tests"] == 3
    assert "3 test images were learnt from without labels" in (run.path / "report.html").read_text()


def test_an_ensemble_says_that_its_networks_have_seen_test_images(folders):
    recipe = replace(LABELS, data=str(folders / "data"), unlabelled=str(folders / "loose"), unlabelled_test=True)
    recipe = replace(recipe, fraction=1.0, batch_size=8, epochs=1)
    run = vitling.train_folds(recipe, folders / "run", 2, settings=ONE_THREAD)
    assert run.info["first_stage"]["with_test"]
    assert "unlabelled_test=true" in (run.path / "report.html").read_text()


def test_a_first_stage_has_its_own_root_and_no_groups(folders):
    rows = [
        f"{path.relative_to(folders)},{path.parent.name},{i % 9}"
        for i, path in enumerate(sorted((folders / "data/train").rglob("*.png")))
    ]
    (folders / "lists").mkdir()
    (folders / "lists" / "data.csv").write_text("\n".join(["path,label,patient", *rows]))
    recipe = replace(
        LABELS, data=str(folders / "lists" / "data.csv"), unlabelled=str(folders / "data"), group="patient"
    )
    recipe = replace(recipe, fraction=1.0, batch_size=4, epochs=1)
    settings = replace(ONE_THREAD, reading=Reading(root=folders))
    assert vitling.train(recipe, folders / "run", settings=settings).first_stage.finished


def test_images_with_transparency_are_left_out_too(tmp_path):
    write_folders(tmp_path, channels=4)
    own = dict(data=str(tmp_path / "data"), channels=4, unlabelled=str(tmp_path / "loose"))
    recipe = replace(LABELS, **own, fraction=1.0, batch_size=8, epochs=1)
    assert train(recipe, tmp_path / "run", settings=ONE_THREAD).info["first_stage"]["left_out"]["test"] == 3
    # Learnt from as colours, tested on with transparency.
    short = [*TINY[:2], "epochs=1", "batch_size=8"]
    colours = vitling.pretrain(tmp_path / "loose", tmp_path / "colours", short, settings=ONE_THREAD)
    recipe = replace(recipe, unlabelled="", init=str(colours.path), model_args=colours.recipe.model_args)
    with pytest.raises(UserError, match="has learnt from 3 images"):
        vitling.train(recipe, tmp_path / "again", settings=ONE_THREAD)


KILLED = """
import os, sys
from vitling.callbacks import Callback
from vitling.recipes import Optim, Recipe, replace
from vitling.training.beginning import train
from vitling.training.settings import Settings


class Killed(Callback):
    def on_start(self, facts):
        self.method = facts["method"]

    def on_step(self, *step):
        if self.method == "supervised":
            os._exit(9)


optim = Optim(warmup_epochs=0)
recipe = Recipe(model="boot_vit_test", img_size=16, data="digits", unlabelled="digits", epochs=90_001, fraction=0.2, optim=optim)
recipe = replace(recipe, unlabelled_time=0.2)
train(recipe, sys.argv[1], settings=Settings(threads=1, precision="no", budget_seconds=60), callback=Killed())
"""


def test_a_budgeted_run_that_is_killed_as_its_second_stage_begins_resumes(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    first = (tmp_path / "run" / "pretraining" / "best" / "model.safetensors").read_bytes()
    recipe = replace(LABELS, unlabelled="digits", unlabelled_time=0.2, epochs=90_001, batch_size=Recipe.batch_size)
    assert vitling.load_run(tmp_path / "run").begun_recipe().epochs != recipe.epochs
    settings = Settings(threads=1, precision="no", budget_seconds=60.0)  # its clock starts now
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", settings=settings, callback=StopAt(3, "supervised"))
    assert (tmp_path / "run" / "pretraining" / "best" / "model.safetensors").read_bytes() == first


@pytest.mark.parametrize(("share", "epochs"), [(0.5, 4), (0.75, 12), (0.2, 1)])
def test_both_stages_share_the_images_that_are_shown(folders, share, epochs):
    recipe = replace(LABELS, data=str(folders / "data"), unlabelled=str(folders / "data"), fraction=1.0, batch_size=8)
    recipe, said = replace(recipe, epochs=4, unlabelled_time=share), Said()
    run = train(recipe, folders / "run", settings=ONE_THREAD, callback=said)
    assert run.first_stage.recipe.epochs == epochs
    assert any(f"{100 * share:.0f} % of the images that are shown" in line for line in said.lines)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (dict(unlabelled_method="dino"), "add unlabelled=IMAGES"),
        (dict(unlabelled_test=True), "nothing of that"),
        (dict(unlabelled_time=0.5), "there is none"),
    ],
)
def test_settings_of_a_first_stage_want_one(tmp_path, args, said):
    with pytest.raises(UserError, match=said):
        train(replace(LABELS, **args), tmp_path / "run", settings=ONE_THREAD)


def test_the_commands_work_on_a_flat_folder_and_in_one_go(folders):
    out = run_command(
        "pretrain", folders / "loose", *TINY[:3], "batch_size=8", "--out", folders / "run", "--threads", 1
    )
    assert f"next: vitling train DATA init={folders / 'run'}" in out
    out = run_command(
        *("train", folders / "data", "--unlabelled", folders / "loose", "model=resnet9_test", "unlabelled_method=dino"),
        *("epochs=1", "batch_size=8", "--out", folders / "both", "--threads", 1),
    )
    trained = {part: json.loads((folders / "both" / part / "run.json").read_text()) for part in ("pretraining", ".")}
    first = 60 * trained["pretraining"]["epochs_trained"]
    shown = first + trained["."]["data"]["train_images"] * trained["."]["epochs_trained"]
    assert f"first stage: dino on 60 images without labels, {100 * first / shown:.0f} % of the images that are" in out
    assert json.loads((folders / "both" / "run.json").read_text())["first_stage"]["left_out"]["test"] == 3


def test_a_plan_says_what_is_learnt_from_first(folders):
    out = run_command(
        "plan", folders / "data", f"unlabelled={folders / 'loose'}", "unlabelled_time=0.25", "--threads", "1"
    )
    assert "masked_images on 63 images without labels, 25 % of the time" in " ".join(out.split())
    assert "no such path" in error("plan", "digits", "unlabelled=nowhere/at/all", "--threads", "1")


def test_a_list_of_paths_begins_where_it_is_said_to(folders):
    names = sorted(path.name for path in (folders / "loose").iterdir())
    (folders / "lists").mkdir()
    (folders / "lists" / "plain.txt").write_text("\n".join(names))
    data = f"unlabelled:{folders / 'lists' / 'plain.txt'}"
    images = open_dataset(data, root=folders / "loose", group=r"regex:^(\d)").splits["train"]
    assert images.read(0).shape == (16, 16, 3)
    assert images.groups.tolist() == [name[0] for name in names]
    with pytest.raises(UserError, match="names a column or an array"):
        open_dataset(data, root=folders / "loose", group="patient")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrain", "nowhere/at/all"], "no such path"),
        (["pretrain", "digits", "method=supervised"], "learns from labels"),
        (["pretrain", "digits", "method=dinno"], "Did you mean dino"),
        (["pretrain", "digits", "unlabelled_method=dino"], "takes method=dino"),
        (["pretrain", "digits", "keep=best"], "keep=last"),
        (["pretrain", "digits", "method_args.mask_ratio=2"], "mask_ratio"),
        (["pretrain", "digits", "unlabelled_test=maybe"], "true or false"),
        (["pretrain", ""], "names no images"),
        (["pretrain", "digits", "method=dino", "batch_size=4", "accumulate=4"], "set batch_size=64"),
        (["train", "digits", "method=dino"], "vitling pretrain"),
        (["train", "digits", "--unlabelled", "nowhere/at/all", "model=boot_vit_test", "epochs=1"], "no such path"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, words, said):
    assert said in error(*words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_pretraining_leaves_the_test_split_alone_unless_it_is_asked_for(folders):
    short = [*TINY[:2], "epochs=1", "batch_size=8"]
    run = vitling.pretrain(folders / "data", folders / "without", short, settings=ONE_THREAD)
    images = run.info["data"]
    assert (images["train_images"] + images["val_images"], run.uses_test_images) == (40, False)
    run = vitling.pretrain(folders / "data", folders / "with", [*short, "unlabelled_test=true"], settings=ONE_THREAD)
    images = run.info["data"]
    assert (images["train_images"] + images["val_images"], run.uses_test_images) == (46, True)
    assert "the test split was among the images" in (run.path / "report.html").read_text()


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_arrays_and_lists_are_learnt_from(tmp_path, precision):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
    short = [*TINY[:2], "epochs=1", "batch_size=8"]
    where = replace(ONE_THREAD, precision=precision, page=False)
    for name, images in (("array", pixels), ("list", [Image.fromarray(one) for one in pixels])):
        assert vitling.pretrain(images, tmp_path / name, short, settings=where).finished
    with pytest.raises(UserError, match="give uint8 of"):
        vitling.pretrain(pixels / 255, tmp_path / "floats", short, settings=where)


def test_a_study_has_nothing_to_compare_without_labels(tmp_path):
    recipe = replace(LABELS, method="dino", keep="last")
    with pytest.raises(UserError, match="without labels, so it has no accuracy to compare"):
        vitling.study({"one": recipe}, tmp_path / "study")
    with pytest.raises(UserError, match="goes by the clock"):
        vitling.study({"one": replace(LABELS, unlabelled="digits")}, tmp_path / "study", budget_seconds=60)


# -- self-training -----------------------------------------------------------------------------------------------------


def make_pretrained(folders):
    short = [*TINY[:2], "epochs=1", "batch_size=8"]
    return vitling.pretrain(folders / "loose", folders / "pretrained", short, settings=ONE_THREAD)


@pytest.fixture
def taught(folders):
    """A teacher for the labelled images, and the recipe of a student with the loose ones."""
    recipe = replace(LABELS, data=str(folders / "data"), fraction=1.0, batch_size=8)
    teacher = train(recipe, folders / "teacher", settings=ONE_THREAD)
    args = {"teacher": str(teacher.path), "unlabelled": str(folders / "loose"), "confidence": 0.5}
    return folders, replace(recipe, method="self_training", method_args=args)


def test_self_training_resumes_exactly_and_leaves_the_datas_own_images_out(taught):
    folders, recipe = taught
    said = Said()
    train(recipe, folders / "whole", settings=ONE_THREAD, callback=said)
    assert any("3 of the unlabelled images are in the data itself" in line for line in said.lines)
    labels = load_file(folders / "whole" / "soft_labels.safetensors")
    assert labels["rows"].max() < 63
    assert (labels["soft_labels"].amax(dim=1) >= 0.5).all()
    assert torch.allclose(labels["soft_labels"].sum(dim=1), torch.ones(len(labels["rows"])))
    names = open_dataset(f"unlabelled:{folders / 'loose'}").splits["train"].names
    asked = [folders / "loose" / names[row] for row in labels["rows"].tolist()]
    answers = vitling.Predictor(folders / "teacher").probabilities(asked)  # which are calibrated
    torch.testing.assert_close(labels["soft_labels"], torch.from_numpy(answers), rtol=1e-4, atol=1e-5)
    with pytest.raises(Interrupted):
        train(recipe, folders / "parts", settings=ONE_THREAD, callback=StopAt(3, "self_training"))
    train(recipe, folders / "parts", settings=ONE_THREAD)
    assert what_is_left(folders / "whole") == what_is_left(folders / "parts")


def test_token_labels_take_unlabelled_images_too_and_resume_exactly(taught):
    folders, recipe = taught
    args = {**recipe.method_args, "labels": "truth", "unlabelled_share": 0.5}
    recipe = replace(recipe, model="boot_vit_test", model_args={}, method="token_labeling", method_args=args)
    train(recipe, folders / "whole", settings=ONE_THREAD)
    with pytest.raises(Interrupted):
        train(recipe, folders / "parts", settings=ONE_THREAD, callback=StopAt(3, "token_labeling"))
    train(recipe, folders / "parts", settings=ONE_THREAD)
    assert what_is_left(folders / "whole") == what_is_left(folders / "parts")
    for args, said in (({"teacher": "a"}, "give both or neither"), ({"confidence": 0.7}, "are for unlabelled images")):
        with pytest.raises(UserError, match=said):
            train(replace(recipe, method_args={"labels": "truth", **args}), folders / "run", settings=ONE_THREAD)


def test_a_teacher_that_is_sure_of_nothing_is_said_and_leaves_nothing(taught):
    folders, recipe = taught
    strict = replace(recipe, method_args={**recipe.method_args, "confidence": 1.0})
    with pytest.raises(UserError, match="is sure of no unlabelled image"):
        train(strict, folders / "run", settings=ONE_THREAD)
    assert not (folders / "run").exists()
    assert "knows no classes" in error(
        *("train", folders / "data", "method=self_training", f"method_args.unlabelled={folders / 'loose'}"),
        *(f"method_args.teacher={make_pretrained(folders).path}", *TINY[:3], "batch_size=8", "--out", folders / "run"),
    )
    assert not (folders / "run").exists()
    with pytest.raises(UserError, match=r"needs method_args\.teacher=RUN"):
        train(replace(recipe, method_args={}), folders / "run", settings=ONE_THREAD)
