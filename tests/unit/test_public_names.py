"""The names that others rely on."""

import pickle
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from scipy.stats import spearmanr

import vitling
from vitling._deprecated import MEASURING, MOVED, SPLIT, accept_old_arguments
from vitling.callbacks import Callback

NAMES = [
    "vitling.train",
    "vitling.evaluate",
    "vitling.predict",
    "vitling.Predictor",
    "vitling.plan",
    "vitling.study",
    "vitling.reproduce",
    "vitling.export",
    "vitling.relabel",
    "vitling.ViTClassifier",
    "vitling.ViTRegressor",
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


def loaded_after(code: str) -> list[str]:
    code += "\nimport sys; sys.exit(str([m for m in ('torch', 'timm') if m in sys.modules]))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip()


def test_a_program_that_predicts_with_exported_files_loads_neither_torch_nor_timm():
    assert loaded_after("import vitling; vitling.Predictor, vitling.predict, vitling.load_recipe") == "[]"
    assert loaded_after("from vitling import Predictor, UserError") == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "from timm import create_model",
        "import timm.models",
        "import torchvision.transforms, timm",
        "from importlib.util import find_spec; find_spec('timm'); import timm",
        "import vitling.models, timm",
    ],
)
def test_timm_knows_our_models_however_it_is_imported_and_is_itself_otherwise(code):
    code = f"import vitling\n{code}\nimport sys, timm\nassert timm.is_model('dhvt_tiny_cifar_patch4')"
    code += "\nassert not type(timm.__spec__.loader).__module__.startswith('vitling')"
    code += "\nassert not any(type(finder).__module__.startswith('vitling') for finder in sys.meta_path)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_an_import_of_timm_that_fails_is_told_about_again(tmp_path):
    """Whoever mends it within the program finds our models even so."""
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("import os\nif 'BROKEN' in os.environ: raise ImportError('broken')")
    code = """
import os, sys
from vitling.importing import watch
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "vitling.importing.watch"]
watch.register_models = lambda: print("registered")
sys.path.insert(0, sys.argv[1])
watch.watch_imports()
os.environ["BROKEN"] = "1"
try:
    import timm
except ImportError as error:
    print(error)
del os.environ["BROKEN"]
import timm
"""
    result = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert result.stdout.split() == ["broken", "registered"], result.stderr


