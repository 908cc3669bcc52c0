"""Training images that crops are cut from: how large they are kept, and what the crops show."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitling.data import ArrayImages, BadImage, FileImages, channel_statistics
from vitling.data.augment.augment import Augment
from vitling.data.augment.boxes import _pad_to_largest, resize_boxes
from vitling.data.augment.pillow_ops import op_index
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.keeping import Keeping, crops_show_whole_pictures, keep_images, keeping_for
from vitling.data.pipeline.loader import Resident, ResidentPictures, Streamed, TrainLoader
from vitling.data.pipeline.reading import Reading, load_pictures
from vitling.data.pipeline.training_data import prepare_training_data
from vitling.recipes import Augment as AugmentSpec
from vitling.recipes import Recipe, replace
from vitling.training.setup import create_augment

SIZES = [(40, 60), (60, 40), (50, 50), (30, 90)]  # heights and widths


def picture(height, width, number=0):
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def folder_of(root, sizes=SIZES, count=4):
    for number in range(count * len(sizes)):
        path = root / "train" / "ab"[number // len(sizes) % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(*sizes[number % len(sizes)], number)).save(path)
    return root


def files_of(root, sizes=SIZES):
    for number, size in enumerate(sizes):
        Image.fromarray(picture(*size, number)).save(root / f"{number}.png")
    return FileImages([f"{number}.png" for number in range(len(sizes))], [0] * len(sizes), root=root)


def keeping(size=(32, 32), fit="crop", **how):
    return Keeping(size=size, fit=fit, channels=3, **how)


@pytest.mark.parametrize("fit", ["crop", "resize"])
def test_crops_show_what_lies_beyond_the_central_square(tmp_path, fit):
    """A photograph of 500 x 375 that is red at its left and blue at its right end: fit=crop used to cut both off."""
    image = np.zeros((375, 500, 3), np.uint8)
    image[:, :40, 0], image[:, -40:, 2] = 255, 255
    for i in range(8):
        path = tmp_path / "train" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    recipe = Recipe(data=str(tmp_path), img_size=64, fit=fit, batch_size=4, augment=AugmentSpec(crop="resized"))
    data = prepare_training_data(recipe, Reading(), model_size=(64, 64))
    loader = TrainLoader(data.train, create_augment(recipe, data), recipe=recipe, device=torch.device("cpu"))
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.preprocessing.mean, data.preprocessing.std))
    shown = torch.cat([(batch["image"] * std + mean) for epoch in range(12) for [batch] in loader.epoch(epoch)])
    for channel in (0, 2):
        assert (shown[:, channel].flatten(1).amax(dim=1) > 0.9).float().mean() > 0.1


@pytest.mark.parametrize(
    ("fit", "whole", "size", "kept"),
    [
        ("crop", True, (375, 500), (48, 64)),  # the shorter side is 1.5 times the model's
        ("crop", True, (500, 375), (64, 48)),
        ("crop", True, (40, 500), (40, 500)),  # never larger than it is
        ("resize", True, (375, 500), (48, 48)),  # each side by itself: it is stretched anyway
        ("resize", True, (20, 500), (20, 48)),
        ("pad", True, (375, 500), (48, 48)),  # with its bars
        ("pad", True, (20, 30), (30, 30)),
        ("crop", False, (375, 500), (48, 48)),  # what the fit shows
        ("crop", False, (16, 20), (16, 16)),
        ("resize", False, (16, 16), (16, 16)),
    ],
)
def test_a_picture_is_kept_with_what_its_crops_need(fit, whole, size, kept):
    assert keeping(fit=fit, whole=whole, spare=1.5).kept_size(*size) == kept


@pytest.mark.parametrize("fit", ["resize", "pad", "crop"])
def test_a_kept_picture_never_has_more_pixels_than_its_largest_crop_needs_or_it_has(fit):
    for height, width in [(1, 1), (3, 900), (900, 3), (31, 33), (200, 300)]:
        rows, columns = keeping((24, 32), fit, spare=1.2).kept_size(height, width)
        assert min(rows, columns) >= 1
        if fit != "pad":
            assert rows <= height
            assert columns <= width
            assert rows >= min(height, 24)
            assert columns >= min(width, 32)


def test_resized_crops_leave_a_crop_of_the_mean_area_its_pixels():
    what = dict(size=(64, 64), fit="crop", channels=3)
    recipe = Recipe(img_size=64, augment=AugmentSpec(crop="resized", crop_scale=(0.28, 0.7)))
    assert keeping_for(recipe, **what).spare == pytest.approx(0.49**-0.5)
    assert keeping_for(replace(recipe, train_size=72), **what) is None
    assert keeping_for(replace(recipe, augment=AugmentSpec(crop="pad")), **what) is None
    assert not keeping_for(replace(recipe, augment=AugmentSpec(crop="pad", crop_at="original")), **what).whole
    assert crops_show_whole_pictures(recipe)
    assert not crops_show_whole_pictures(replace(recipe, fit="pad"))
    assert not crops_show_whole_pictures(replace(recipe, train_size=72))


def test_pictures_of_one_size_become_one_tensor_and_others_stay_apart(tmp_path):
    arrays = np.stack([picture(40, 60, i) for i in range(5)])
    one = keep_images(ArrayImages(arrays, [0] * 5), keeping())
    assert one.shape == (5, 3, 32, 48)
    assert keep_images(ArrayImages(arrays[:, :30], [0] * 5), keeping()).shape == (5, 3, 30, 60)
    apart = keep_images(files_of(tmp_path), keeping(spare=1.25))
    assert apart.sizes.tolist() == [[40, 60], [60, 40], [40, 40], [30, 90]]
    for number, image in enumerate(apart.images):
        if number != 2:  # the others are as they were
            assert np.array_equal(image.permute(1, 2, 0).numpy(), picture(*SIZES[number], number))


def test_pictures_that_do_not_fit_into_memory_are_streamed(tmp_path):
    images = files_of(tmp_path)
    assert isinstance(load_pictures(images, "train", keeping(), reading=Reading(memory_gb=1.0)), ResidentPictures)
    assert isinstance(load_pictures(images, "train", keeping(), reading=Reading(memory_gb=0, workers=0)), Streamed)
    same = files_of(tmp_path, [(40, 60)] * 3)
    assert isinstance(load_pictures(same, "train", keeping(), reading=Reading(memory_gb=1.0)), Resident)
    exact = 3 * sum(h * w for h, w in keep_images(images, keeping()).sizes.tolist())
    assert keeping().bytes_for(images) == exact


@pytest.mark.parametrize("fit", ["resize", "pad", "crop"])
@pytest.mark.parametrize("spec", [dict(), dict(crop_when="last"), dict(crop="pad", crop_at="original")])
def test_streamed_pictures_are_cropped_like_resident_ones(tmp_path, fit, spec):
    folder = folder_of(tmp_path)
    augment = AugmentSpec(**{"crop": "resized", "randaugment": "rand-m9-mstd0.5-inc1", "erase": 0.25, **spec})
    recipe = Recipe(data=str(folder), img_size=24, fit=fit, batch_size=4, augment=augment)
    seen = []
    for reading in (Reading(memory_gb=1.0), Reading(memory_gb=0, workers=0)):
        data = prepare_training_data(recipe, reading, model_size=(24, 24))
        loader = TrainLoader(data.train, create_augment(recipe, data), recipe=recipe, device=torch.device("cpu"))
        seen.append([batch["image"] for [batch] in loader.epoch(0)])
        assert isinstance(data.train, Streamed) == (reading.memory_gb == 0)
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.slow  # starts reading processes, which take seconds to end
def test_workers_send_pictures_of_many_sizes(tmp_path):
    images = files_of(tmp_path)
    alone, helped = (Streamed(images, workers=workers, keeping=keeping()) for workers in (0, 2))
    plan = [torch.tensor([3, 1]), torch.tensor([0, 2])]
    for a, b in zip(alone.batches(plan), helped.batches(plan), strict=True):
        assert [x.tolist() for x in a["image"].images] == [x.tolist() for x in b["image"].images]


def test_a_picture_that_cannot_be_read_is_named(tmp_path):
    images = files_of(tmp_path)
    (tmp_path / "2.png").write_bytes(b"no image")
    images = FileImages(images.names, images.labels, root=tmp_path)
    with pytest.raises(BadImage, match=r"2.png: Pillow does not recognise it"):
        keep_images(images, keeping())


def test_mean_and_deviation_of_pictures_of_many_sizes_count_each_equally():
    dark, bright = torch.zeros(1, 4, 4, dtype=torch.uint8), torch.full((1, 20, 30), 255, dtype=torch.uint8)
    assert channel_statistics(Ragged([dark, bright])) == ([0.5], [0.5])


# Ragged batches


def augment(size=(24, 32), **settings):
    return Augment(size, **{"mean": (0.5,) * 3, "std": (0.25,) * 3, "crop": "resized"} | settings)


def pictures(sizes=SIZES):
    return [torch.from_numpy(picture(*size, number)).permute(2, 0, 1) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("size", [(24, 32), (72, 80)])
@pytest.mark.parametrize(
    "settings",
    [dict(), dict(crop_when="last"), dict(stretched=True), dict(crop="pad", crop_at="original", crop_padding=0.1)],
)
def test_an_image_is_augmented_alike_among_images_of_other_sizes(size, settings):
    transform = augment(size, randaugment="rand-m9-mstd0.5-inc1", erase=0.5, **settings)
    images = pictures()
    draws = transform.draw(4, torch.Generator().manual_seed(0))
    together, geometry = transform.apply(Ragged(images), draws, return_geometry=True)
    for i, image in enumerate(images):
        own = {key: value[i : i + 1] for key, value in draws.items()}
        alone, where = transform.apply(image[None], own, return_geometry=True)
        assert torch.equal(together[i], alone[0])
        assert torch.equal(geometry.frames[i], where.frames[0])
        assert geometry.sizes[i].tolist() == list(SIZES[i])


def test_ragged_images_split_move_and_pack_as_tensors_do():
    ragged = Ragged(pictures())
    assert [len(part) for part in ragged.tensor_split(3)] == [2, 1, 1]
    assert ragged.to("cpu") is ragged
    again = Ragged.unpack(*ragged.pack())
    assert all(torch.equal(a, b) for a, b in zip(ragged.images, again.images, strict=True))
    assert again.select(torch.tensor([3, 0])).sizes.tolist() == [[30, 90], [40, 60]]
    assert ragged.to("meta").sizes.tolist() == ragged.sizes.tolist()


def test_crops_of_padded_tensors_are_those_of_the_images():
    """As they are made on a GPU, where one call serves all."""
    images, size = pictures([(20, 30), (30, 20), (25, 25)]), (16, 24)
    boxes, cubic = torch.tensor([[2, 3, 18, 28], [0, 0, 30, 20], [5, 5, 9, 25]]), torch.tensor([True, False, True])
    apart = resize_boxes(Ragged(images), boxes, size, cubic)
    together = resize_boxes(_pad_to_largest(Ragged(images)), boxes, size, cubic)
    assert (apart.int() - together.int()).abs().max() <= 1


def test_a_stretched_picture_is_cropped_in_its_stretched_shape():
    """So that training shows the shapes that testing shows: a box is as wide, for its height, as in the square picture."""
    draws = augment((32, 32)).draw(500, torch.Generator().manual_seed(0))
    square = augment((32, 32))._crop_boxes(draws, 3000, 3000)
    wide = augment((32, 32), stretched=True)._crop_boxes(draws, 3000, 6000)
    assert ((wide.double() / torch.tensor([1, 2, 1, 2]) - square.double()).abs() <= 2).all()


def test_images_are_moved_at_their_own_size_and_then_enlarged():
    transform = augment((64, 64), crop="pad", crop_at="original", crop_padding=0.125, interpolation="bilinear", hflip=0)
    images = torch.stack(pictures([(16, 16)] * 6))
    draws = transform.draw(6, torch.Generator().manual_seed(1))
    ours = (transform.apply(images, draws) * 0.25 + 0.5) * 255
    for i, image in enumerate(images):
        top, left = (draws["crop_place"][i] * 5).long().tolist()  # two pixels around 16
        padded = torch.nn.functional.pad(image, [2] * 4)[:, top : top + 16, left : left + 16]
        expected = Image.fromarray(padded.permute(1, 2, 0).numpy()).resize((64, 64), Image.Resampling.BILINEAR)
        assert np.abs(ours[i].permute(1, 2, 0).numpy() - np.asarray(expected)).max() < 1.01


def test_images_that_are_cropped_last_are_changed_whole():
    """A shift by half of the width brings the picture's left end into a crop of its right half, and fill colour to where it was."""
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    images[:, :, :, :8] = 255
    for when, shown in (("last", 255), ("first", 128)):
        transform = augment((16, 16), crop_when=when, randaugment="rand-n1", interpolation="bilinear", hflip=0.0)
        draws = transform.draw(1)
        draws["op"][:], draws["argument"][:] = op_index("TranslateX"), -0.5
        draws["crop_shape"][:] = torch.tensor([0.17 / 0.92, 0.5])  # a quarter of the area, square
        draws["crop_place"][:] = 0.9999  # at the lower right
        result = (transform.apply(images, draws) * 0.25 + 0.5) * 255
        assert result[0, 0, :, 2].round().unique().tolist() == [shown], when


def test_a_very_long_picture_that_is_stretched_is_cropped_in_the_middle_of_its_stretched_shape():
    transform = augment((32, 32), stretched=True, crop_scale=(1.0, 1.0), crop_ratio=(1.5, 1.5))
    boxes = transform._crop_boxes(transform.draw(3), 20, 200)  # no box of that ratio has all the area
    assert boxes.tolist() == [[3, 0, 16, 200]] * 3
