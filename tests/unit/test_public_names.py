"""The names that others rely on."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

import vitling
from vitling._deprecated import MOVED

NAMES = [
    "vitling.train",
    "vitling.evaluate",
    "vitling.predict",
    "vitling.plan",
    "vitling.study",
    "vitling.reproduce",
    "vitling.export",
    "vitling.relabel",
    "vitling.ViTClassifier",
    "vitling.load_weights",
    "vitling.save_weights",
    "vitling.load_run",
    "vitling.open_model",
    "vitling.diagnose.linear_cka",
    "vitling.diagnose.minibatch_cka",
    "vitling.diagnose.attention_rollout",
    "vitling.diagnose.attention_distance",
    "vitling.diagnose.expected_calibration_error",
    "vitling.methods.bootstrap.feature_loss",
    "vitling.methods.bootstrap.mutual_loss",
    "vitling.methods.bootstrap.align_gradients",
    "vitling.methods.token_labeling.mix_tokens",
    "vitling.methods.token_labeling.token_label_loss",
]


@pytest.mark.slow
def test_every_public_name_is_a_function_after_import_vitling_alone():
    lines = [
        "import vitling",
        *(f"assert callable({name}) and not hasattr({name}, '__path__'), '{name}'" for name in NAMES),
    ]
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import timm.data", "from importlib.util import find_spec; find_spec('timm')", ""])
def test_our_models_are_registered_after_import_vitling_whatever_came_before(first):
    # timm itself can be imported first only where the torchvision wheel matches torch; there `import torchvision` works.
    works = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode == 0
    if "import timm" in first and not works:
        pytest.skip("the torchvision wheel here does not match torch, so vitling has to be imported before timm")
    code = f"{first}\nimport vitling, timm\nassert timm.is_model('dhvt_tiny_cifar_patch4')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_nothing_of_ours_runs_when_python_starts():
    code = "import sys; sys.exit(any(name.partition('.')[0] in ('vitling', 'torch', 'timm') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("options", [["-m"], ["-Bm"]])
@pytest.mark.parametrize("arguments", ["", "--project vitling", "vitling", "-m vitling"])
def test_a_program_of_others_with_our_name_among_its_arguments_registers_the_models(tmp_path, options, arguments):
    (tmp_path / "mypkg").mkdir()
    lines = ["import sys", "sys.modules['torch'] = None  # so that registering fails", "import vitling"]
    (tmp_path / "mypkg" / "__init__.py").write_text("\n".join(lines))
    (tmp_path / "mypkg" / "__main__.py").write_text("print('not registered')")
    path = os.pathsep.join([str(tmp_path), str(Path(vitling.__file__).parents[1])])
    command = [sys.executable, *options, "mypkg", *arguments.split()]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert "import of torch halted" in result.stderr, result.stdout


def test_our_command_registers_nothing_until_it_needs_a_model():
    command = [sys.executable, "-X", "importtime", "-m", "vitling", "--version"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout.startswith("vitling ")
    assert "vitling.cli.main" in result.stderr
    assert "torch" not in result.stderr


@pytest.mark.parametrize("old", ["train.Settings", "recipe.override", "run.Run", "data.prepare.Reading"])
def test_an_old_name_works_and_warns_with_the_new_one(old):
    module, _, name = old.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"vitling\.{old} is now vitling\.\S+\.{name}"):
        assert callable(getattr(import_module(f"vitling.{module}"), name))


def test_what_was_renamed_when_it_moved_is_found_by_its_old_name():
    from vitling.runs.metadata import ModelMetadata

    with pytest.warns(
        DeprecationWarning, match=r"vitling\.passport\.Passport is now vitling\.runs\.metadata\.ModelMetadata"
    ):
        assert import_module("vitling.passport").Passport is ModelMetadata


def test_an_attribute_is_read_by_its_old_name():
    from vitling.papers.reproduction import Ours

    ours = Ours("test", [80.0, 82.0], mean=81.0, ci95=12.7, difference=1.0, difference_ci95=0.5, epochs=3)
    with pytest.warns(DeprecationWarning, match="Ours.half is now ci95"):
        assert ours.half == 12.7
    with pytest.warns(DeprecationWarning, match="Ours.difference_half is now difference_ci95"):
        assert ours.difference_half == 0.5


def test_an_old_module_that_lacks_a_name_says_so_and_every_new_place_exists():
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from vitling.train import nothing")
    for places in MOVED.values():
        for place in places.split():
            import_module(f"vitling.{place}")


def test_old_arguments_of_public_functions_reach_the_callback(tmp_path):
    seen, lines = [], []
    recipe = vitling.override(vitling.load_recipe("digits/vit_nano"), TINY)
    with pytest.warns(DeprecationWarning, match=r"vitling\.train\(listener=\) is now callback="):
        run = vitling.train(recipe, tmp_path / "run", listener=an_old_listener(lines))
    assert lines == ["started", "stepped", "validated"]
    with pytest.warns(DeprecationWarning, match="on_progress=, say="):
        vitling.predict(run, a_digit(tmp_path), on_progress=lambda *progress: seen.append(progress), say=lines.append)
    assert seen[-1] == ("predicting", 1, 1)


TINY = {"epochs": 1, "optim.warmup_epochs": 0, "fraction": 0.05, "batch_size": 64, "model_args.depth": 1}


def an_old_listener(lines: list[str]):
    with pytest.warns(DeprecationWarning, match=r"vitling\.callbacks\.Callback, with other method names"):
        from vitling.listener import Listener

    class Old(Listener):
        def started(self, facts):
            lines.append("started")

        def stepped(self, epoch, step, steps, loss, images_per_second):
            lines.append("stepped")

        def validated(self, record, timing):
            lines.append("validated")

    return Old()


def a_digit(folder) -> Path:
    Image.fromarray(vitling.data.open_dataset("digits").splits["test"].read(0)[..., 0]).save(folder / "digit.png")
    return folder / "digit.png"