def test_our_command_registers_nothing_until_it_needs_a_model():
    command = [sys.executable, "-X", "importtime", "-m", "vitling", "--version"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout.startswith("vitling ")
    assert "vitling.cli.main" in result.stderr
    assert "torch" not in result.stderr


# ---------------------------------------------------------------------------------------------------------------------
# What was public or documented in 0.1

NAMES_OF_0_1 = {
    "": "Recipe UserError ViTClassifier evaluate export load_recipe load_run load_weights plan predict relabel reproduce "
    "save_weights study train",
    "app": "open_viewer",
    "compare": "Comparison",
    "data": "ArrayImages BadImage Dataset FileImages HubImages Images carve_validation channel_statistics decode fit_image k_folds "
    "load_image open_dataset take_fraction",
    "data.named": "NAMES TORCHVISION",
    "data.prepare": "Preprocessing Reading",
    "diagnose": "CkaMatrix Diagnosis Finding Hessian Measurements adaptive_calibration_error as_tokens attention_distance "
    "attention_entropy attention_masks attention_rollout brier_score capture_batch channel_correlation channel_health cka_matrix "
    "classwise_calibration_error confident_mistakes conv_maps diagnose diagnose_run expected_calibration_error feature_ranks "
    "find_blocks fold_head_tokens fourier_profile generalisation_gap grad_cam gradient_norms gradient_relevance head_diversity "
    "head_token_maps hsic1 integrated_gradients judge layer_gradient_norms linear_cka local_mass loss_sharpness match_layers "
    "measure minibatch_cka per_class_accuracy relevance_map reliability_curve resize_masks ridge_probe spatial_variance spearman "
    "token_maps token_similarity uniform_distance watch watch_attention what_works write_diagnosis",
    "diagnose.attention": "attention_distance attention_entropy attention_masks attention_rollout gradient_relevance "
    "fold_head_tokens head_diversity head_token_maps local_mass resize_masks uniform_distance",
    "diagnose.attribution": "grad_cam integrated_gradients relevance_map",
    "diagnose.calibration": "adaptive_calibration_error brier_score classwise_calibration_error expected_calibration_error "
    "reliability_curve",
    "diagnose.capture": "as_tokens capture_batch find_blocks watch watch_attention what_works",
    "diagnose.cka": "CkaMatrix cka_matrix hsic1 linear_cka minibatch_cka",
    "diagnose.diagnosis": "Diagnosis diagnose diagnose_run write_diagnosis",
    "diagnose.features": "channel_correlation channel_health conv_maps feature_ranks fourier_profile spatial_variance token_maps "
    "token_similarity",
    "diagnose.gradients": "layer_gradient_norms",
    "diagnose.health": "confident_mistakes generalisation_gap gradient_norms per_class_accuracy",
    "diagnose.match": "match_layers spearman",
    "diagnose.probe": "ridge_probe",
    "diagnose.sharpness": "Hessian loss_sharpness",
    "diagnose.single_pass": "Measurements measure",
    "diagnose.verdict": "Finding judge",
    "evaluate": "Evaluation evaluate wilson_interval",
    "export": "Exported export",
    "listener": "Listener StudyListener",
    "methods": "METHODS Batch Method Surroundings create_method prepare_method",
    "methods.bootstrap": "align_gradients feature_loss mutual_loss",
    "methods.surroundings": "Surroundings",
    "methods.token_labeling": "mix_tokens token_label_loss",
    "models": "build_model default_size our_models register_variants",
    "pace": "Pace",
    "passport": "Passport",
    "plan": "Plan plan",
    "recipe": "Augment Optim Recipe all_keys load_recipe override read_recipes replace save_recipe scale_epochs to_yaml",
    "recipes": "named_recipes",
    "recipes.dhvt": "cifar100_tiny_patch4",
    "recipes.digits": "vit_nano",
    "report": "run_page write_run_page",
    "run": "Run load_run",
    "study": "study",
    "study_page": "study_page",
    "study_results": "Row Study",
    "train": "Settings train",
    "weights": "load_weights save_weights",
}


@pytest.mark.parametrize("module", NAMES_OF_0_1)
def test_every_name_that_was_public_in_0_1_is_there_and_one_that_moved_warns(module):
    path = f"vitling.{module}".removesuffix(".")
    for name in NAMES_OF_0_1[module].split():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DeprecationWarning)
            exec(f"from {path} import {name}", found := {})
        assert name in found
        if module in MOVED:
            (warning,) = [w for w in caught if path in str(w.message)]
            assert str(warning.message).startswith(f"{path}.{name} is now vitling.")
            assert warning.filename == "<string>"  # who asked, not us


@pytest.mark.parametrize("module", MOVED)
def test_an_old_module_can_be_looked_for_and_says_what_it_lacks(module):
    assert find_spec(f"vitling.{module}").name == f"vitling.{module}"
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from vitling.{module} import nothing")


def test_every_new_place_exists():
    for place in {place for places in (MOVED | SPLIT).values() for place in places.split()}:
        assert import_module(f"vitling.{place}").__spec__.loader, place  # a file, not an old name again


def test_an_old_module_is_an_attribute_of_its_package_after_its_import():
    import vitling.diagnose.capture
    import vitling.recipe
    import vitling.recipes.dhvt

    with pytest.warns(DeprecationWarning, match=r"vitling\.recipe\.override is now vitling\.recipes\.override"):
        assert callable(vitling.recipe.override)
    with pytest.warns(DeprecationWarning, match=r"vitling\.recipes\.named\.dhvt\.cifar100_tiny_patch4"):
        assert vitling.recipes.dhvt.cifar100_tiny_patch4().epochs == 300
    with pytest.warns(DeprecationWarning, match=r"vitling\.models\.inspect\.find_blocks"):
        assert callable(vitling.diagnose.capture.find_blocks)
    assert callable(vitling.train)  # the function still, not the module
    for package in (vitling, vitling.data, vitling.diagnose, vitling.methods, vitling.recipes):
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
            _ = package.nothing


