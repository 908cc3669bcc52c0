"""Every family's images go the release's way: the same indices, boxes and pixels for a fixed draw, in training and in testing.

The releases' way is spelled out with the libraries that they use, timm and torchvision on Pillow images, fed with our random
numbers. What each release does stands in one table of cases; a further recipe is one more row.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import timm.data.auto_augment as timm_augment
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as TF
from PIL import Image
from timm.data import create_transform
from timm.data.transforms import RandomResizedCropAndInterpolation

from vitling.data import decode
from vitling.data.augment.pillow_ops import OPERATIONS
from vitling.data.pipeline.loader import TrainLoader, generator_for
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import prepare_training_data
from vitling.recipes import load_recipe, override
from vitling.training.setup import create_augment

RATIO = (3 / 4, 4 / 3)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE = 32  # in place of 224: the shares are the same
PHOTOS = [(34, 48), (48, 34), (36, 36), (35, 41)]  # heights and widths; larger ones would be kept a little smaller
SMALL = [(16, 16)]  # in place of CIFAR's 32, which is enlarged to 224


@dataclass(frozen=True)
class Release:
    """What a release does, from its spec. `steps` in its order; `test` is its test transform of Pillow images."""

    steps: tuple[str, ...]
    bicubic: bool | None  # None: drawn anew for each use
    test: T.Compose
    mean_and_std: tuple = IMAGENET
    scale: tuple[float, float] = (0.08, 1.0)
    photos: tuple = tuple(PHOTOS)
    img_size: int | None = SIDE
    repeats: int = 1


def resize(size, how="BILINEAR"):
    return T.Resize(size, getattr(T.InterpolationMode, how))


def timm_test(crop_share):
    """timm's own test transform, as far as pixels."""
    return T.Compose(create_transform(SIDE, crop_pct=crop_share, interpolation="bicubic").transforms[:2])


CIFAR = dict(photos=tuple(SMALL))
BOOTSTRAPPING = (0.5071, 0.4867, 0.4408), (0.2023, 0.1994, 0.2010)
T2T_TRANSFER = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
RANDOM_CROP = ("crop", "flip", "randaugment", "erase")
RELEASES = {
    "dhvt/cifar100_tiny_patch4": Release(
        ("pad crop", "flip", "randaugment", "erase"), True, T.Compose([]), img_size=None, repeats=3, **CIFAR
    ),
    "dhvt/domainnet_tiny": Release(
        RANDOM_CROP, True, T.Compose([resize(36, "BICUBIC"), T.CenterCrop(SIDE)]), repeats=3
    ),
    "dhvt/imagenet_small": Release(RANDOM_CROP, True, timm_test(0.875), repeats=3),
    "t2t/imagenet_14": Release(RANDOM_CROP, None, timm_test(0.9)),
    "t2t/cifar10_14": Release(("enlarge", "pad crop", "flip"), False, T.Compose([resize(SIDE)]), T2T_TRANSFER, **CIFAR),
    "lvvit/imagenet_s": Release(("flip", "randaugment", "crop", "erase"), None, timm_test(0.9)),
    "lvvit/imagenet_m": Release(("flip", "randaugment", "crop", "erase"), None, timm_test(1.0)),
    "bootstrapping/cifar100_vit_s": Release(
        ("pad crop", "flip", "enlarge"), False, T.Compose([resize(SIDE)]), BOOTSTRAPPING, **CIFAR
    ),
    "bootstrapping/imagenet_vit_s": Release(
        ("crop", "flip"), False, T.Compose([resize(36), T.CenterCrop(SIDE)]), scale=(0.6, 1.0)
    ),
    "diagnosis/cifar10_vit": Release(
        ("pad crop", "flip"), False, T.Compose([]), ((0.0,) * 3, (1.0,) * 3), img_size=None, **CIFAR
    ),
}


def photograph(height, width, number):
    """Smooth colours with some texture, different everywhere, so that a wrong place or order shows."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    planes = [np.sin(5 * x + number + c) + np.cos(7 * y * (1 + 0.2 * c) - number) for c in range(3)]
    noise = np.random.default_rng(number).normal(0, 0.15, (height, width, 3))
    return ((np.stack(planes, axis=-1) + noise + 2.5) * 51).clip(0, 255).astype(np.uint8)


@pytest.fixture
def prepared(request, tmp_path):
    """A recipe on photographs of its kind: the data as it is trained on, and the recipe."""
    name = request.param
    release, number = RELEASES[name], 0
    for split in ("train", "val"):
        for _ in range(4):
            for size in release.photos * (4 // len(release.photos)):
                path = tmp_path / split / "ab"[number % 2] / f"{number:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(photograph(*size, number)).save(path)
                number += 1
    settings = [f"data={tmp_path}", f"img_size={release.img_size or 'none'}", "batch_size=16", "method=supervised"]
    recipe = override(override(load_recipe(name), {"method_args": {}}), [*settings, "optim.warmup_epochs=0"])
    return name, recipe, prepare_training_data(recipe, Reading(), model_size=(SIDE, SIDE))


def crop_box(image, draws, i, scale):
    """timm's own box, from our uniform numbers."""
    shape, place = draws["crop_shape"][i].flatten().tolist(), draws["crop_place"][i].tolist()
    uniform, places = iter(shape), iter(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "uniform", lambda low, high: low + (high - low) * next(uniform))
        patch.setattr(random, "randint", lambda low, high: int(next(places) * (high + 1)))
        return RandomResizedCropAndInterpolation.get_params(image, scale, RATIO)


