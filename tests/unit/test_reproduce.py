"""The papers' tables as data, and the plans made of them."""

import json
import math
import shlex
from pathlib import Path

import pytest
import typer
from PIL import Image

from vitling.cli.main import app
from vitling.cli.terminal import parse_budget, parse_seeds, reproduce_command
from vitling.errors import UserError
from vitling.methods import find_method
from vitling.models import build_model
from vitling.models.macs import count_macs
from vitling.models.weights import save_for_timm
from vitling.papers import illustrations, is_figure, tables
from vitling.papers.coverage import coverage_markdown
from vitling.papers.estimate import BACKWARD, build_on_meta, count_sizes, training_macs
from vitling.papers.figures import draw_figure
from vitling.papers.next_steps import find_missing, find_next_step, works
from vitling.papers.plan import Request, leave_out_unready, make_plan
from vitling.papers.reproduction import choose_test_splits, preview, reproduce
from vitling.papers.table import Data, nano_on
from vitling.recipes import Optim, Recipe, load_recipe, override, replace
from vitling.runs.device import default_device
from vitling.studies.study import _check_data
from vitling.training.settings import Settings

# As many as the papers number.
NUMBERED = {"dhvt": (6, 4), "bootstrapping": (5, 6), "t2t": (7, 4), "lvvit": (10, 3), "diagnosis": (1, 8)}
ROOT = Path(__file__).parents[2]
TABLES = [f"{paper}/table{number}" for paper, (count, _) in NUMBERED.items() for number in range(1, count + 1)]
ALL_FIGURES = [f"{paper}/fig{number}" for paper, (_, count) in NUMBERED.items() for number in range(1, count + 1)]
FIGURES = ["dhvt/fig4", "bootstrapping/fig5", "bootstrapping/fig6", "t2t/fig1", "t2t/fig2", "lvvit/fig1"]
FIGURES += [f"diagnosis/fig{number}" for number in range(3, 9)]
PARAMS_TOLERANCE = 0.02  # papers round to two or three digits


def test_every_table_and_figure_is_there():
    assert {name for name in tables() if not is_figure(name)} == set(TABLES)
    assert {name for name in tables() if is_figure(name)} == set(FIGURES)
    assert set(illustrations()) == set(ALL_FIGURES) - set(FIGURES)


def test_a_drawing_says_where_the_same_is_to_be_seen():
    with pytest.raises(
        UserError, match=r"dhvt/fig1 .* is a drawing and holds no result; the same is to be seen in `vitling show"
    ):
        make_plan("dhvt/fig1")
    for drawing in illustrations().values():
        for path in (word.strip("`,") for word in drawing.seen_in.split() if "/" in word and "." in word):
            assert (ROOT / path).exists(), path