def test_what_was_renamed_when_it_moved_is_found_by_its_old_name():
    from vitling.methods.preparation import Preparation
    from vitling.runs.metadata import ModelMetadata
    from vitling.training.budget import Speed

    with pytest.warns(DeprecationWarning, match=r"passport\.Passport is now vitling\.runs\.metadata\.ModelMetadata"):
        assert import_module("vitling.passport").Passport is ModelMetadata
    with pytest.warns(DeprecationWarning, match=r"pace\.Pace is now vitling\.training\.budget\.Speed"):
        assert import_module("vitling.pace").Pace is Speed
    with pytest.warns(
        DeprecationWarning, match=r"methods\.Surroundings is now vitling\.methods\.preparation\.Preparation"
    ):
        assert vitling.methods.Surroundings is Preparation


def test_functions_that_were_taken_out_give_the_same_numbers_for_one_release():
    x, y = torch.tensor([1.0, 5.0, 2.0, 2.0]), torch.tensor([3, 9, 4, 1])
    with pytest.warns(DeprecationWarning, match=r"vitling\.diagnose\.spearman is now scipy\.stats\.spearmanr"):
        correlation = vitling.diagnose.spearman(x, y)
    assert correlation.item() == pytest.approx(spearmanr(x, y).statistic)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.warns(DeprecationWarning, match=r"gradient_norms is now vitling\.diagnose\.layer_gradient_norms"):
        norms = vitling.diagnose.gradient_norms(model)
    assert norms == {"weight": pytest.approx(2**0.5), "bias": 1.0}


# ---------------------------------------------------------------------------------------------------------------------
# Attributes


def test_an_attribute_is_read_by_its_old_name(tmp_path):
    from vitling.data.pipeline.preprocessing import Preprocessing
    from vitling.deploy.export import Exported
    from vitling.methods.preparation import Preparation
    from vitling.papers.reproduction import Ours

    ours = Ours("test", [80.0, 82.0], mean=81.0, ci95=12.7, difference=1.0, difference_ci95=0.5, epochs=3)
    seen = Preprocessing((8, 8), 1, "resize", 4095, (0.5,), (0.2,))
    callback = Callback()
    preparation = Preparation(vitling.Recipe(), None, tmp_path, callback, None, None)
    for thing, old, new, value in (
        (ours, "half", "ci95", 12.7),
        (ours, "difference_half", "difference_ci95", 0.5),
        (seen, "white", "max_value", 4095),
        (vitling.data.open_dataset("digits"), "white", "max_value", 255),
        (vitling.plan("digits", brief=True), "pace", "speed", None),
        (Exported(tmp_path, "onnx", 0.0, 1.0, "noise", "the metadata"), "passport", "metadata", "the metadata"),
        (preparation, "say", "callback.log", callback.log),
        (preparation, "on_progress", "callback.on_progress", callback.on_progress),
    ):
        with pytest.warns(DeprecationWarning, match=f"{type(thing).__name__}.{old} is now {new};"):
            assert getattr(thing, old) == value


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


def test_the_block_of_data_md_of_0_1_still_runs():
    from vitling.data import decode, open_dataset

    dataset, seen = open_dataset("digits"), []
    train = dataset.splits["train"].subset(range(40))
    with pytest.warns(DeprecationWarning, match="Dataset.white is now max_value"):
        white = dataset.white
    with pytest.warns(DeprecationWarning, match=r"vitling\.data\.decode\(white=\) is now max_value="):
        pixels = decode(train, size=(16, 16), fit="pad", channels=dataset.channels, white=white)
    assert pixels.shape == (40, 1, 16, 16)
    with pytest.warns(DeprecationWarning, match=r"vitling\.data\.decode\(on_progress=\) is now callback="):
        decode(train, size=(8, 8), channels=1, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(32, 40), (40, 40)]
    with pytest.raises(TypeError, match="multiple values"), pytest.warns(DeprecationWarning, match="white="):
        decode(train, size=(8, 8), channels=1, white=255, max_value=255)


