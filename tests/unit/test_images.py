"""Reading one image of any kind, fitting it to a size, decoding many."""

import pickle
import threading

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from recorder import Recorder
from timm.data import create_transform

from vitling.data import ArrayImages, BadImage, FileImages, channel_statistics, decode, fit_image, load_image
from vitling.data.sources.images import read_image, read_layout
from vitling.errors import UserError

RNG = np.random.default_rng(0)


def noise(h, w, c=3, dtype=np.uint8):
    return RNG.integers(0, np.iinfo(dtype).max + 1, (h, w, c), dtype=dtype)


def smooth(h, w):
    """An image that survives JPEG and resampling: slow gradients."""
    y, x = np.mgrid[0:h, 0:w] / max(h, w)
    return np.stack([255 * x, 255 * y, 128 + 0 * x], axis=-1).astype(np.uint8)


# --- reading ----------------------------------------------------------------------------------------------------------


BROKEN = pytest.mark.skipif(
    int(PIL.__version__.split(".")[0]) < 13, reason="Pillow 12 cannot read back a YCbCr TIFF that it wrote"
)


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("RGB", 3), ("CMYK", 3), pytest.param("YCbCr", 3, marks=BROKEN)]
)
def test_each_mode_is_read_as_grey_or_colour(tmp_path, mode, channels):
    image = Image.fromarray(noise(5, 7)).convert(mode)
    path = str(tmp_path / "a.tif")
    image.save(path)
    pixels = read_image(path)
    assert pixels.shape == (5, 7, channels)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels.squeeze(), np.array(image.convert("L" if channels == 1 else "RGB")))
    assert read_layout(path) == (channels, False)


def test_sixteen_bits_stay_sixteen_bits(tmp_path):
    values = noise(6, 4, 1, np.uint16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(values[..., 0]).save(tmp_path / name)
        pixels = read_image(str(tmp_path / name))
        assert pixels.dtype == np.uint16
        assert np.array_equal(pixels, values)
        assert read_layout(str(tmp_path / name)) == (1, True)


def test_a_palette_is_expanded_to_its_colours(tmp_path):
    image = Image.fromarray(noise(8, 8)).quantize(16)
    image.save(tmp_path / "a.png")
    assert np.array_equal(read_image(str(tmp_path / "a.png")), np.array(image.convert("RGB")))


def test_a_palette_of_greys_is_grey(tmp_path):
    image = Image.fromarray(noise(8, 8, 1)[..., 0]).quantize(8)
    image.save(tmp_path / "a.png")
    assert read_layout(str(tmp_path / "a.png")).channels == 1
    assert np.array_equal(read_image(str(tmp_path / "a.png"))[..., 0], np.array(image.convert("L")))


def test_transparency_is_laid_over_white(tmp_path):
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, :, 3] = 255  # the upper row is opaque black, the lower one invisible black
    Image.fromarray(pixels).save(tmp_path / "a.png")
    read = read_image(str(tmp_path / "a.png"))
    assert read.shape == (2, 2, 3)
    assert (read[0] == 0).all()
    assert (read[1] == 255).all()


def test_transparent_grey_stays_grey(tmp_path):
    pixels = np.array([[[10, 255], [10, 0]]], np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert read_image(str(tmp_path / "a.png")).tolist() == [[[10], [255]]]


def test_a_transparent_colour_of_a_palette_is_laid_over_white(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=1)
    assert read_image(str(tmp_path / "a.png")).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_alpha_is_kept_for_those_who_ask(tmp_path):
    pixels = noise(3, 3, 4)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels[..., :3]).save(tmp_path / "b.png")
    assert np.array_equal(read_image(str(tmp_path / "a.png"), alpha=True), pixels)
    assert (read_image(str(tmp_path / "b.png"), alpha=True)[..., 3] == 255).all()
    assert read_layout(str(tmp_path / "b.png"), alpha=True).channels == 4


def test_an_image_is_turned_upright_by_its_exif_tag(tmp_path):
    upright = smooth(16, 24)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    Image.fromarray(np.rot90(upright)).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_image(str(tmp_path / "a.png")), upright)


def test_pages_of_a_grey_tiff_are_channels(tmp_path):
    pages = noise(5, 6, 12)
    first, *rest = [Image.fromarray(pages[..., c]) for c in range(12)]
    first.save(tmp_path / "a.tif", save_all=True, append_images=rest)
    assert np.array_equal(read_image(str(tmp_path / "a.tif")), pages)
    assert read_layout(str(tmp_path / "a.tif")) == (12, False)


def test_pages_of_several_sizes_are_a_pyramid_and_the_first_counts(tmp_path):
    first, second = Image.fromarray(noise(8, 8, 1)[..., 0]), Image.fromarray(noise(4, 4, 1)[..., 0])
    first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
    assert np.array_equal(read_image(str(tmp_path / "a.tif"))[..., 0], np.array(first))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 12)])