def randaugment(image, draws, i, fill, cubic):
    for op, argument, is_cubic in zip(draws["op"][i].tolist(), draws["argument"][i].tolist(), cubic, strict=True):
        if op < 0:
            continue
        name = OPERATIONS[op]
        if (name, argument) == ("Posterize", 0):  # which Pillow 13 refuses; before, it was black
            image = Image.new("RGB", image.size)
            continue
        whole = name in ("Posterize", "Solarize", "SolarizeAdd")
        arguments = [] if name in ("AutoContrast", "Equalize", "Invert") else [int(argument) if whole else argument]
        resample = Image.Resampling.BICUBIC if is_cubic else Image.Resampling.BILINEAR
        timm_name = name + "Rel" if name.startswith("Translate") else name
        image = timm_augment.NAME_TO_OP[timm_name](image, *arguments, fillcolor=fill, resample=resample)
    return image


def release_image(image, draws, i, release):
    """What the release makes of one image with these draws, and the box that it crops."""
    box = None
    fill = tuple(round(255 * value) for value in release.mean_and_std[0])
    cubic = [release.bicubic] * draws["cubic"].shape[1] if release.bicubic is not None else draws["cubic"][i].tolist()
    how = TF.InterpolationMode.BICUBIC if cubic[0] else TF.InterpolationMode.BILINEAR
    for step in release.steps:
        if step == "enlarge":
            image = TF.resize(image, [SIDE, SIDE], how)
        elif step == "pad crop":
            side = image.width
            padding = side // 8
            top, left = (int(u * (2 * padding + 1)) for u in draws["crop_place"][i].tolist())
            image = TF.crop(TF.pad(image, padding), top, left, side, side)
        elif step == "crop":
            box = crop_box(image, draws, i, release.scale)
            image = TF.resized_crop(image, *box, [SIDE, SIDE], how)
        elif step == "flip":
            image = TF.hflip(image) if draws["flip"][i, 1] else image
        elif step == "randaugment":
            image = randaugment(image, draws, i, fill, cubic[1:])
    return image, box


@pytest.mark.parametrize("prepared", RELEASES, indirect=True)
def test_training_images_go_the_releases_way(prepared):
    name, recipe, data = prepared
    release = RELEASES[name]
    augment = create_augment(recipe, data)
    assert (augment.erase == 0.25) == ("erase" in release.steps)
    loader = TrainLoader(data.train, augment, recipe=recipe, device=torch.device("cpu"), with_geometry=True)
    [batch] = next(iter(loader.epoch(0)))
    draws = augment.draw(recipe.batch_size, generator_for(recipe.seed, "augment", 0))

    order = torch.randperm(16, generator=generator_for(recipe.seed, "order", 0))
    assert batch["index"].tolist() == order.repeat_interleave(release.repeats)[:16].tolist()

    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in release.mean_and_std)
    images, geometry = data.dataset.splits["train"], batch["geometry"]
    differences = []
    for i, index in enumerate(batch["index"].tolist()):
        expected, box = release_image(Image.fromarray(images.read(index)), draws, i, release)
        if box:
            frame = geometry.frames[i, geometry.crop_frame[i]].double()
            height, width = geometry.sizes[i].tolist()
            sides = frame[[1, 0], [1, 0]].abs() * torch.tensor([height, width])
            corner = (frame[[1, 0], 2] + 1) * torch.tensor([height, width]) / 2 - sides / 2
            # Where RandAugment comes after the crop, the crop's frame holds its moves too.
            if release.steps.index("crop") > 0 or "randaugment" not in release.steps:
                assert (*corner.round().int().tolist(), *sides.round().int().tolist()) == box
        top, left, bottom, right = geometry.erased[i].tolist()
        seen = torch.ones(expected.height, expected.width, dtype=torch.bool)
        seen[top:bottom, left:right] = False
        ours = (batch["image"][i] * std + mean) * 255
        differences.append((ours - TF.pil_to_tensor(expected).float()).abs()[:, seen].flatten())
    # Resampling differs by a grey level here and there, which equalising can enlarge; any other order differs by dozens.
    each = torch.stack([difference.mean() for difference in differences])
    assert each.median() < 0.1
    assert each.max() < 2


@pytest.mark.parametrize("prepared", RELEASES, indirect=True)
def test_test_images_go_the_releases_way(prepared):
    name, _, data = prepared
    images, release = data.dataset.splits["val"], RELEASES[name]
    pixels = decode(images, **data.preprocessing.fit_args())
    for i in range(len(images)):
        assert torch.equal(pixels[i], TF.pil_to_tensor(release.test(Image.fromarray(images.read(i)))))
    normalised = data.preprocessing.normalize(pixels)
    mean, std = release.mean_and_std
    torch.testing.assert_close(normalised, TF.normalize(pixels / 255, list(mean), list(std)), atol=1e-5, rtol=1e-5)
