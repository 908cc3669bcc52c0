"""Batched augmentation against Pillow, torchvision and timm, image by image."""

import math
import random
from functools import cache

import numpy as np
import pytest
import timm.data.auto_augment as timm_augment
import timm.data.mixup as timm_mixup
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import stats
from sklearn.datasets import load_sample_image
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision.transforms import ColorJitter

from vitling.data.augment.augment import Augment, Geometry
from vitling.data.augment.pillow_ops import OPERATIONS, apply_ops, op_index
from vitling.data.augment.randaugment import RandAugment
from vitling.errors import UserError
from vitling.methods.mixing import Mix

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILL = (124, 116, 104)
POLICY = "rand-m9-mstd0.5-inc1"
HEIGHT, WIDTH = 45, 60


@cache
def photos(n: int = 16, height: int = HEIGHT, width: int = WIDTH) -> torch.Tensor:
    """Pieces of two photographs, each with its own range of grey levels."""
    rng = np.random.default_rng(0)
    pieces = []
    for i in range(n):
        photo = load_sample_image(("china.jpg", "flower.jpg")[i % 2])
        side = int(rng.integers(60, 400))
        top, left = rng.integers(0, photo.shape[0] - side), rng.integers(0, photo.shape[1] - side)
        piece = Image.fromarray(photo[top : top + side, left : left + side]).resize((width, height))
        pieces.append(np.asarray(piece) * rng.uniform(0.5, 1))
    return torch.from_numpy(np.stack(pieces).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()


def to_pil(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.squeeze(0).numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> torch.Tensor:
    array = torch.from_numpy(np.asarray(image).copy())
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


def ours(name: str, images: torch.Tensor, arguments: list[float], cubic: bool = True) -> torch.Tensor:
    n = len(images)
    fill = torch.tensor(FILL if images.shape[1] == 3 else [124.0] * images.shape[1])
    op = torch.full((n,), op_index(name))
    return apply_ops(images, op, torch.tensor(arguments, dtype=torch.float64), torch.full((n,), cubic), fill)


TIMM_OPS = {
    **{name: name for name in ("AutoContrast", "Equalize", "Invert", "Posterize", "Solarize", "SolarizeAdd")},
    **{name: name for name in ("Color", "Contrast", "Brightness", "Sharpness", "Rotate", "ShearX", "ShearY")},
    "TranslateX": "TranslateXRel",
    "TranslateY": "TranslateYRel",
}


def pillows(name: str, images: torch.Tensor, arguments: list[float], cubic: bool = True) -> torch.Tensor:
    op = timm_augment.NAME_TO_OP[TIMM_OPS[name]]
    resample = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    fill = FILL if images.shape[1] == 3 else 124
    takes_none = name in ("AutoContrast", "Equalize", "Invert")
    return torch.stack(
        [
            from_pil(op(to_pil(image), *([] if takes_none else [argument]), fillcolor=fill, resample=resample))
            for image, argument in zip(images, arguments, strict=True)
        ]
    )


def spread(low: float, high: float, whole: bool = False) -> list[float]:
    values = np.linspace(low, high, 16)
    return [int(v) for v in values] if whole else values.tolist()


EXACT = {
    "AutoContrast": spread(0, 0),
    "Equalize": spread(0, 0),
    "Invert": spread(0, 0),
    "Posterize": spread(1, 8, whole=True),
    "Solarize": spread(0, 256, whole=True),
    "SolarizeAdd": spread(0, 128, whole=True),
    "Brightness": spread(0.1, 1.9),
    "Contrast": spread(0.1, 1.9),
    "Color": spread(0.1, 1.9),
    "Sharpness": spread(0.1, 1.9),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", EXACT)
def test_a_colour_operation_gives_exactly_what_pillow_gives(name, channels):
    images = photos()[:, :channels].contiguous()
    assert torch.equal(ours(name, images, EXACT[name]), pillows(name, images, EXACT[name]))


# No round fractions of a pixel: where the exact value is a whole number, Pillow's cut-off goes by its rounding errors.
GEOMETRIC = {
    "Rotate": spread(-29.93, 29.97),
    "ShearX": spread(-0.2993, 0.2997),
    "ShearY": spread(-0.2993, 0.2997),
    "TranslateX": spread(-0.4493, 0.4497),
    "TranslateY": spread(-0.4493, 0.4497),
}


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_a_geometric_operation_gives_what_pillow_gives(name, cubic):
    """All pixels but one in two hundred equal; those differ by one grey level, where rounding tips the cut-off."""
    images = photos()
    difference = ours(name, images, GEOMETRIC[name], cubic).int() - pillows(name, images, GEOMETRIC[name], cubic).int()
    assert difference.abs().max() <= 1
    assert (difference != 0).float().mean() < 1 / 200


def test_every_operation_is_compared_with_pillow():
    assert set(OPERATIONS) == set(EXACT) | set(GEOMETRIC) == set(TIMM_OPS)


def test_posterize_to_no_bits_is_black_and_does_not_raise():
    assert ours("Posterize", photos(), [0.0] * 16).eq(0).all()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("value", [0, 77, 255])
def test_a_flat_image_stays_flat_or_matches_pillow(name, value):
    images = torch.full((16, 3, 7, 5), value, dtype=torch.uint8)
    arguments = (EXACT | GEOMETRIC)[name]
    assert torch.equal(ours(name, images, arguments), pillows(name, images, arguments))


def test_images_of_one_batch_get_different_operations_in_one_call():
    images = photos()
    op = torch.tensor([*range(len(OPERATIONS)), -1])
    argument = torch.tensor(
        [{"Posterize": 3.0, "Rotate": 20.0, "SolarizeAdd": 50.0}.get(name, 0.3) for name in OPERATIONS] + [0.0]
    )
    cubic = torch.arange(16) % 2 == 0
    together = apply_ops(images, op, argument, cubic, torch.tensor(FILL))
    for i in range(16):
        one = slice(i, i + 1)
        assert torch.equal(
            together[one], apply_ops(images[one], op[one], argument[one], cubic[one], torch.tensor(FILL))
        )
    assert torch.equal(together[15], images[15])
    assert not any(torch.equal(together[i], images[i]) for i in range(15))


def test_only_three_channels_are_colours():
    for channels in (1, 2, 4, 12):
        images = photos().repeat(1, 4, 1, 1)[:, :channels].contiguous()
        assert torch.equal(ours("Color", images, EXACT["Color"]), images)
        grey = ours("Contrast", images, [0.0] * 16)
        assert torch.equal(grey.flatten(1).amin(1), grey.flatten(1).amax(1))
        assert torch.equal(grey[:, 0, 0, 0], (images.float().mean(dim=(1, 2, 3)) + 0.5).byte())


# RandAugment's draws


@pytest.mark.parametrize("increasing", [True, False])
@pytest.mark.parametrize("magnitude", [0.0, 2.7, 9.0, 10.0])
def test_magnitudes_become_timms_arguments(magnitude, increasing, monkeypatch):
    for sign, draw in ((1, 0.0), (-1, 1.0)):
        monkeypatch.setattr(random, "random", lambda draw=draw: draw)
        policy = RandAugment(increasing=increasing)
        arguments = policy.arguments(torch.tensor([magnitude], dtype=torch.float64), torch.tensor([sign]))
        names = timm_augment._RAND_INCREASING_TRANSFORMS if increasing else timm_augment._RAND_TRANSFORMS
        assert [TIMM_OPS[name] for name in arguments] == [name.removesuffix("Increasing") for name in names]
        for timm_name, argument in zip(names, arguments.values(), strict=True):
            level = timm_augment.LEVEL_TO_ARG[timm_name]
            expected = level(magnitude, {})[0] if level else 0
            assert argument.item() == pytest.approx(expected, rel=1e-12), timm_name


def test_the_configuration_string_is_read_as_timm_reads_it():
    assert RandAugment.parse(POLICY) == RandAugment(magnitude=9, magnitude_std=0.5, increasing=True)
    assert RandAugment.parse("rand-n3-m9-mstd0.5-inc1").num_ops == 3
    assert RandAugment.parse("rand-p0.7-mmax15-m12") == RandAugment(magnitude=12, prob=0.7, magnitude_max=15)


@pytest.mark.parametrize("config", ["augmix-m5", "rand-m", "rand-x3", "rand-n1.5", "rand-tweights", "rand-p3", ""])
def test_a_configuration_that_cannot_be_read_is_refused(config):
    with pytest.raises(UserError, match=r"Try rand-m9-mstd0\.5-inc1"):
        Augment(32, mean=MEAN, std=STD, randaugment=config)


def test_operations_are_drawn_evenly_and_half_of_them_applied():
    op, argument = RandAugment.parse(POLICY).draw(30000, torch.Generator().manual_seed(0))
    counts = torch.bincount(op.flatten() + 1, minlength=16)
    assert counts[0] / op.numel() == pytest.approx(0.5, abs=0.01)
    assert stats.chisquare(counts[1:].numpy()).pvalue > 1e-3
    shear = argument[op == op_index("ShearX")] / 0.3 * 10
    assert (shear > 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert shear.abs().max() == pytest.approx(10)  # the noise is clipped there
    assert shear.abs().quantile(0.5) == pytest.approx(9, abs=0.1)
    assert shear.abs().quantile(0.16) == pytest.approx(8.5, abs=0.1)


# Crop, flip, jitter, erasing


def augment(size=(HEIGHT, WIDTH), **settings) -> Augment:
    return Augment(size, **{"mean": MEAN, "std": STD, "hflip": 0.0} | settings)


def to_uint8(normalised: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return ((normalised * std + mean) * 255).round().byte()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("size", [(24, 32), (64, 80)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_resized_crop_gives_what_pillow_gives(size, interpolation):
    """Within one grey level, and equal for 99 pixels in 100: torch's uint8 resize has shorter weights than Pillow's.

    Pillow is made to resize the width first, as torch does. Pillow 13 starts with the height where that is cheaper, and
    rounds differently in between.
    """
    images = photos()
    transform = augment(size, crop="resized", interpolation=interpolation)
    result, geometry = transform.apply(images, transform.draw(16, seeded()), return_geometry=True)
    theirs = []
    for image, ((a, _, c), (_, e, f)) in zip(images, geometry.affine.tolist(), strict=True):
        left, right = round((c + 1 - a) * WIDTH / 2), round((c + 1 + a) * WIDTH / 2)
        top, bottom = round((f + 1 - e) * HEIGHT / 2), round((f + 1 + e) * HEIGHT / 2)
        resample = getattr(Image.Resampling, interpolation.upper())
        crop = to_pil(image).crop((left, top, right, bottom))
        theirs.append(from_pil(crop.resize((size[1], crop.height), resample).resize(size[::-1], resample)))
    difference = (to_uint8(result).int() - torch.stack(theirs).int()).abs()
    assert difference.max() <= 1
    assert (difference == 0).float().mean() > 0.99


def test_resized_crops_are_spread_like_timms():
    n, (H, W) = 4000, (45, 60)
    transform = augment(32, crop="resized")
    boxes = transform._crop_boxes(transform.draw(n, seeded()), H, W).double()
    random.seed(0)
    blank = Image.new("L", (W, H))
    theirs = [RandomResizedCropAndInterpolation.get_params(blank, (0.08, 1), (3 / 4, 4 / 3)) for _ in range(n)]
    top, left, height, width = torch.tensor(theirs).double().T
    for mine, other in [
        ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]), height * width),
        ((boxes[:, 3] - boxes[:, 1]) / (boxes[:, 2] - boxes[:, 0]), width / height),
        (boxes[:, 0], top),
        (boxes[:, 1], left),
    ]:
        assert stats.ks_2samp(mine.numpy(), other.numpy()).pvalue > 1e-3


def test_a_very_long_image_is_cropped_in_the_middle():
    transform = augment(32, crop="resized", crop_scale=(0.9, 1.0))
    boxes = transform._crop_boxes(transform.draw(5, seeded()), 20, 200)
    assert boxes.tolist() == [[0, 86, 20, 113]] * 5  # 27 wide: the ratio 4/3


@pytest.mark.parametrize(("mode", "torchs"), [("zeros", "constant"), ("reflect", "reflect")])
def test_a_padded_crop_is_a_window_of_the_image_with_zeros_or_its_reflection_around(mode, torchs):
    images, padding = photos(), 8
    transform = augment(crop="pad", crop_padding=padding, crop_padding_mode=mode)
    draws = transform.draw(16, seeded())
    result = to_uint8(transform.apply(images, draws))
    padded = F.pad(images, [padding] * 4, mode=torchs)
    corners = set()
    for image, window in zip(padded, result, strict=True):
        places = [
            (top, left)
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
            if torch.equal(image[:, top : top + HEIGHT, left : left + WIDTH], window)
        ]
        assert len(places) == 1
        corners.update(places)
    assert len(corners) > 8

    tops = transform._crop_boxes(transform.draw(20000, seeded()), HEIGHT, WIDTH)[:, 0] + padding
    assert stats.chisquare(torch.bincount(tops, minlength=2 * padding + 1).numpy()).pvalue > 1e-3


def test_flips_mirror_each_image_by_its_own_draw():
    images = photos()
    transform = augment(hflip=0.5, vflip=0.5)
    draws = transform.draw(16, seeded())
    result = to_uint8(transform.apply(images, draws))
    assert len({tuple(both) for both in draws["flip"].tolist()}) == 4
    for image, flipped, (vertical, horizontal) in zip(images, result, draws["flip"].tolist(), strict=True):
        assert torch.equal(flipped, image.flip([dim for dim, on in ((1, vertical), (2, horizontal)) if on]))
    share = augment(hflip=0.3).draw(20000, seeded())["flip"].float().mean(dim=0)
    assert share[0] == 0
    assert share[1] == pytest.approx(0.3, abs=0.02)


def test_colour_jitter_gives_what_torchvision_gives(monkeypatch):
    images = photos()
    transform = augment(color_jitter=0.4)
    draws = transform.draw(16, seeded())
    names = ("Brightness", "Contrast", "Color")
    theirs = []
    for image, ops, factors in zip(images, draws["op"].tolist(), draws["argument"].tolist(), strict=True):
        order = [names.index(OPERATIONS[op]) for op in ops]
        by_name = [factors[order.index(i)] for i in range(3)]
        monkeypatch.setattr(ColorJitter, "get_params", lambda *_, o=order, b=by_name: (torch.tensor(o), *b, None))
        theirs.append(from_pil(ColorJitter(0.4, 0.4, 0.4)(to_pil(image))))
    assert torch.equal(to_uint8(transform.apply(images, draws)), torch.stack(theirs))
    factors = transform.draw(5000, seeded())["argument"]
    assert stats.kstest(factors.flatten().numpy(), stats.uniform(0.6, 0.8).cdf).pvalue > 1e-3


def erased_boxes_of_timm(n: int, height: int, width: int) -> torch.Tensor:
    random.seed(0)
    erase = RandomErasing(1.0, mode="const", device="cpu")
    boxes = []
    for image in erase(torch.ones(n, 1, height, width)):
        rows, columns = (image[0] == 0).nonzero().T
        boxes.append([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1])
    return torch.tensor(boxes)


def test_erased_boxes_are_spread_like_timms():
    n, size = 4000, (45, 60)
    transform = augment(size, erase=1.0)
    mine = transform._erase_boxes(transform.draw(n, seeded())).numpy()
    theirs = erased_boxes_of_timm(n, *size).numpy()
    for measure in (
        lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]),
        lambda b: (b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]),
        lambda b: b[:, 0],
        lambda b: b[:, 1],
    ):
        assert stats.ks_2samp(measure(mine), measure(theirs)).pvalue > 1e-3
    some = augment(size, erase=0.25)
    assert (some._erase_boxes(some.draw(n, seeded()))[:, 2] > 0).float().mean() == pytest.approx(0.25, abs=0.03)


def test_erasing_writes_normal_noise_into_the_box_and_nowhere_else():
    images = torch.zeros(64, 3, 32, 40, dtype=torch.uint8)
    plain = augment((32, 40)).apply(images, augment((32, 40)).draw(64, seeded()))
    transform = augment((32, 40), erase=0.8)
    result, geometry = transform.apply(images, transform.draw(64, seeded()), return_geometry=True)
    noise = []
    for before, after, (top, left, bottom, right) in zip(plain, result, geometry.erased.tolist(), strict=True):
        box = torch.zeros(32, 40, dtype=torch.bool)
        box[top:bottom, left:right] = True
        assert torch.equal(before[:, ~box], after[:, ~box])
        noise.append(after[:, box].flatten())
    assert 30 < sum(len(values) > 0 for values in noise) < 64
    noise = torch.cat(noise).double()
    assert stats.kstest(noise.numpy(), "norm").statistic < 0.02
    assert len(noise.unique()) > 0.9 * len(noise)

    const = augment((32, 40), erase=1.0, erase_mode="const")
    result, geometry = const.apply(images, const.draw(64, seeded()), return_geometry=True)
    top, left, bottom, right = geometry.erased[0].tolist()
    assert result[0, :, top:bottom, left:right].eq(0).all()


# The whole


def everything(size=32, **settings) -> Augment:
    defaults = dict(crop="resized", hflip=0.5, vflip=0.5, randaugment=POLICY, color_jitter=0.4, erase=0.25)
    return augment(size, **{**defaults, **settings})


def test_a_cut_out_square_has_the_mean_colour_and_lies_anywhere():
    images = photos()
    plain = augment()(images)
    transform = augment(cutout=0.2)
    result = transform(images, seeded())
    side, areas = 0.2 * min(HEIGHT, WIDTH), []
    for image, whole in zip(result, plain, strict=True):
        changed = (image != whole).any(dim=0)
        rows, columns = changed.any(dim=1), changed.any(dim=0)
        box = rows[:, None] & columns[None]
        assert (image[:, box] == 0).all()
        assert torch.equal(image[:, ~box], whole[:, ~box])
        assert rows.sum() <= side + 1
        assert columns.sum() <= side + 1
        areas.append(box.sum().item())
    assert max(areas) == side**2  # whole squares
    assert min(areas) < side**2  # and some that reach beyond the edge


def test_a_setting_that_is_off_draws_nothing():
    assert torch.equal(
        augment(crop="pad").draw(4, seeded())["cubic"], augment(crop="pad", cutout=0.0).draw(4, seeded())["cubic"]
    )
    assert "cutout_place" not in augment().draw(4, seeded())


def test_normalisation_is_timms():
    images = photos()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(augment()(images), (images / 255 - mean) / std, rtol=1e-5, atol=1e-6)


def test_the_same_generator_gives_the_same_images_and_another_does_not():
    images = photos()
    first, again, other = (everything()(images, seeded(seed)) for seed in (1, 1, 2))
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_equal_images_in_one_batch_become_different_images():
    result = everything()(photos()[:1].repeat(64, 1, 1, 1), seeded())
    assert len({tuple(image.flatten()[::97].tolist()) for image in result}) == 64


@pytest.mark.parametrize("crop", ["none", "pad", "resized"])
def test_rows_of_a_batch_can_be_augmented_apart(crop, monkeypatch):
    images = photos(16, 32, 32)
    transform = everything(crop=crop)
    draws = transform.draw(16, seeded(3))
    whole = transform.apply(images, draws)
    rows = slice(4, 8)
    assert torch.equal(transform.apply(images[rows], {k: v[rows] for k, v in draws.items()}), whole[rows])
    monkeypatch.setattr("vitling.data.augment.augment.CHUNK", 5 * 3 * 32 * 32)
    assert torch.equal(transform.apply(images, draws), whole)


def test_augmenting_leaves_the_given_images_as_they_were():
    images = photos(16, 32, 32).clone()
    for crop in ("none", "pad", "resized"):
        everything(crop=crop)(images, seeded())
        augment(32, crop=crop)(images, seeded())
    assert torch.equal(images, photos(16, 32, 32))


@pytest.mark.parametrize("channels", [1, 3, 4, 12])
@pytest.mark.parametrize("n", [1, 7])
def test_any_channel_count_any_shape_and_a_batch_of_one(channels, n):
    images = photos().repeat(1, 4, 1, 1)[:n, :channels].contiguous()
    mean = std = (0.5,) * channels
    for crop, size in (("none", (HEIGHT, WIDTH)), ("pad", (40, 66)), ("resized", (24, 40)), ("resized", (70, 80))):
        result = everything(size, crop=crop, mean=mean, std=std)(images, seeded())
        assert result.shape == (n, channels, *size)
        assert result.isfinite().all()


@pytest.mark.parametrize("size", [(24, 40), (70, 80)])
def test_channels_are_cropped_and_moved_alike(size):
    images = photos()[:, :1].repeat(1, 12, 1, 1)
    result = augment(size, crop="resized", mean=(0.5,) * 12, std=(0.5,) * 12, randaugment=POLICY)(images, seeded())
    assert torch.equal(result, result[:, :1].expand_as(result))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 2)])
