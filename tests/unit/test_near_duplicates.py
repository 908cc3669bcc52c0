"""Near-duplicates: copies are found whatever was done to them, look-alikes are not, and many of them cost no more."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from recorder import Recorder

from vitling.data.near_duplicates import EXACT, SIDE, find_near_duplicates, perceptual_hash
from vitling.data.sources.images import fit_image


def a_picture(seed: int, size: tuple[int, int] = (96, 72)) -> Image.Image:
    """Soft blobs of colour: many low frequencies, as photographs have them."""
    blobs = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(blobs).resize(size, Image.Resampling.BICUBIC)


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def thumbnails(images: list[Image.Image]) -> torch.Tensor:
    return torch.tensor(np.stack([fit_image(np.asarray(image), (SIDE, SIDE), "resize", 3) for image in images]))


CHANGES = {
    "compressed": lambda image: as_jpeg(image, 30),
    "smaller": lambda image: image.resize((40, 30)),
    "stretched": lambda image: image.resize((100, 100)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "of less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.8),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_copy_is_found_whatever_was_done_to_it(change):
    originals = [a_picture(seed) for seed in range(30)]
    copies = [change(originals[i]) for i in (4, 17)]
    pairs = find_near_duplicates(thumbnails(copies), thumbnails(originals))
    assert pairs.tolist() == [[0, 4], [1, 17]]


def test_different_pictures_and_mirrored_ones_are_no_copies():
    originals = [a_picture(seed) for seed in range(200)]
    mirrored = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in originals]
    assert len(find_near_duplicates(thumbnails(originals))) == 0
    assert len(find_near_duplicates(thumbnails(mirrored), thumbnails(originals))) == 0


def test_the_same_shapes_in_other_colours_are_no_copies():
    picture = a_picture(1)
    red, green, blue = picture.split()
    assert len(find_near_duplicates(thumbnails([picture, Image.merge("RGB", (blue, red, green))]))) == 0


def test_each_copy_inside_a_split_counts_once():
    pictures = [a_picture(seed) for seed in range(5)]
    pairs = find_near_duplicates(thumbnails([*pictures, pictures[1], pictures[3], pictures[1]]))
    assert [i for i, _ in pairs] == [5, 6, 7]
    assert all(j in ({1, 5} if i in (5, 7) else {3}) for i, j in pairs)


def test_pairs_are_found_across_blocks_too(monkeypatch):
    monkeypatch.setattr("vitling.data.near_duplicates.BLOCK", 7)
    pictures = [a_picture(seed) for seed in range(40)]
    pictures[33] = as_jpeg(pictures[2], 40)
    recorder = Recorder()
    pairs = find_near_duplicates(thumbnails(pictures), callback=recorder)
    assert pairs.tolist() == [[33, 2]]
    assert recorder.progress[-1] == ("looking for copies", 40, 40)


def test_thousands_of_blank_images_are_copies_and_need_no_list_of_all_pairs():
    blank = torch.full((3000, 1, SIDE, SIDE), 200, dtype=torch.uint8)
    pairs = find_near_duplicates(blank)
    assert len(pairs) == 2999
    assert (pairs[:, 1] < pairs[:, 0]).all()


def test_images_too_small_to_distinct_names_must_be_equal():
    picture = a_picture(1)
    pair = thumbnails([picture, as_jpeg(picture, 10)])
    assert len(find_near_duplicates(pair)) == 1
    assert len(find_near_duplicates(pair, max_difference=EXACT)) == 0
    assert len(find_near_duplicates(thumbnails([picture, picture]), max_difference=EXACT)) == 1


def test_no_images_have_no_copies():
    nothing = torch.empty(0, 3, SIDE, SIDE, dtype=torch.uint8)
    some = thumbnails([a_picture(1), a_picture(2)])
    for pairs in (
        find_near_duplicates(nothing),
        find_near_duplicates(nothing, some),
        find_near_duplicates(some, nothing),
    ):
        assert pairs.shape == (0, 2)


def test_a_hash_is_64_signs_that_compression_hardly_changes():
    picture = a_picture(3)
    one, other = perceptual_hash(thumbnails([picture, as_jpeg(picture, 30)]))
    assert one.shape == (64,)
    assert set(one.unique().tolist()) == {-1.0, 1.0}
    assert (one != other).sum() <= 6
