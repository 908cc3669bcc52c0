"""`vitling train --folds` and `vitling.train_folds`: networks of all folds, the ensemble of them, and its number."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from command import error, vitling
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

import vitling as public
from vitling.callbacks import Callback
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import open_dataset
from vitling.errors import UserError
from vitling.evaluation.predictions import predict_validation
from vitling.recipes import Augment, Optim, Recipe, replace
from vitling.training.knowledge import has_learnt_from
from vitling.training.settings import Settings

pytestmark = pytest.mark.slow

RECIPE = Recipe(
    model="hybrid_vit_test",
    data="digits",
    epochs=3,
    batch_size=64,
    augment=Augment(crop="none", hflip=0.0),
    optim=Optim(name="muon", lr=0.01, warmup_epochs=1),
)
SHORT = replace(RECIPE, epochs=1, optim=Optim(name="muon", lr=0.01, warmup_epochs=0))
ALONE = Settings(threads=1)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    return public.train_folds(RECIPE, tmp_path_factory.mktemp("folds") / "run", 3, distill=True, settings=ALONE)


def test_every_training_image_is_judged_once_by_the_network_that_did_not_learn_from_it(ensemble):
    seen = predict_validation(ensemble, ensemble.load_model())
    dataset = open_dataset("digits")
    train = dataset.splits["train"]
    assert seen.logits.shape == (len(train), 10)
    assert seen.labels.tolist() == train.labels.tolist()
    place = {row: i for i, row in enumerate(train.rows.tolist())}
    judged = np.zeros(len(train), int)
    for member in ensemble.members:
        learnt, held = split_training(dataset, member.recipe)
        assert not set(learnt.rows) & set(held.rows)
        held_places = [place[row] for row in held.rows.tolist()]
        judged[held_places] += 1
        own = predict_validation(member, member.load_model()).logits
        torch.testing.assert_close(seen.logits[held_places], own)
    assert (judged == 1).all()


def test_its_number_is_that_of_all_the_images(ensemble):
    result = public.evaluate(ensemble, split="val")
    seen = predict_validation(ensemble, ensemble.load_model())
    assert result.images == 1438
    assert result.top1 == pytest.approx((seen.logits.argmax(1) == seen.labels).double().mean().item())
    assert ensemble.info["best"]["val_top1"] == result.top1
    low, high = result.top1_interval
    assert low < result.top1 < high


def test_its_network_is_that_of_all_members(ensemble):
    images = torch.randn(4, 1, 8, 8)
    with torch.inference_mode():
        answers = [member.load_model()(images).softmax(dim=1) for member in ensemble.members]
        torch.testing.assert_close(ensemble.load_model()(images).exp(), torch.stack(answers).mean(dim=0))
    assert len({member.preprocessing() for member in ensemble.members}) == 1


def test_a_threshold_of_single_networks_is_said_to_be_one(ensemble):
    result = public.evaluate(ensemble, positive="3", sensitivity=0.9)
    assert any("fitted on what single networks say" in note for note in result.notes)


def test_what_has_seen_the_labels_is_no_beginning_of_folds(ensemble, tmp_path):
    known = public.train(replace(RECIPE, epochs=2), tmp_path / "known", settings=ALONE)
    with pytest.raises(UserError, match="has learnt from the same images"):
        public.train_folds(replace(RECIPE, init=str(known.path)), tmp_path / "folds", 2, settings=ALONE)
    assert not (tmp_path / "folds").exists()
    (tmp_path / "link").symlink_to(known.path / "best")
    for init in (known.path / "best", known.path / "best" / "model.safetensors", tmp_path / "link"):
        with pytest.raises(UserError, match="has learnt from the same images"):
            public.train_folds(replace(RECIPE, init=str(init)), tmp_path / "folds", 2, settings=ALONE)
    # A record of an earlier version, of data that is grouped by now.
    dataset = open_dataset("digits")
    data = {name: value for name, value in known.info["data"].items() if name != "image_fingerprint"}
    known.update(data=data)
    assert has_learnt_from(str(known.path), dataclasses.replace(dataset, fingerprint="of groups"))
    assert not has_learnt_from(str(known.path), dataclasses.replace(dataset, fingerprint="", image_fingerprint="other"))


def test_a_refused_first_fold_leaves_the_folder_free(tmp_path):
    rng = np.random.default_rng(0)
    few = {"train_images": rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), "train_labels": np.arange(40) % 2}
    np.savez(tmp_path / "few.npz", **few)
    recipe = replace(RECIPE, data=str(tmp_path / "few.npz"))
    with pytest.raises(UserError, match="larger than the 20 training images"):
        public.train_folds(recipe, tmp_path / "run", 2, settings=ALONE)
    assert public.train_folds(replace(recipe, batch_size=8), tmp_path / "run", 2, settings=ALONE).finished
    short = Settings(threads=1, budget_seconds=2.0, reserve_seconds=3.0)
    with pytest.raises(UserError, match="leaves nothing for 2 trainings"):
        public.train_folds(recipe, tmp_path / "short", 2, settings=short)
    assert not (tmp_path / "short").exists()
    np.savez(tmp_path / "own.npz", **few, val_images=few["train_images"], val_labels=few["train_labels"])
    with pytest.raises(UserError, match="brings validation images of its own; leave folds out"):
        public.train_folds(replace(recipe, data=str(tmp_path / "own.npz")), tmp_path / "own", 2, settings=ALONE)


def test_a_number_of_folds_is_a_whole_number(tmp_path):
    for folds in ("2", 2.5, True, 1):
        with pytest.raises(UserError, match=r"^folds="):
            public.train_folds(RECIPE, tmp_path / "run", folds, settings=ALONE)
    X, y = np.zeros((8, 8, 8), np.uint8), np.arange(8) % 2
    with pytest.raises(UserError, match="must be a whole number"):
        public.ViTClassifier(folds="2", budget="9s").fit(X, y)


def test_a_single_network_learns_from_it(ensemble):
    distilled = public.load_run(ensemble.path / "distilled")
    assert distilled.recipe.method == "distillation"
    assert distilled.recipe.method_args["teacher"] == str(ensemble.path.absolute())
    assert distilled.recipe.folds == 0
    assert "train_student_from_teacher" in distilled.metrics()[-1]
    assert (distilled.path / "report.html").exists()


def test_a_number_of_images_that_its_teacher_knows_is_said_to_be_too_good_wherever_it_is_shown(ensemble, tmp_path):
    distilled, note = public.load_run(ensemble.path / "distilled"), "so their number is too good"
    assert note in distilled.validation_note
    assert note in (distilled.path / "report.html").read_text()
    assert any(note in line for line in public.evaluate(distilled, split="val").notes)
    assert not any(note in line for line in public.evaluate(distilled).notes)


def test_another_seed_holds_out_images_that_a_teacher_knows_and_the_same_one_does_not(tmp_path):
    teacher = public.train(SHORT, tmp_path / "teacher", settings=ALONE)
    inside = public.export(teacher, "timm").path  # into the run itself
    taught = replace(SHORT, method="distillation", method_args={"teacher": str(teacher.path)})
    notes = {}
    for name, recipe in {
        "same": taught,
        "other": replace(taught, seed=5),
        "exported": replace(taught, seed=5, method_args={"teacher": str(inside)}),
        "begun": replace(SHORT, seed=5, init=str(teacher.path)),
    }.items():
        notes[name] = public.train(recipe, tmp_path / name, settings=ALONE).validation_note
    assert notes.pop("same") == ""
    assert all("has learnt from the validation images" in note for note in notes.values())


def test_an_ensemble_says_what_unlabelled_images_show(ensemble, tmp_path):
    moved = np.roll(open_dataset("digits").splits["test"].array[:60], 1, axis=1)
    np.savez(tmp_path / "loose.npz", train_images=moved)
    args = {"teacher": str(ensemble.path), "unlabelled": str(tmp_path / "loose.npz"), "confidence": 0.2}
    student = public.train(
        replace(SHORT, method="self_training", method_args=args), tmp_path / "student", settings=ALONE
    )
    labels = load_file(student.path / "soft_labels.safetensors")["soft_labels"]
    answers = public.Predictor(ensemble.path).probabilities(list(moved[..., 0]))  # calibrated, of all its networks
    sure = answers[answers.max(axis=1) >= 0.2]
    torch.testing.assert_close(labels, torch.from_numpy(sure), rtol=1e-4, atol=1e-4)
    assert "has learnt from the validation images" in student.validation_note


def test_folds_of_grades_are_distilled_without_what_distillation_does_not_know(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "grades.npz", train_images=pixels, train_labels=np.arange(40) % 3)
    args = {"distance_weight": 0.5, "label_smoothing": 0.1}
    data = str(tmp_path / "grades.npz")
    recipe = replace(SHORT, data=data, labels="grades", batch_size=8, method_args=args)
    public.train_folds(recipe, tmp_path / "run", 2, distill=True, settings=ALONE)
    known = public.load_run(tmp_path / "run" / "distilled").recipe.method_args
    assert known["label_smoothing"] == 0.1
    assert "distance_weight" not in known


def test_the_interval_of_grouped_images_is_over_the_groups(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    rows = [f"{i}.png,{'ab'[i % 2]},patient {i // 6}" for i in range(60)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,patient", *rows]))
    command = ("train", tmp_path / "list.csv", "--folds", 2, "group=patient", "epochs=1", "--threads", 1)
    out = " ".join(vitling(*command, "--out", tmp_path / "run").split())
    low, high = json.loads((tmp_path / "run" / "evaluation-val.json").read_text())["top1_interval"]
    assert f"(95 % interval over 10 groups {100 * low:.1f} to {100 * high:.1f} %)" in out
    assert "of 5 groups" in (tmp_path / "run" / "report.html").read_text()


def test_interrupted_it_resumes_and_is_the_same(ensemble, tmp_path):
    class Interrupting(Callback):
        def __init__(self):
            self.folds = 0

        def log(self, message):
            self.folds += message.startswith("fold ")

        def on_validation(self, record, timing):
            if self.folds == 2 and record["epoch"] == 2:
                raise KeyboardInterrupt

    settings = Settings(threads=1, checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        public.train_folds(RECIPE, tmp_path / "run", 3, settings=settings, callback=Interrupting())
    first = (tmp_path / "run" / "fold-1" / "best" / "model.safetensors").read_bytes()
    run = public.train_folds(RECIPE, tmp_path / "run", 3, settings=settings)
    assert (tmp_path / "run" / "fold-1" / "best" / "model.safetensors").read_bytes() == first
    for name, value in load_file(ensemble.path / "best" / "model.safetensors").items():
        assert torch.equal(value, load_file(run.path / "best" / "model.safetensors")[name]), name
    again = public.train_folds(RECIPE, tmp_path / "run", 3, settings=settings)
    assert again.info == run.info


def test_the_commands_take_it_like_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["epochs=2", "--threads", "1"]
    out = vitling("train", "digits", "--folds", 2, *small, "--out", "run")
    assert "Out-of-fold accuracy" in out
    assert "all 1,438 images" in out
    assert (tmp_path / "run" / "report.html").exists()
    assert "finished already" in vitling("train", "digits", "--folds", 2, *small, "--out", "run")
    assert json.loads(vitling("evaluate", "run", "--json"))["images"] == 359
    assert "its ensemble is 2 folds, not 3 folds" in error("train", "digits", "--folds", 3, *small, "--out", "run")
    assert "its ensemble is 2 folds, not none" in error("train", "digits", *small, "--out", "run")
    vitling("export", "run", "--to", "onnx", "--out", "model.onnx")
    image = tmp_path / "image.png"
    write_image(image)
    asked = ("--json", "--top", "10")
    by_run, by_file = (json.loads(vitling("predict", model, image, *asked)) for model in ("run", "model.onnx"))
    assert [one["classes"] for one in by_run] == [one["classes"] for one in by_file]


def write_image(path):
    Image.fromarray((load_digits().images[0] * 15).astype(np.uint8)).save(path)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["diagnose", "RUN"], "a diagnosis looks into one network"),
        (["improve", "RUN", "--budget", "1m", "--out", "OUT"], "an improvement begins with one network"),
        (["train", "digits", "--out", "RUN", "--more", "1m"], "training goes on with one network"),
        (["relabel", "RUN", "digits", "--out", "OUT"], "label maps are made by one network"),
        (["evaluate", "RUN", "--split", "train"], "split=val shows each by the one that did not"),
        (["train", "digits", "--distill", "--out", "OUT"], "--distill is for --folds"),
        (["train", "digits", "--folds", "3", "--more", "1m", "--out", "OUT"], "leave --folds out"),
        (["train", "digits", "folds=3", "--folds", "3", "--out", "OUT"], "leave one of the two out"),
    ],
)
def test_what_needs_one_network_says_so(command, reason, ensemble, tmp_path):
    named = {"RUN": ensemble.path, "OUT": tmp_path / "out"}
    assert reason in error(*(named.get(word, word) for word in command))
    assert not (tmp_path / "out").exists()


def test_a_budget_too_short_for_all_folds_names_one_and_leaves_the_folder_free(tmp_path):
    line = error("train", "digits", "--folds", 5, "--budget", "5s", "--out", tmp_path / "run")
    assert "one of 5 trainings" in line
    assert "would do" in line
    assert not (tmp_path / "run").exists()


def test_another_size_of_images_is_refused(ensemble):
    with pytest.raises(UserError, match="another img_size is for one network"):
        public.evaluate(ensemble, img_size=16)


def test_the_estimator_predicts_with_all_folds(tmp_path):
    images, labels = load_digits(return_X_y=True)
    images, labels = images[:300].reshape(-1, 8, 8), labels[:300]
    classifier = public.ViTClassifier(RECIPE, folds=2, threads=1).fit(images, labels)
    assert classifier.model_.num_features == 64
    assert classifier.predict_proba(images[:5]).sum(axis=1) == pytest.approx(np.ones(5))
    assert len(classifier.history_) == 6
    classifier.export("onnx", tmp_path / "model.onnx")
    Image.fromarray(np.rint(images[0] * 255 / 16).astype(np.uint8)).save(tmp_path / "image.png")
    [answer] = public.predict(tmp_path / "model.onnx", [tmp_path / "image.png"], top=10)
    expected = dict(zip(map(str, classifier.classes_), classifier.predict_proba(images[:1])[0], strict=True))
    assert answer.probabilities == pytest.approx([expected[name] for name in answer.classes], abs=1e-4)
    with pytest.raises(UserError, match="leave folds out"):
        classifier.set_params(warm_start=True).fit(images, labels)