def test_the_table_in_the_docs_is_what_the_command_prints(capsys):
    app(["reproduce", "--coverage"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert printed == coverage_markdown()
    assert printed in (ROOT / "docs" / "reproducing.md").read_text()
    app(["reproduce", "--coverage", "--json"], standalone_mode=False)
    entries = json.loads(capsys.readouterr().out)
    assert [entry["name"].strip("`") for entry in entries] == [
        name for paper in NUMBERED for name in (*TABLES, *ALL_FIGURES) if name.startswith(f"{paper}/")
    ]


@pytest.mark.parametrize("name", TABLES + FIGURES)
def test_every_row_has_a_recipe_or_a_reason(name):
    for row in tables()[name].rows:
        assert bool(row.recipe) != bool(row.why_not), row.label
        assert row.nano or row.why_not or row.no_nano, row.label
        if row.recipe:
            override(load_recipe(row.recipe), row.change)


@pytest.mark.parametrize("name", TABLES + FIGURES)
@pytest.mark.parametrize("scale", ["paper", "nano"])
def test_labels_of_a_plan_differ(name, scale):
    labels = [line.label for line in make_plan(name, scale=scale).lines]
    assert len(set(labels)) == len(labels)


def test_a_recipe_that_states_the_papers_number_states_the_tables_number():
    """Recipes quote the papers too; a slip in either would show here."""
    from vitling.recipes import named_recipes

    recipes, compared = named_recipes(), 0
    for row in (row for name in TABLES for row in tables()[name].rows):
        said = (recipes[row.recipe].__doc__ if row.recipe else "") or ""
        if "Paper:" in said and not row.change and row.top1 is not None and "not given" not in said:
            compared += 1
            assert f"{row.top1:g}" in said or f"{row.top1:.2f}" in said, (row.label, row.top1, said)
    assert compared > 100


def _networks(scale: str) -> dict:
    """Every network once; what does not change its size is left out."""
    found = {}
    for name in TABLES:
        for line in make_plan(name, scale=scale).lines:
            if line.recipe and (scale == "nano" or line.row.params) and line.row.network == "model":
                recipe = line.recipe
                sizes = {k: v for k, v in recipe.model_args.items() if k not in ("drop_path_rate", "init")}
                key = repr((recipe.model, sizes, recipe.img_size if scale == "paper" else 0, line.row.data.classes))
                found.setdefault(key, []).append((name, line))
    return found


@pytest.mark.slow
def test_parameters_are_the_papers_where_it_gives_them():
    for same in _networks("paper").values():
        line = same[0][1]
        network = build_on_meta(line.recipe, line.row.data.classes, 3)
        millions = sum(p.numel() for p in network.parameters()) / 1e6
        for name, line in same:
            close = abs(millions / line.row.params - 1) <= PARAMS_TOLERANCE
            assert close or line.row.note, (
                f"{name} {line.label}: {millions:.2f} M, paper {line.row.params} M, unexplained"
            )


@pytest.mark.slow
def test_every_nano_recipe_builds_and_is_small():
    for same in _networks("nano").values():
        recipe = same[0][1].recipe
        network = build_model(  # as training builds it; networks so small are initialised faster than counted on meta
            recipe.model, num_classes=10, in_chans=1, img_size=(recipe.img_size,) * 2, **recipe.model_args
        )
        assert sum(p.numel() for p in network.parameters()) < 3e6, same[0]


# ---------------------------------------------------------------------------------------------------------------------
# Plans


def test_at_nano_scale_the_papers_datasets_fall_together():
    plan = make_plan("diagnosis/table1", scale="nano")
    assert [line.label for line in plan.lines] == ["ViT", "ResNet-18"]
    assert [row.data.name for row in plan.lines[0].rows] == ["CIFAR-10", "CIFAR-100", "SVHN"]
    assert {recipe.data for recipe in plan.recipes.values()} == {"digits"}


def test_parts_of_the_data_stay_apart_at_nano_scale():
    plan = make_plan("bootstrapping/table3", scale="nano", rows="ResNet-50")
    assert [line.recipe.fraction for line in plan.lines] == [0.05, 0.1, 0.5]


def test_an_agents_row_reads_the_run_of_its_vit():
    plan = make_plan("bootstrapping/table1", scale="nano", rows="ViT-S, joint,Agent-S, joint")
    assert [line.study_name for line in plan.lines] == ["ViT-S, joint", "ViT-S, joint"]
    assert list(plan.recipes) == ["ViT-S, joint"]


def test_other_data_than_digits_is_shown_larger_and_augmented():
    recipe = nano_on(tables()["diagnosis/table1"].rows[0].nano, "cifar100")
    assert (recipe.data, recipe.img_size, recipe.augment.crop, recipe.augment.hflip) == ("cifar100", 32, "pad", 0.5)


def test_notes_about_one_scale_are_not_shown_at_the_other():
    row = next(row for row in tables()["lvvit/table3"].rows if row.label == "+ larger images")
    assert row.note_at("paper") == "starts from a run of lvvit/imagenet_s"
    assert row.note_at("nano") == "nano: trained at the larger size from the start"


def test_rows_are_picked_by_name_or_a_part_of_it():
    def picked(table: str, rows: str) -> list[str]:
        return [line.label for line in make_plan(table, rows=rows).lines]

    assert picked("dhvt/table6", "positions") == ["positions"]  # the very name before all that contain it
    assert picked("dhvt/table4", "dhvt-t") == ["DHVT-T/4", "DHVT-T/2"]
    assert picked("lvvit/table4", "[7,8],[16]") == ["[16]", "[7,8]"]
    assert picked("dhvt/table5", "SOPE, DAFF,none") == ["none", "SOPE, DAFF"]


def test_fewer_epochs_shorten_the_schedule_with_them():
    recipe = make_plan("dhvt/table4", rows="DHVT-T/4", epochs=30).lines[0].recipe
    assert (recipe.epochs, recipe.optim.warmup_epochs) == (30, 0.5)


def test_given_data_goes_to_the_rows_that_have_no_download():
    plan = make_plan("t2t/table5", data="my/imagenet")
    given = {line.label: line.recipe.data for line in plan.lines}
    assert given["T2T-ViT-14, ImageNet"] == "my/imagenet"
    assert given["T2T-ViT-14, CIFAR-10"] == "cifar10"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(name="dhvt/tabel6"), "Did you mean dhvt/table6"),
        (dict(name="dhvt/table6", rows="DAF"), None),
        (dict(name="dhvt/table6", rows="swin"), "dhvt/table6 has no row 'swin'"),
        (dict(name="dhvt/table6", scale="large"), "scale=large is not one of paper, nano"),
        (dict(name="dhvt/table2", data="somewhere"), "these rows need 3: ClipArt, Painting, Sketch"),
        (dict(name="dhvt/table2", data="somewhere", rows="ClipArt"), None),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(asked, said):
    if said is None:
        make_plan(**asked)
        return
    with pytest.raises(UserError) as error:
        make_plan(**asked)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_whose_data_weights_or_labels_are_missing_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no row of lvvit/table5 can be trained yet: ImageNet cannot be downloaded"):
        leave_out_unready(make_plan("lvvit/table5"))
    plan = leave_out_unready(make_plan("lvvit/table3", data=str(tmp_path)))
    reasons = {line.label: line.reason for line in plan.lines}
    assert reasons["baseline (DeiT-S)"] == ""
    assert "vitling relabel" in reasons["+ token labeling"]
    assert "runs/lvvit_s, which is not there" in reasons["+ larger images"]
    assert "+ token labeling" not in plan.recipes


def tree(folder: Path, *splits: str) -> str:
    for split in splits:
        for name in ("n01440764", "n01443537"):
            (folder / split / name).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (16, 16), (i, 0, 0)).save(folder / split / name / f"{i}.JPEG")
    return str(folder)


