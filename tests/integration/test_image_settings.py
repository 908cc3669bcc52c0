"""Test crop, interpolation, mirror images, corners and moved images travel with a run: into its evaluation, its predictions and everything that is exported from it."""

import json

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch.nn import functional as F

import vitling
from vitling.data import FileImages, load_image
from vitling.deploy.export import export
from vitling.methods.token_labeling.label_maps import LabelMaps
from vitling.recipes import Augment, Optim, Recipe, load_recipe
from vitling.runs.opening import open_model
from vitling.training.beginning import train
from vitling.training.settings import Settings

ONE_THREAD = Settings(threads=1)
LOOK = dict(img_size=16, fit="crop", test_crop=0.5, interpolation="bilinear")


def make_folder(root):
    """The classes differ in the middle; around it is noise, and of every size."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 6)):
        for label in (0, 1):
            for i in range(count):
                height, width = 40 + 4 * (i % 3), 40 + 6 * (i % 4)
                image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
                image[height // 4 : -height // 4, width // 4 : -width // 4] = (200 if label else 50) + image[0, 0] // 16
                path = root / split / ("dark", "light")[label] / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(path)
    return root


def make_recipe(folder):
    return Recipe(
        model="hybrid_vit_test",
        data=str(folder),
        epochs=2,
        batch_size=16,
        augment=Augment(crop="resized", crop_scale=(0.3, 1.0), crop_when="last", interpolation="bilinear"),
        optim=Optim(lr=2e-3, warmup_epochs=0),
        **LOOK,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return train(make_recipe(folder), tmp_path_factory.mktemp("runs") / "run", settings=ONE_THREAD)


def images_of(folder):
    paths = sorted((folder / "test").glob("*/*.png"))
    return paths, FileImages(paths, [0] * len(paths))


def test_the_run_keeps_them_and_evaluates_with_them(run, folder):
    seen = run.preprocessing()
    assert (seen.test_crop, seen.interpolation, seen.fit) == (0.5, "bilinear", "crop")
    assert (run.recipe.test_crop, run.recipe.interpolation) == (0.5, "bilinear")
    result = vitling.evaluate(run.path)
    paths, images = images_of(folder)
    pixels = np.stack([load_image(images, i, (16, 16), "crop", 3, **_how()) for i in range(len(images))])
    with torch.inference_mode():
        logits = run.load_model()(seen.normalize(torch.from_numpy(pixels)))
    correct = sum(p.parent.name == run.class_names[k] for p, k in zip(paths, logits.argmax(1).tolist(), strict=True))
    assert result.top1 == pytest.approx(correct / len(paths))


def _how():
    return dict(test_crop=0.5, interpolation="bilinear")


def test_predictions_look_at_the_centre_only(run, folder, tmp_path):
    path = next((folder / "test" / "dark").glob("*.png"))
    image = np.array(Image.open(path))
    height, width = image.shape[:2]
    outside = np.ones((height, width), bool)
    half = min(height, width) // 4 + 2
    outside[height // 2 - half : height // 2 + half, width // 2 - half : width // 2 + half] = False
    image[outside] = 255
    Image.fromarray(image).save(tmp_path / "framed.png")
    first, second = vitling.predict(run.path, [path, tmp_path / "framed.png"])
    assert first.probabilities == second.probabilities


def test_exports_say_them_and_predict_the_same(run, folder, tmp_path):
    pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
    paths, _ = images_of(folder)
    expected = [p.probabilities for p in vitling.predict(run.path, paths)]
    for to, out in (("timm", tmp_path / "folder"), ("onnx", tmp_path / "model.onnx")):
        exported = export(run, to, out)
        seen = open_model(exported.path).preprocessing
        assert seen == run.preprocessing()
        again = [p.probabilities for p in vitling.predict(exported.path, paths)]
        np.testing.assert_allclose(again, expected, atol=1e-4)
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "32 x 32, of which the centre of that size is cut out (bilinear, antialiased)" in card


@pytest.mark.parametrize("saved", ["run", "export"])
def test_config_json_says_them_as_timm_does_and_timms_transform_gives_our_pixels(run, folder, tmp_path, saved):
    place = run.path / "best" if saved == "run" else export(run, "timm", tmp_path / "folder").path
    config = json.loads((place / "config.json").read_text())["pretrained_cfg"]
    assert (config["crop_pct"], config["interpolation"], config["crop_mode"]) == (0.5, "bilinear", "center")
    model = timm.create_model(f"local-dir:{place}", pretrained=True)
    transform = create_transform(**resolve_data_config({}, model=model))
    paths, images = images_of(folder)
    for i, path in enumerate(paths):
        ours = torch.tensor(load_image(images, i, (16, 16), "crop", 3, **_how()))[None]
        torch.testing.assert_close(
            run.preprocessing().normalize(ours)[0], transform(Image.open(path)), atol=1e-4, rtol=1e-4
        )


@pytest.fixture(scope="module")
def mirrored(folder, tmp_path_factory):
    recipe = vitling.override(make_recipe(folder), ["test_mirror=true", "augment.hflip=0"])
    return train(recipe, tmp_path_factory.mktemp("runs") / "mirrored", settings=ONE_THREAD)


def test_the_mirror_image_is_asked_too_by_validation_evaluation_and_prediction(mirrored, folder):
    seen, model = mirrored.preprocessing(), mirrored.load_model()
    assert seen.test_mirror
    paths, images = images_of(folder)
    pixels = np.stack([load_image(images, i, (16, 16), "crop", 3, **_how()) for i in range(len(images))])
    with torch.inference_mode():
        first, second = (model(seen.normalize(torch.from_numpy(x.copy()))) for x in (pixels, pixels[..., ::-1]))
    assert not torch.allclose(first, second, atol=1e-3)
    mean = (first + second) / 2
    found = vitling.predict(mirrored.path, paths, calibrated=False)
    likeliest_first = mean.softmax(1).sort(dim=1, descending=True).values.numpy()
    np.testing.assert_allclose([p.probabilities for p in found], likeliest_first, atol=1e-5)
    flipped = torch.from_numpy(pixels[..., ::-1].copy())
    torch.testing.assert_close(open_model(mirrored.path).logits(flipped), mean, atol=1e-5, rtol=1e-5)
    result = vitling.evaluate(mirrored.path)
    correct = sum(p.parent.name == mirrored.class_names[k] for p, k in zip(paths, mean.argmax(1).tolist(), strict=True))
    assert result.top1 == pytest.approx(correct / len(paths))
    logits = mirrored.validation.logits
    with torch.inference_mode():
        shown = seen.normalize(mirrored.validation.source.images)
        torch.testing.assert_close(logits, (model(shown) + model(shown.flip(-1))) / 2, atol=1e-4, rtol=1e-4)


def test_exports_ask_the_mirror_image_too_and_the_card_says_so(mirrored, folder, tmp_path):
    pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
    paths, _ = images_of(folder)
    expected = [p.probabilities for p in vitling.predict(mirrored.path, paths)]
    for to, out in (("timm", tmp_path / "folder"), ("onnx", tmp_path / "model.onnx")):
        again = [p.probabilities for p in vitling.predict(export(mirrored, to, out).path, paths)]
        np.testing.assert_allclose(again, expected, atol=1e-4)
    assert (
        "the mean of the logits of an image and of its mirror image" in (tmp_path / "folder" / "README.md").read_text()
    )


def corners(images):
    """The four corners of 13 of 16 pixels, as large as the whole."""
    cut = (slice(0, 13), slice(3, 16))
    return [F.interpolate(images[..., rows, columns], (16, 16), mode="bilinear") for rows in cut for columns in cut]


def moved(images):
    """By one pixel up and to the left, and back beyond where it was; the row beside the edge fills it."""
    up = torch.cat([images[..., 1:, :], images[..., -2:-1, :]], dim=-2)
    down = torch.cat([images[..., 1:2, :], images[..., :-1, :]], dim=-2)
    return [
        torch.cat([up[..., 1:], up[..., -2:-1]], dim=-1),
        torch.cat([down[..., 1:2], down[..., :-1]], dim=-1),
    ]


VIEWS = {  # by the recipe's key: the crops that it goes with, how it is made, what the card says of it
    "test_crops": ("resized", corners, "its four corners"),
    "test_shifts": ("pad", moved, "the image moved a little, twice"),
}


@pytest.fixture(scope="module", params=VIEWS)
def viewed(request, folder, tmp_path_factory):
    """A run that asks about more views by itself, and one that does not."""
    crop = VIEWS[request.param][0]
    plain = vitling.override(make_recipe(folder), [f"augment.crop={crop}"])
    asking = vitling.override(plain, [f"{request.param}=true", "augment.hflip=0"])
    place = tmp_path_factory.mktemp("runs")
    return (
        request.param,
        train(asking, place / "asking", settings=ONE_THREAD),
        train(plain, place / "plain", settings=ONE_THREAD),
    )


@pytest.mark.parametrize("asked", ["recipe", "tta"])
def test_more_views_are_asked_about_where_the_recipe_or_the_command_says_so(viewed, folder, asked):
    key, asking, plain = viewed
    given = asking if asked == "recipe" else plain
    seen, model = given.preprocessing(), given.load_model()
    paths, images = images_of(folder)
    pixels = torch.from_numpy(
        np.stack([load_image(images, i, (16, 16), "crop", 3, **_how()) for i in range(len(images))])
    )
    shown = seen.normalize(pixels)
    views = [shown, *VIEWS[key][1](shown)]
    views += [view.flip(-1) for view in views] if asked == "tta" else []
    with torch.inference_mode():
        mean = torch.stack([model(view) for view in views]).mean(0)
        assert not torch.allclose(mean, model(shown), atol=1e-3)
    how = dict(tta=True) if asked == "tta" else {}
    found = vitling.predict(given.path, paths, calibrated=False, **how)
    likeliest_first = mean.softmax(1).sort(dim=1, descending=True).values.numpy()
    np.testing.assert_allclose([p.probabilities for p in found], likeliest_first, atol=1e-5)
    result = vitling.evaluate(given.path, **how)
    correct = sum(p.parent.name == given.class_names[k] for p, k in zip(paths, mean.argmax(1).tolist(), strict=True))
    assert result.top1 == pytest.approx(correct / len(paths))
    assert result.tta == (asked == "tta")


def test_views_that_the_run_asks_about_by_itself_are_said_to_add_nothing(folder, tmp_path):
    views = ["augment.crop=resized", "augment.hflip=0.5", "test_mirror=true", "test_crops=true"]
    run = train(vitling.override(make_recipe(folder), views), tmp_path / "run", settings=ONE_THREAD)
    alone, more = vitling.evaluate(run.path), vitling.evaluate(run.path, tta=True)
    assert more.loss == alone.loss
    assert [note for note in more.notes if "tta adds nothing" in note]
    assert not [note for note in alone.notes if "tta" in note]


def test_views_that_training_never_showed_are_not_asked_about(folder, tmp_path):
    recipe = vitling.override(make_recipe(folder), ["augment.crop=none", "augment.hflip=0", "train_size=16"])
    run = train(recipe, tmp_path / "run", settings=ONE_THREAD)
    with pytest.raises(vitling.UserError, match="neither crops nor mirror images"):
        vitling.evaluate(run.path, tta=True)
    with pytest.raises(vitling.UserError, match="neither crops nor mirror images"):
        vitling.predict(run.path, images_of(folder)[0], tta=True)


def test_all_views_are_kept_beside_what_the_run_does_by_itself(run):
    vitling.evaluate(run.path)
    alone = (run.path / "evaluation-test.json").read_bytes()
    vitling.evaluate(run.path, tta=True)
    assert (run.path / "evaluation-test.json").read_bytes() == alone
    assert json.loads((run.path / "evaluation-test-tta.json").read_text())["tta"] is True


def test_exports_ask_about_more_views_too_and_the_card_says_so(viewed, folder, tmp_path):
    pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
    key, asking, _ = viewed
    paths, _ = images_of(folder)
    expected = [p.probabilities for p in vitling.predict(asking.path, paths)]
    for to, out in (("timm", tmp_path / "folder"), ("onnx", tmp_path / "model.onnx")):
        again = [p.probabilities for p in vitling.predict(export(asking, to, out).path, paths)]
        np.testing.assert_allclose(again, expected, atol=1e-4)
    card = (tmp_path / "folder" / "README.md").read_text()
    assert f"the mean of the logits of an image and of {VIEWS[key][2]}" in card


def test_tokens_of_crops_from_whole_pictures_are_labelled_by_maps_of_whole_pictures(folder, tmp_path):
    recipe = vitling.override(
        make_recipe(folder),
        ["model=lvvit_test", "method=token_labeling", "method_args.relabel=auto", "method_args.annotator_epochs=1"],
    )
    run = train(recipe, tmp_path / "run", settings=ONE_THREAD)
    assert run.finished
    assert LabelMaps.open(run.path / "labels").header.fit == "resize"
    vitling.relabel(run.path / "annotator", str(folder), tmp_path / "central", fit="crop", raw_scores=True)
    for axes in ("official", "geometric"):
        again = vitling.override(recipe, {"method_args": dict(labels=str(tmp_path / "central"), axes=axes)})
        assert train(again, tmp_path / axes, settings=ONE_THREAD).finished


def test_a_run_that_was_recorded_before_opens_and_goes_on_as_it_did(folder, tmp_path):
    """Its files lack the newer keys: they mean what they meant, also for a training that goes on."""
    recipe = vitling.override(make_recipe(folder), ["test_crop=none", "interpolation=bicubic", "train_size=16"])
    recipe = vitling.override(recipe, ["augment.interpolation=random", "augment.crop_when=first"])
    run = train(recipe, tmp_path / "run", settings=ONE_THREAD)
    before = vitling.evaluate(run.path).top1
    tree = yaml.safe_load((run.path / "recipe.yaml").read_text())
    info = json.loads((run.path / "run.json").read_text())
    for known in (tree, info["asked"]["recipe"]):
        for key in ("test_crop", "interpolation", "test_split"):
            known.pop(key)
        for key in ("crop_at", "crop_when", "interpolation", "crop_padding_mode", "cutout"):
            known["augment"].pop(key)
    tree["train_size"] = None  # as it was written then: crops of images of the model's size
    for key in ("test_crop", "interpolation"):
        info["preprocessing"].pop(key)
    info["environment"]["vitling"] = "0.1.0"
    (run.path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    (run.path / "run.json").write_text(json.dumps(info))
    opened = vitling.load_run(run.path)
    assert load_recipe(run.path).train_size == (16, 16)
    assert (opened.preprocessing().test_crop, opened.preprocessing().interpolation) == (None, "bicubic")
    assert vitling.evaluate(opened).top1 == before
    assert vitling.predict(opened, folder / "test")
    assert train(recipe, run.path, settings=ONE_THREAD).finished