def test_arguments_are_taken_by_their_old_names():
    image, scores, labels = torch.zeros(4, 4, 1).byte().numpy(), torch.eye(2), torch.tensor([0, 1])
    images = vitling.data.open_dataset("digits").splits["test"]
    with pytest.warns(DeprecationWarning, match="is now vitling.evaluation.intervals.wilson_interval"):
        wilson_interval = import_module("vitling.evaluate").wilson_interval
    for function, old, new, arguments in (
        (vitling.data.fit_image, "white", "max_value", (image, (2, 2), "resize", 1, {"white": 255})),
        (vitling.data.load_image, "white", "max_value", (images, 0, (8, 8), "resize", 1, {"white": 255})),
        (
            vitling.data.channel_statistics,
            "white",
            "max_value",
            (images, {"white": 255, "size": (8, 8), "channels": 1}),
        ),
        (vitling.diagnose.per_class_accuracy, "probs", "scores", ({"probs": scores, "labels": labels},)),
        (wilson_interval, "successes", "correct", ({"successes": 3, "images": 4},)),
        (wilson_interval, "trials", "images", (3, {"trials": 4})),
    ):
        *positional, named = arguments
        with pytest.warns(DeprecationWarning, match=rf"{function.__name__}\({old}=\) is now {new}="):
            function(*positional, **named)
    with pytest.warns(DeprecationWarning, match=r"generalisation_gap\(right=\) is now correct="):
        gap = vitling.diagnose.generalisation_gap(train_right=9, train_images=10, right=7, images=10)
    assert gap.difference == pytest.approx(0.2)


def test_a_diagnosis_takes_the_old_on_progress(tmp_path):
    sizes = dict(img_size=8, patch_size=2, embed_dim=16, depth=1, num_heads=2, in_chans=1, num_classes=10)
    model, seen = timm.create_model("vit_tiny_patch16_224", **sizes), []
    with pytest.warns(DeprecationWarning, match=r"vitling\.diagnose\.diagnose\(on_progress=\) is now callback="):
        vitling.diagnose.diagnose(model, data="digits", images=8, on_progress=lambda *progress: seen.append(progress))
    assert seen[-1] == ("measuring VisionTransformer", 8, 8)
    for name in ("diagnose_run", "write_diagnosis"):
        with (
            pytest.raises((TypeError, AttributeError)),
            pytest.warns(DeprecationWarning, match=rf"{name}\(on_progress=\)"),
        ):
            getattr(vitling.diagnose, name)(None, None, None, None, on_progress=print)


def test_public_functions_can_be_pickled():
    for function in (vitling.train, vitling.data.decode, vitling.diagnose.diagnose, vitling.diagnose.linear_cka):
        assert pickle.loads(pickle.dumps(function)) is function


# ---------------------------------------------------------------------------------------------------------------------
# Listeners

TINY = {"epochs": 1, "optim.warmup_epochs": 0, "fraction": 0.05, "batch_size": 64, "model_args.depth": 1}


class DuckTyped:
    """An object with the methods of a listener, as the documentation of 0.1 asked for, and without its class."""

    def __init__(self):
        self.lines = []

    def __len__(self):
        return 0  # an object that is false in a condition is a listener, too

    def __getattr__(self, name):
        if name not in METHODS_OF_0_1:
            raise AttributeError(name)
        return lambda *values: self.lines.append((name, *values))


METHODS_OF_0_1 = ["say", "decoding", "started", "stepped", "validated", "finished", "measuring", "planned", "ended"]


class DuckTypedStudy(DuckTyped):
    def began(self, label):
        self.lines.append(("began", label))
        return self