def test_imagenet_is_taken_as_it_is_with_val_as_the_test(tmp_path):
    data = tree(tmp_path / "imagenet", "train", "val")
    for name in TABLES:
        plan = make_plan(name)
        if {line.row.data.name for line in plan.lines} == {"ImageNet"} and plan.recipes:
            plan = leave_out_unready(make_plan(name, data=data)) if "lvvit" not in name else make_plan(name, data=data)
            chosen = choose_test_splits(plan, "", Settings())
            assert {recipe.test_split for recipe in chosen.recipes.values()} == {"val"}, name
            _check_data(chosen.recipes, "test", Settings())  # what a study asks before it begins


def test_the_split_to_measure_on_is_the_one_asked_for_else_the_papers_else_the_one_there_is(tmp_path):
    both, test, none = (tree(tmp_path / name, "train", *name.split()) for name in ("val test", "test", "x"))

    def chosen(data: str, split: str = "", table: str = "t2t/table7", scale: str = "paper") -> str:
        plan = make_plan(table, data=data, rows="T2T-ViT-14", scale=scale)
        return next(iter(choose_test_splits(plan, split, Settings()).recipes.values())).test_split

    assert chosen(both) == "val"
    assert chosen(both, "test") == "test"
    assert chosen(test) == "test"
    assert chosen(both, scale="nano") == "test"
    with pytest.raises(UserError, match="test has no val split to measure on, only train, test; add a folder val"):
        chosen(test, "val")
    with pytest.raises(UserError, match="x has no val or test split to measure on, only train"):
        chosen(none)
    with pytest.raises(UserError, match="split=train is not one of test, val"):
        Request("t2t/table7", split="train").plan()


def parse_command(text: str) -> Request:
    """What the command line makes of a command."""
    words = shlex.split(text)
    assert words[:2] == ["vitling", "reproduce"]
    found = typer.main.get_command(app).commands["reproduce"].make_context("reproduce", words[2:]).params
    asked = {key: found[key] for key in ("name", "scale", "rows", "data", "epochs", "split")}
    return Request(**asked, seeds=parse_seeds(found["seeds"]), budget_seconds=parse_budget(found["budget"]))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("scale", ["paper", "nano"])