def test_images_of_a_few_pixels_work(shape):
    images = torch.arange(64 * 3 * shape[0] * shape[1]).byte().view(64, 3, *shape)
    for crop in ("none", "pad", "resized"):
        assert everything(shape, crop=crop, erase=1.0)(images, seeded()).isfinite().all()


def test_the_parts_of_the_pipeline_run_in_timms_order():
    """Crop, flip, RandAugment, normalisation, erasing: rebuilt image by image with Pillow from the same draws."""
    images = photos()
    transform = everything(
        (32, 40), vflip=0.0, color_jitter=0.0, interpolation="bicubic", erase=0.5, erase_mode="const"
    )
    draws = transform.draw(16, seeded(5))
    result = transform.apply(images, draws)
    boxes = transform._crop_boxes(draws, HEIGHT, WIDTH).tolist()
    erased = transform._erase_boxes(draws).tolist()
    for i in range(16):
        top, left, bottom, right = boxes[i]
        image = to_pil(images[i]).crop((left, top, right, bottom)).resize((40, 32), Image.Resampling.BICUBIC)
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws["flip"][i, 1] else image
        for op, argument in zip(draws["op"][i].tolist(), draws["argument"][i].tolist(), strict=True):
            if op >= 0 and (OPERATIONS[op], argument) != ("Posterize", 0):
                argument = int(argument) if OPERATIONS[op] in ("Posterize", "Solarize", "SolarizeAdd") else argument
                image = to_pil(pillows(OPERATIONS[op], from_pil(image)[None], [argument])[0])
            elif op >= 0:
                image = Image.new("RGB", image.size)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
        expected = (from_pil(image) / 255 - mean) / std
        top, left, bottom, right = erased[i]
        expected[:, top:bottom, left:right] = 0
        # Equalize and AutoContrast can enlarge the crop's one grey level of difference; the picture is the same.
        assert (result[i] - expected).abs().mean() < 0.02