def a_function_with_a_callback(*, callback=None):
    """Calls everything that a callback has."""
    callback.log("text")
    callback.on_progress("reading train", 1, 2)
    callback.on_progress(MEASURING, 3, 4)
    callback.on_start({})
    callback.on_step(0, 1, 2, 0.5, 100.0)
    callback.on_validation({}, {})
    callback.on_end(None)
    callback.on_study_start(2, 1)
    callback.on_run_start("a run").log("from the run")
    callback.on_run_end("a run", "90 %")


def old_listener(base: str, lines: list):
    with pytest.warns(DeprecationWarning, match=r"vitling\.callbacks\.\w+, with other method names"):
        base = getattr(import_module("vitling.listener"), base)

    class Old(base):
        def __init__(self):  # without calling ours
            self.lines = lines

        def began(self, label):
            lines.append(("began", label))
            return self

    for name in METHODS_OF_0_1:
        setattr(Old, name, lambda self, *values, name=name: lines.append((name, *values)))
    return Old()


def test_every_method_of_a_listener_is_called_whether_it_is_a_subclass_or_not():
    call = accept_old_arguments(a_function_with_a_callback, "vitling")
    duck, lines = DuckTypedStudy(), []
    for listener in (duck, old_listener("StudyListener", lines)):
        with pytest.warns(DeprecationWarning, match=r"\(listener=\) is now callback="):
            call(listener=listener)
    assert duck.lines == lines
    assert lines == [
        ("say", "text"),
        ("decoding", "train", 1, 2),
        ("measuring", 3, 4),
        ("started", {}),
        ("stepped", 0, 1, 2, 0.5, 100.0),
        ("validated", {}, {}),
        ("finished", None),
        ("planned", 2, 1),
        ("began", "a run"),
        ("say", "from the run"),
        ("ended", "a run", "90 %"),
    ]
    lines.clear()
    # Who changed the argument, not yet the class:
    a_function_with_a_callback(callback=old_listener("StudyListener", lines))
    assert lines == duck.lines
    with pytest.warns(DeprecationWarning, match="listener="):
        call(listener=object())  # none of the methods


def test_the_task_of_measuring_has_the_name_that_is_looked_for():
    from vitling.planning.speed import TASK

    assert TASK == MEASURING


def test_functions_beside_a_listener_come_first():
    call, duck, progress, texts = accept_old_arguments(a_function_with_a_callback, "vitling"), DuckTypedStudy(), [], []
    with pytest.warns(DeprecationWarning, match=r"\(listener=, on_progress=, say=\) is now callback="):
        call(listener=duck, on_progress=lambda *values: progress.append(values), say=texts.append)
    assert progress == [("reading train", 1, 2), (MEASURING, 3, 4)]
    assert texts == ["text"]
    assert ("started", {}) in duck.lines


def test_old_arguments_of_public_functions_reach_the_callback(tmp_path):
    duck, seen, lines = DuckTyped(), [], []
    recipe = vitling.override(vitling.load_recipe("digits/vit_nano"), TINY)
    with pytest.warns(DeprecationWarning, match=r"vitling\.train\(listener=\) is now callback="):
        run = vitling.train(recipe, tmp_path / "run", listener=duck)
    names = [name for name, *_ in duck.lines]
    assert [name for name in names if name not in ("say", "decoding")] == ["started", "stepped", "validated"]
    with pytest.warns(DeprecationWarning, match="on_progress=, say="):
        vitling.predict(run, a_digit(tmp_path), on_progress=lambda *progress: seen.append(progress), say=lines.append)
    assert seen[-1] == ("predicting", 1, 1)
    with pytest.warns(DeprecationWarning, match="listener="):
        vitling.train(recipe, tmp_path / "run", listener=None)


def a_digit(folder) -> Path:
    Image.fromarray(vitling.data.open_dataset("digits").splits["test"].read(0)[..., 0]).save(folder / "digit.png")
    return folder / "digit.png"