@pytest.mark.parametrize("name", TABLES + FIGURES)
def test_what_a_dry_run_says_next_works_on_that_machine(name, scale, device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without runs to start from and label maps
    request = Request(name, scale)
    step, others = find_next_step(request, device), find_missing(request, device)
    typed = parse_command(reproduce_command(step.request))
    assert typed == step.request
    assert works(typed, device)
    needs_imagenet = {"", "imagenet"} & {line.recipe.data for line in request.plan().lines if line.recipe}
    if scale == "paper" and needs_imagenet and not name.endswith("fig1"):
        assert any("cannot be downloaded; give its folder as data" in line for line in others)
    if scale == "paper" and device == "cpu" and request.plan().recipes and not name.endswith("fig1"):
        assert any("a GPU; this machine has none" in line for line in others)


def test_rows_that_were_picked_are_kept_in_the_next_command_where_they_have_a_nano_counterpart():
    def command(name: str, rows: str) -> str:
        return reproduce_command(find_next_step(Request(name, rows=rows), "cpu").request)

    assert command("dhvt/table4", "DHVT-T") == "vitling reproduce dhvt/table4 --scale nano --rows DHVT-T"
    assert command("t2t/table4", "MobileNetV2 1.0x*") == "vitling reproduce t2t/table4 --scale nano"


def test_a_command_says_all_that_was_asked_for():
    asked = Request(
        "t2t/table2", rows="T2T-ViT-14", data="my images", epochs=3, seeds=[1, 4], budget_seconds=90, split="val"
    )
    assert parse_command(reproduce_command(asked)) == asked


@pytest.mark.skipif(default_device().type != "cpu", reason="there is a GPU here")
def test_the_published_setting_is_refused_without_a_gpu():
    with pytest.raises(UserError, match="needs a GPU, and this machine has none; choose scale=nano"):
        reproduce("diagnosis/table1", rows="CIFAR-10")


# ---------------------------------------------------------------------------------------------------------------------
# What needs no training


def test_a_table_is_not_drawn(tmp_path):
    with pytest.raises(UserError, match="dhvt/table6 is a table"):
        draw_figure(Request("dhvt/table6", "nano"), tmp_path / "drawn")
    assert not (tmp_path / "drawn").exists()


def test_what_was_not_trained_has_no_folder_to_write_to():
    with pytest.raises(UserError, match="has no study"):
        reproduce("bootstrapping/table2").write()


def test_a_table_of_structures_is_read_off_the_networks():
    result = reproduce("bootstrapping/table2", rows="S")
    assert [r.structure for r in result.results] == [{"layers": 6, "width": 288, "heads": 9}] * 2
    assert "| ViT-S | 6, 288, 9 | 6, 288, 9 | 6.30 M | 1.354 G |" in result.to_markdown()
    assert "it describes networks; there is nothing to train" in result.to_markdown()


def test_tokens_and_backbone_of_t2t_stand_beside_the_papers_with_ours_where_they_differ():
    shown = reproduce("t2t/table1", rows="T2T-ViT-7,ViT-S/16,T2T-ViT_t-14").to_markdown()
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:9] for line in shown.splitlines() if " | " in line}
    assert cells["T2T-ViT-7"] == ["Performer", "2", "64", "64", "8 (ours 7)", "256", "512", "4.2 M"]
    assert cells["T2T-ViT_t-14"] == ["Transformer", "2", "64", "64", "14", "384", "1,152", "21.5 M"]
    assert cells["ViT-S/16"] == ["–", "–", "–", "–", "8", "786 (ours 768)", "2,358 (ours 2,304)", "48.6 M"]


@pytest.mark.slow  # builds the papers' networks
def test_lvvit_and_its_settings_are_read_off_networks_and_recipes():
    lvvit, cait = reproduce("lvvit/table1").results
    assert {k: lvvit.structure[k] for k in ("layers", "heads", "MLP ratio", "width", "test size")} == {
        "layers": 20, "heads": 8, "MLP ratio": 3.0, "width": 512, "test size": 384
    }  # fmt: skip
    used = ("scaled residuals", "MixToken", "token labels", "RandAugment used")
    assert [lvvit.structure[name] for name in (*used, "CutMix", "LayerScale")] == [True] * 4 + [False] * 2
    assert (cait.structure["layers"], cait.structure["class attention"], cait.structure["epochs"]) == (36, True, None)
    shown = reproduce("lvvit/table2").to_markdown()
    assert "| row | standard | re-labeling | token labeling |" in shown  # so many entries are rows, as in the paper
    assert "| learning rate | 0.001 | 0.001 | 0.0016 |" in shown
    assert "| mixup alpha | 0.8 | – | – |" in shown


@pytest.mark.slow  # builds the papers' networks
def test_entries_of_descriptions_are_the_papers_or_explained():
    for name in ("bootstrapping/table2", "t2t/table1", "lvvit/table1", "lvvit/table2"):
        result = reproduce(name)
        for row in result.results:
            printed = result.plan.table.printed[row.line.row.label]
            for column, ours in row.structure.items():
                assert ours is None or ours == printed[column] or row.line.row.note, (name, row.line.label, column)