def test_npy_arrays_are_images_too(tmp_path, dtype, shape):
    array = noise(4, 5, 12, dtype)[..., : shape[2] if len(shape) == 3 else 1].reshape(shape)
    np.save(tmp_path / "a.npy", array)
    assert np.array_equal(read_image(str(tmp_path / "a.npy")), array.reshape(4, 5, -1))
    assert read_layout(str(tmp_path / "a.npy")) == (array.reshape(4, 5, -1).shape[-1], dtype == np.uint16)


def test_a_big_jpeg_may_be_decoded_smaller_but_never_below_what_is_needed(tmp_path):
    Image.fromarray(smooth(800, 1200)).save(tmp_path / "a.jpg", quality=95)
    path = str(tmp_path / "a.jpg")
    assert read_image(path).shape == (800, 1200, 3)
    assert read_image(path, at_least=200).shape == (200, 300, 3)
    assert read_image(path, at_least=201).shape == (400, 600, 3)
    exact = fit_image(read_image(path), (64, 64), "resize", 3)
    quick = load_image(FileImages([path], [0]), 0, (64, 64), "resize", 3)
    assert abs(exact.astype(int) - quick).max() <= 3


# --- what cannot be read ----------------------------------------------------------------------------------------------


def broken(tmp_path, kind):
    path = tmp_path / "bad.png"
    Image.fromarray(noise(32, 32)).save(path)
    good = path.read_bytes()
    if kind == "truncated jpeg":
        path = tmp_path / "bad.jpg"
        Image.fromarray(noise(64, 64)).save(path)
        path.write_bytes(path.read_bytes()[:1500])
    elif kind == "float":
        path = tmp_path / "bad.tif"
        Image.fromarray(np.zeros((4, 4), np.float32)).save(path)
    elif kind in ("objects", "floats"):
        path = tmp_path / "bad.npy"
        np.save(path, np.array([[{}]], dtype=object) if kind == "objects" else np.zeros((3, 3)))
    elif kind == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "text": b"no image at all", "truncated png": good[: len(good) // 2]}[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", r"the file is empty \(0 bytes\)"),
        ("text", "Pillow does not recognise it as an image"),
        ("truncated png", "truncated"),
        ("truncated jpeg", "truncated"),
        ("missing", "no such file"),
        ("float", "floating-point"),
        ("floats", "its numbers are float64; uint8 or uint16"),
        ("objects", "Python objects or is not an .npy file; save it with np.save"),
    ],
)
def test_a_bad_image_is_named_with_the_reason_in_one_line(tmp_path, kind, reason):
    path = broken(tmp_path, kind)
    with pytest.raises(BadImage, match=reason) as caught:
        decode(FileImages([path.name], [0], root=tmp_path), size=(8, 8), channels=3)
    message = str(caught.value)
    assert isinstance(caught.value, UserError)
    assert str(path) in message
    assert "on_bad_image=skip" in message
    assert "\n" not in message