def follow(geometry: Geometry, label_map: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    grid = F.affine_grid(geometry.affine, [len(label_map), 1, *size], align_corners=False)
    moved = F.grid_sample(label_map, grid, mode="bilinear", align_corners=False)
    return moved * geometry.inside(*size)[:, None]


@pytest.mark.parametrize("crop", ["none", "pad", "resized"])
@pytest.mark.parametrize("moves", ["crop and flips", *GEOMETRIC, "all"])
def test_a_marked_cell_moves_with_the_image(crop, moves):
    """A bright blob in the image and in a label map of another resolution: both end at the same place."""
    H, W, size, n = 48, 64, (48, 64), 64
    y, x = torch.arange(H)[:, None], torch.arange(W)
    blob = torch.exp(-((y - 17.5) ** 2 + (x - 39.5) ** 2) / 18)  # off the centre both ways
    images = (255 * blob).round().byte().expand(n, 1, H, W)
    label_map = F.avg_pool2d(blob[None, None], 2).expand(n, 1, H // 2, W // 2)
    flips = dict(hflip=0.5, vflip=0.5) if moves in ("crop and flips", "all") else dict(hflip=0.0)
    transform = augment(size, crop=crop, crop_scale=(0.5, 1), mean=(0.0,), std=(1.0,), randaugment=POLICY, **flips)
    draws = transform.draw(n, seeded())
    geometric = torch.tensor([op_index(name) for name in GEOMETRIC])
    if moves != "all":
        draws["op"] = torch.full((n, 2), -1)
    if moves in GEOMETRIC:
        draws["op"][:, 0] = op_index(moves)
        draws["argument"][:, 0] = torch.linspace(min(GEOMETRIC[moves]), max(GEOMETRIC[moves]), n) * 0.8
    else:
        draws["op"][~torch.isin(draws["op"], geometric)] = -1
    result, geometry = transform.apply(images, draws, return_geometry=True)
    moved = follow(geometry, label_map, size)

    def centre(maps: torch.Tensor) -> torch.Tensor:
        weight = maps.clamp(min=0).flatten(1)
        places = torch.stack(torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij"), dim=-1)
        return (weight @ places.view(-1, 2).float()) / weight.sum(dim=1, keepdim=True)

    inside = moved[..., 6:-6, 6:-6].flatten(1).amax(dim=1) > 0.8  # the whole blob is still in the picture
    inside &= moved.flatten(1).amax(dim=1) == moved[..., 6:-6, 6:-6].flatten(1).amax(dim=1)
    assert inside.sum() > 10
    assert (centre(result)[inside] - centre(moved)[inside]).abs().max() < 0.5
    assert (centre(result)[inside] - torch.tensor([17.5, 39.5])).abs().amax() > 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(crop="centre"), "unknown augment.crop='centre'. Allowed: none, pad, resized."),
        (dict(interpolation="bicubik"), "Did you mean bicubic"),
        (dict(erase_mode="rand"), "unknown augment.erase_mode='rand'"),
        (dict(hflip=1.5), "augment.hflip=1.5 is out of range; it must be at least 0 and at most 1"),
        (dict(cutout=-0.5), "augment.cutout=-0.5 is out of range; it must be at least 0 and at most 1"),
        (dict(crop_padding_mode="mirror"), "unknown augment.crop_padding_mode='mirror'"),
        (dict(std=(1.0, 1.0)), "one value per channel"),
        (dict(crop_scale=(0.5, 0.1)), r"augment.crop_scale=\(0.5, 0.1\)"),
        (dict(color_jitter=-0.4), "augment.color_jitter=-0.4"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message):
        augment(**settings)


@pytest.mark.parametrize(
    ("settings", "images", "message"),
    [
        (dict(), torch.zeros(2, 3, HEIGHT, WIDTH), "it takes uint8"),
        (dict(), torch.zeros(2, 1, HEIGHT, WIDTH, dtype=torch.uint8), "1 channels but mean and std have 3"),
        (dict(), torch.zeros(2, 3, 20, 20, dtype=torch.uint8), "images are 20 x 20 but the model wants 45 x 60"),
        (dict(crop="pad"), torch.zeros(2, 3, 20, 20, dtype=torch.uint8), "too small for a crop of 45 x 60"),
        (
            dict(crop="pad", crop_padding=20, crop_padding_mode="reflect"),
            torch.zeros(2, 3, 20, 20, dtype=torch.uint8),
            "too few pixels to reflect",
        ),
    ],
)
def test_images_that_do_not_fit_are_refused_in_one_line(settings, images, message):
    with pytest.raises(UserError, match=message):
        augment(**settings)(images)


# Mixup and CutMix


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("alphas", [(0.8, 1.0), (0.8, 0.0), (0.0, 1.0)])
def test_mixing_gives_what_timm_gives_for_the_same_shares_and_boxes(mode, alphas, monkeypatch):
    torch.manual_seed(0)
    images, labels = torch.randn(12, 3, 32, 40), torch.randint(0, 7, (12,))
    mix = Mix(num_classes=7, mixup_alpha=alphas[0], cutmix_alpha=alphas[1], prob=0.8, mode=mode)
    theirs = timm_mixup.Mixup(mixup_alpha=1.0, cutmix_alpha=1.0, mode=mode, label_smoothing=0.1, num_classes=7)
    count = {"batch": 1, "pair": 6, "elem": 12}[mode]
    for _ in range(8):
        share, boxes = mix.draw(12, 32, 40)
        is_cut = boxes[:count, 2] > boxes[:count, 0]
        drawn = share[:count].numpy().copy(), is_cut.numpy()
        cuts = iter([(top, bottom, left, right) for top, left, bottom, right in boxes[:count][is_cut].tolist()])
        monkeypatch.setattr(theirs, "_params_per_elem", lambda _, drawn=drawn: drawn)
        monkeypatch.setattr(theirs, "_params_per_batch", lambda drawn=drawn: (drawn[0].item(), drawn[1].item()))
        monkeypatch.setattr(timm_mixup, "rand_bbox", lambda *_, cuts=cuts, **__: next(cuts))
        images_of_timm, targets_of_timm = theirs(images.clone(), labels)
        torch.testing.assert_close(mix.mix_images(images, share, boxes), images_of_timm)
        torch.testing.assert_close(mix.mix_labels(labels, share), targets_of_timm)
        assert next(cuts, None) is None


def test_cutmix_boxes_are_timms_boxes():
    torch.manual_seed(0)
    mix = Mix(num_classes=2, mixup_alpha=0.0, cutmix_alpha=1.0, mode="elem")
    share, boxes = mix.draw(5000, 32, 40)
    np.random.seed(0)
    lams = np.random.beta(1.0, 1.0, size=5000)
    theirs = [timm_mixup.cutmix_bbox_and_lam((3, 32, 40), lam) for lam in lams]
    assert stats.ks_2samp(share.numpy(), [lam for _, lam in theirs]).pvalue > 1e-3
    order = (0, 2, 1, 3)  # timm's (top, bottom, left, right)
    for column, theirs_column in enumerate(order):
        assert stats.ks_2samp(boxes[:, column].numpy(), [box[theirs_column] for box, _ in theirs]).pvalue > 1e-3


def test_mix_keeps_its_probabilities():
    torch.manual_seed(0)
    share, boxes = Mix(num_classes=2, prob=0.6, switch_prob=0.3, mode="elem").draw(20000, 224, 224)
    assert (share == 1).float().mean() == pytest.approx(0.4, abs=0.02)
    assert ((boxes[:, 2] > boxes[:, 0]) & (share < 1)).float().mean() == pytest.approx(0.6 * 0.3, abs=0.02)
    mixup = share[(boxes[:, 2] == boxes[:, 0]) & (share < 1)]
    assert stats.kstest(mixup.numpy(), stats.beta(0.8, 0.8).cdf).statistic < 0.02


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_mixing_takes_any_batch_and_leaves_it_as_it_was(mode, n):
    torch.manual_seed(0)
    images, labels = torch.randn(n, 3, 8, 6), torch.arange(n)
    before = images.clone()
    mix = Mix(num_classes=n, mode=mode)
    for _ in range(10):
        mixed, targets = mix(images, labels)
        assert mixed.shape == images.shape
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(n))
        middle = n // 2
        if n % 2:  # the middle image is its own partner
            torch.testing.assert_close(mixed[middle], images[middle])
    assert torch.equal(images, before)


def test_mixing_follows_torchs_seed():
    images, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(Mix(num_classes=8, mode="elem")(images, labels)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_mixing_nothing_only_smooths_the_labels():
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    mixed, targets = Mix(num_classes=4, mixup_alpha=0.0, cutmix_alpha=0.0, label_smoothing=0.2)(images, labels)
    assert torch.equal(mixed, images)
    torch.testing.assert_close(targets, 0.8 * torch.eye(4) + 0.05)
    assert math.isclose(targets[0, 0].item(), 0.85, rel_tol=1e-6)


def test_an_unknown_mix_mode_is_refused():
    with pytest.raises(UserError, match=r"unknown mix mode 'element'\. Did you mean elem"):
        Mix(num_classes=2, mode="element")