def test_data_that_is_here_is_counted_and_the_rest_says_what_to_give(tmp_path):
    folder = tmp_path / "clipart"
    for split, count in (("train", 3), ("val", 2)):
        for name in ("bird", "boat"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (i, 9, 9)).save(folder / split / name / f"{i}.png")
    (clipart,) = reproduce("dhvt/table1", data=str(folder), rows="ClipArt").results
    assert list(clipart.structure.values()) == [6, 4, 2, 3]
    with pytest.raises(UserError, match="these rows need 4: ClipArt, Sketch, Painting, ImageNet"):
        reproduce("dhvt/table1", data=str(folder))
    (absent,) = reproduce("dhvt/table1", rows="Sketch").results
    assert absent.reason == "Sketch cannot be downloaded; give its folder as data"


def test_sizes_are_counted_now_and_stand_beside_the_papers():
    plan = make_plan("diagnosis/table1", rows="CIFAR-10")
    sizes = count_sizes(plan, Settings())
    assert sizes["ViT, CIFAR-10"].parameters == 9_523_722
    assert sizes["ResNet-18, CIFAR-10"].parameters == 11_173_962


@pytest.mark.slow  # builds the papers' networks
def test_a_plan_at_the_papers_scale_estimates_from_macs():
    result = preview(Request("diagnosis/table1", rows="CIFAR-10", seeds=2))
    vit, resnet = (result.seconds[r.line.study_name] for r in result.results[:2])
    ratio = result.results[0].size.macs / result.results[1].size.macs
    assert math.isclose(vit / resnet, ratio)
    assert "order of magnitude" in result.to_markdown()
    assert "runs, 2 seeds each" in result.to_markdown()
    assert result.study is None


# ---------------------------------------------------------------------------------------------------------------------
# What a run costs

DATA = Data("ten classes", classes=10, images=1000)
PLAIN = Recipe(model="boot_vit_test", img_size=16, epochs=3, val_fraction=0.5, optim=Optim(warmup_epochs=0))
IMAGES = 1500  # that a run of it sees


def macs_of(name: str, size: int) -> int:
    return count_macs(build_model(name, num_classes=10, in_chans=3, img_size=(size, size)), (3, size, size))


def test_a_run_costs_a_forward_and_a_backward_pass_of_every_image():
    alone = training_macs(PLAIN, DATA)
    assert alone == IMAGES * (1 + BACKWARD) * macs_of("boot_vit_test", 16)
    assert training_macs(override(PLAIN, ["optim.sam_rho=0.05"]), DATA) == 2 * alone


def test_an_agent_costs_as_much_again_and_a_teacher_one_pass(tmp_path):
    agent = replace(PLAIN, method="bootstrap", method_args=dict(agent="resnet9_test", feature_weight=0.0))
    beside = IMAGES * macs_of("resnet9_test", 16)
    assert training_macs(agent, DATA) == training_macs(PLAIN, DATA) + (1 + BACKWARD) * beside

    teacher = build_model("diag_resnet18_nano", num_classes=10, in_chans=3, img_size=(32, 32))
    save_for_timm(teacher, tmp_path / "teacher", model_args=dict(in_chans=3), cfg=dict(input_size=(3, 32, 32)))
    taught = replace(PLAIN, method="distillation", method_args=dict(teacher=str(tmp_path / "teacher")))
    answers = IMAGES * macs_of("diag_resnet18_nano", 32)  # of images in its own size
    assert training_macs(taught, DATA) == training_macs(PLAIN, DATA) + answers


def test_the_run_that_a_method_trains_first_is_counted():
    labelled = replace(PLAIN, method="token_labeling", method_args=dict(relabel="auto", annotator_epochs=2))
    first = find_method("token_labeling").first_run(labelled)
    assert training_macs(labelled, DATA) == training_macs(PLAIN, DATA) + training_macs(first, DATA)
    assert training_macs(first, DATA) == 1000 * (1 + BACKWARD) * macs_of(first.model, 32)


def test_a_teacher_that_is_not_there_is_said_to_be_missing():
    recipe = replace(PLAIN, method="distillation")
    distillation = find_method("distillation")
    assert "needs a teacher" in distillation.missing(recipe)
    absent = replace(recipe, method_args=dict(teacher="runs/nobody"))
    assert distillation.missing(absent) == "it learns from runs/nobody, which is not there; train that first."
    assert distillation.missing(replace(recipe, method_args=dict(teacher="resnet18"))) == ""
    with pytest.raises(UserError, match="runs/nobody, which is not there"):
        training_macs(absent, DATA)