def test_a_bad_image_survives_being_pickled():
    error = pickle.loads(pickle.dumps(BadImage("a.png", "no such file", "Look again.")))
    assert (error.name, error.reason) == ("a.png", "no such file")
    assert str(error) == "cannot read image a.png: no such file. Look again."


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [400, 1000])
def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch, limit):
    Image.fromarray(noise(40, 30)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(BadImage, match=r"a\.png.*pixels"):
        read_image(str(tmp_path / "a.png"))


def test_the_pages_of_a_stack_count_together_as_a_bomb(tmp_path, monkeypatch):
    pages = [Image.fromarray(noise(20, 20, 1)[..., 0]) for _ in range(5)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1999)
    for read in (read_image, read_layout):
        with pytest.raises(BadImage, match="20 x 20 x 5 pixels are more than the 1,999"):
            read(str(tmp_path / "a.tif"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    assert read_image(str(tmp_path / "a.tif")).shape == (20, 20, 5)


def test_postscript_is_not_run_whatever_its_name(tmp_path):
    made = tmp_path / "made_by_it"
    program = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n({made}) (w) file closefile showpage\n"
    (tmp_path / "a.png").write_text(program)
    with pytest.raises(BadImage, match="PostScript is a program, not an image"):
        read_image(str(tmp_path / "a.png"))
    assert not made.exists()


# --- fitting ----------------------------------------------------------------------------------------------------------


def test_an_image_of_the_right_size_is_unchanged():
    for c, fit in ((1, "resize"), (3, "pad"), (4, "crop"), (12, "resize")):
        array = noise(9, 13, c)
        assert np.array_equal(fit_image(array, (9, 13), fit, c), array.transpose(2, 0, 1))


def test_resize_is_pillows_antialiased_bicubic():
    array = noise(50, 70)
    expected = Image.fromarray(array).resize((20, 10), Image.Resampling.BICUBIC)
    assert np.array_equal(fit_image(array, (10, 20), "resize", 3), np.array(expected).transpose(2, 0, 1))


@pytest.mark.parametrize("channels", [2, 4, 12])
def test_every_channel_is_resized_for_itself(channels):
    array = noise(20, 30, channels)
    fitted = fit_image(array, (16, 16), "resize", channels)
    for c in range(channels):
        assert np.array_equal(fitted[c], fit_image(array[..., c : c + 1], (16, 16), "resize", 1)[0])


@pytest.mark.parametrize(("shape", "bars"), [((10, 20), "rows"), ((20, 10), "columns")])
def test_pad_keeps_the_whole_image_between_black_bars(shape, bars):
    fitted = fit_image(np.full((*shape, 3), 200, np.uint8), (16, 16), "pad", 3)
    fitted = fitted if bars == "rows" else fitted.transpose(0, 2, 1)
    assert (fitted[:, :4] == 0).all()
    assert (fitted[:, 12:] == 0).all()
    assert (fitted[:, 4:12] == 200).all()


def test_crop_keeps_the_middle_and_the_shape():
    array = np.zeros((10, 30, 1), np.uint8)
    array[:, 10:20] = 255
    assert (fit_image(array, (10, 10), "crop", 1) == 255).all()
    assert (fit_image(array, (20, 20), "crop", 1)[:, :, 2:-2] == 255).all()


def test_any_shape_fits_any_other():
    for fit in ("resize", "pad", "crop"):
        for shape in ((1, 1), (1, 50), (50, 1), (3, 7)):
            assert fit_image(noise(*shape), (5, 9), fit, 3).shape == (3, 5, 9)


def test_grey_is_repeated_and_colour_becomes_pillows_luminance():
    array = noise(6, 6)
    assert np.array_equal(fit_image(array, (6, 6), "resize", 1)[0], np.array(Image.fromarray(array).convert("L")))
    grey = fit_image(array[..., :1], (6, 6), "resize", 3)
    assert all(np.array_equal(grey[c], array[..., 0]) for c in range(3))


def test_other_channel_counts_are_not_guessed():
    with pytest.raises(UserError, match="has 12 channels where 3 are wanted"):
        fit_image(noise(4, 4, 12), (4, 4), "resize", 3)
    with pytest.raises(UserError, match="has 1 channels where 12 are wanted"):
        fit_image(noise(4, 4, 1), (4, 4), "resize", 12)


def test_sixteen_bits_are_scaled_by_white_and_clipped():
    array = np.array([[[0], [2048], [4095], [65535]]], np.uint16)
    assert fit_image(array, (1, 4), "resize", 1, max_value=4095).tolist() == [[[0, 128, 255, 255]]]


def test_sixteen_bits_are_refused_where_eight_are_expected_unless_they_fit():
    array = np.array([[[0], [128], [255]]], np.uint16)
    assert fit_image(array, (1, 3), "resize", 1).tolist() == [[[0, 128, 255]]]
    with pytest.raises(UserError, match=r"16 bits \(values up to 4095\), but the training images have 8"):
        fit_image(array + 3840, (1, 3), "resize", 1)


def test_sixteen_bits_are_resampled_before_they_are_rounded():
    array = noise(40, 40, 1, np.uint16)
    fine = np.array(Image.fromarray(array[..., 0].astype(np.float32)).resize((8, 8), Image.Resampling.BICUBIC))
    assert np.array_equal(fit_image(array, (8, 8), "resize", 1, max_value=65535)[0], np.rint(fine * (255 / 65535)))


def test_an_unknown_fit_is_an_error_with_a_suggestion():
    with pytest.raises(UserError, match="unknown fit 'padd'"):
        fit_image(noise(4, 4), (8, 8), "padd", 3)


# --- many -------------------------------------------------------------------------------------------------------------


def test_decoding_in_threads_keeps_the_order(tmp_path):
    arrays = [np.full((4 + i % 3, 5, 3), i, np.uint8) for i in range(70)]
    for i, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    images = FileImages([f"{i}.png" for i in range(70)], np.arange(70), root=tmp_path)
    recorder = Recorder()
    decoded = decode(images, size=(6, 6), channels=3, threads=4, callback=recorder)
    assert decoded.dtype == torch.uint8
    assert decoded.shape == (70, 3, 6, 6)
    assert decoded.flatten(1).float().mean(1).tolist() == list(range(70))
    assert recorder.progress == [("decoding", done, 70) for done in (32, 64, 70)]


def test_the_first_bad_image_ends_decoding_and_leaves_no_thread(tmp_path):
    Image.fromarray(noise(4, 4)).save(tmp_path / "good.png")
    (tmp_path / "first.png").write_bytes(b"x")
    (tmp_path / "second.png").write_bytes(b"x")
    names = ["good.png"] * 40 + ["first.png"] + ["good.png"] * 40 + ["second.png"]
    before = threading.active_count()
    with pytest.raises(BadImage, match=r"first\.png"):
        decode(FileImages(names, [0] * len(names), root=tmp_path), size=(4, 4), channels=3)
    assert threading.active_count() == before


@pytest.mark.parametrize("size", [(8, 8), (5, 6)])
def test_arrays_decode_like_single_images(size):
    array = RNG.integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
    images = ArrayImages(array, np.zeros(50)).subset(np.arange(49, -1, -2))
    decoded = decode(images, size=size, channels=3)
    for i in range(len(images)):
        assert np.array_equal(decoded[i].numpy(), fit_image(array[49 - 2 * i], size, "resize", 3))


def test_a_subset_is_a_view_with_its_own_labels_and_names():
    array = np.arange(6, dtype=np.uint8).reshape(6, 1, 1)
    images = ArrayImages(array, [0, 1, 2, 0, 1, 2], "train_images")
    part = images.subset([5, 0, 3]).subset([0, 2])
    assert len(part) == 2
    assert part.labels.tolist() == [2, 0]
    assert part.names == ["train_images[5]", "train_images[3]"]
    assert [part.read(i).item() for i in range(2)] == [5, 3]
    assert np.shares_memory(part.read(0), array)
    assert len(images) == 6


def test_mean_and_deviation_are_exact():
    pixels = torch.randint(0, 256, (300, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = channel_statistics(pixels)
    exact = pixels.double() / 255
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), exact.mean((0, 2, 3)), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.tensor(std, dtype=torch.float64), exact.std((0, 2, 3), correction=0), rtol=1e-12, atol=0
    )


def test_mean_and_deviation_of_images_come_from_an_even_sample():
    array = np.repeat(np.arange(100, dtype=np.uint8), 4).reshape(100, 2, 2)
    images = ArrayImages(array, np.zeros(100))
    everything, sampled = (channel_statistics(images, sample=n, size=(2, 2), channels=1) for n in (1000, 3))
    assert everything[0][0] == pytest.approx(49.5 / 255)
    assert sampled[0][0] == pytest.approx((0 + 49 + 99) / 3 / 255)


def test_a_constant_channel_does_not_lead_to_a_division_by_zero():
    assert channel_statistics(torch.full((4, 1, 2, 2), 51, dtype=torch.uint8)) == ([0.2], [1.0])


# --- test crop and interpolation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize(("fit", "mode"), [("crop", "center"), ("resize", "squash"), ("pad", "border")])
@pytest.mark.parametrize("share", [0.875, 0.9, 1.0])
def test_a_test_crop_is_timms(fit, mode, size, share, interpolation):
    if (fit, size) == ("crop", (24, 40)) and interpolation == "bicubic":
        pytest.skip("timm resizes for centre crops that are not square by its default, bilinear")
    transform = create_transform(
        (3, *size), crop_pct=share, crop_mode=mode, interpolation=interpolation, mean=(0, 0, 0), std=(1, 1, 1)
    )
    for shape in ((60, 45), (45, 60), (50, 50), (20, 90)):
        array = noise(*shape)
        expected = (transform(Image.fromarray(array)) * 255).round().byte().numpy()
        fitted = fit_image(array, size, fit, 3, test_crop=share, interpolation=interpolation)
        assert np.array_equal(fitted, expected)


def test_without_a_test_crop_an_image_is_fitted_as_ever():
    array = noise(60, 45)
    box = (0, 7.5, 45, 52.5)
    expected = np.asarray(Image.fromarray(array).resize((32, 32), Image.Resampling.BICUBIC, box)).transpose(2, 0, 1)
    assert np.array_equal(fit_image(array, (32, 32), "crop", 3), expected)


def test_decoding_and_loading_take_the_test_crop_and_the_interpolation():
    array = np.stack([noise(32, 32) for _ in range(3)])
    images = ArrayImages(array, [0] * 3)
    how = dict(size=(32, 32), fit="resize", channels=3, test_crop=0.5, interpolation="bilinear")
    for i, decoded in enumerate(decode(images, **how)):
        assert np.array_equal(decoded.numpy(), load_image(images, i, **how))
        enlarged = np.asarray(Image.fromarray(array[i]).resize((64, 64), Image.Resampling.BILINEAR))
        assert np.array_equal(decoded.permute(1, 2, 0).numpy(), enlarged[16:48, 16:48])
    with pytest.raises(UserError, match=r"unknown interpolation 'bilinar'\. Did you mean bilinear"):
        decode(images, size=(32, 32), channels=3, interpolation="bilinar")
