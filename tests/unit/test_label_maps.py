"""Label maps stay in step with the pixels through every geometric operation, and are read back as they were written."""

import json
from dataclasses import replace as changed

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitling.data import ArrayImages, carve_validation, take_fraction
from vitling.data.augment.augment import Augment, Geometry
from vitling.data.augment.pillow_ops import op_index
from vitling.data.sources.dataset import Dataset
from vitling.errors import UserError
from vitling.files import temporary_place
from vitling.methods.token_labeling import label_maps as storage
from vitling.methods.token_labeling.label_maps import Header, LabelMaps
from vitling.methods.token_labeling.transport import roi_align, transport_labels

SIDE, CELLS = 64, 8
PLAIN = dict(mean=(0.5,), std=(0.25,), crop="none", hflip=0.0, interpolation="bilinear")
OPERATIONS = {
    "hflip": dict(hflip=1.0),
    "vflip": dict(vflip=1.0),
    "both flips": dict(hflip=1.0, vflip=1.0),
    "crop with padding": dict(crop="pad", crop_padding=16),
    "resized crop": dict(crop="resized", crop_scale=(0.2, 0.6)),
    "Rotate": ("Rotate", 25.0),
    "Rotate back": ("Rotate", -25.0),
    "ShearX": ("ShearX", 0.28),
    "ShearX back": ("ShearX", -0.28),
    "ShearY": ("ShearY", 0.28),
    "ShearY back": ("ShearY", -0.28),
    "TranslateX": ("TranslateX", 0.2),
    "TranslateX back": ("TranslateX", -0.2),
    "TranslateY": ("TranslateY", 0.2),
    "TranslateY back": ("TranslateY", -0.2),
    "everything": dict(
        crop="resized", crop_scale=(0.5, 1.0), hflip=0.5, vflip=0.5, randaugment="rand-m9-n3-p1-mstd0.5"
    ),
}


def augmented(name, images, **changes):
    """The images after one operation, or many, and where their pixels came from."""
    setting = OPERATIONS[name]
    spec = PLAIN | (dict(randaugment="rand-n1") if isinstance(setting, tuple) else setting) | changes
    augment = Augment(tuple(images.shape[-2:]), **spec)
    draws = augment.draw(len(images), torch.Generator().manual_seed(3))
    if isinstance(setting, tuple):
        draws["op"][:], draws["argument"][:] = op_index(setting[0]), setting[1]
    if name == "everything":  # operations that move, since colours are not compared
        movers = torch.tensor([op_index(n) for n in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")])
        draws["op"] = movers[torch.arange(draws["op"].numel()).view_as(draws["op"]) % 5]
        degrees = torch.where(draws["op"] == op_index("Rotate"), 100, 1)
        draws["argument"] = torch.linspace(-0.2, 0.2, draws["op"].numel()).view_as(draws["op"]) * degrees
    return augment.apply(images, draws, return_geometry=True)


def brightness(pixels):
    """From 0 to 1, as before normalisation."""
    return pixels[:, 0] * 0.25 + 0.5


def transported(maps, geometry, size, img_size, **options):
    """One class whose score is the map's, the others 0: (B, *size)."""
    scores, classes = maps[..., None], torch.ones(*maps.shape, 1, dtype=torch.long)
    moved = transport_labels(scores, classes, geometry, num_classes=3, size=size, img_size=img_size, **options)
    assert not moved[:, [0, 2]].any()
    return moved[:, 1]


def centre_of(mass):
    """Row and column, from 0 to 1, of the middle of what is bright, (B, 2)."""
    mass = mass.clamp(min=0)
    rows, columns = ((torch.arange(n) + 0.5) / n for n in mass.shape[1:])
    total = mass.sum(dim=(1, 2))
    return torch.stack([(mass.sum(2) * rows).sum(1) / total, (mass.sum(1) * columns).sum(1) / total], dim=1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_marked_cell_goes_where_its_pixels_go(name):
    marked = torch.zeros(4, CELLS, CELLS)
    for i, (row, column) in enumerate(((2, 3), (4, 2), (3, 5), (5, 4))):
        marked[i, row, column] = 1
    images = (marked[:, None].repeat_interleave(8, dim=2).repeat_interleave(8, dim=3) * 255).byte()
    pixels, geometry = augmented(name, images, mean=(0.0,), std=(1.0,))
    labels = transported(marked, geometry, (16, 16), (SIDE, SIDE))
    seen = F.avg_pool2d(pixels, 4)[:, 0]
    borders = [x[:, [0, -1]].sum(dim=(1, 2)) + x[:, :, [0, -1]].sum(dim=(1, 2)) for x in (seen, labels)]
    shown = (seen.sum(dim=(1, 2)) > 3) & (borders[0] + borders[1] == 0)  # the whole mark, and its interpolated rim
    assert shown.any(), "the mark left every picture"
    distance = (centre_of(labels) - centre_of(seen))[shown].abs() * 16  # in tokens
    assert distance.max() < 0.35


@pytest.mark.parametrize("shape", [(64, 64), (48, 96)], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_labels_equal_what_the_tokens_show(name, shape):
    """Images that are themselves the enlargement of their smooth maps: a token's label is then its mean brightness."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 6), indexing="ij")
    slopes = torch.rand(3, 8, 1, 1, generator=torch.Generator().manual_seed(1)) - 0.5
    maps = 0.5 + 0.3 * (slopes[0] * x + slopes[1] * y + slopes[2] * x * y)
    images = F.interpolate(maps[:, None], shape, mode="bilinear")
    pixels, geometry = augmented(name, (images * 255).round().byte())
    grid = (8, 8)
    labels = transported(maps, geometry, grid, shape)
    shown = geometry.inside(*shape).float()
    whole = F.avg_pool2d(shown[:, None], (shape[0] // 8, shape[1] // 8))[:, 0] == 1
    means = F.avg_pool2d(brightness(pixels)[:, None], (shape[0] // 8, shape[1] // 8))[:, 0]
    assert whole.float().mean() > 0.2
    assert (labels - means)[whole].abs().max() < 0.015  # of brightness, where a byte resolves 0.004


def test_tokens_beyond_the_image_have_no_label():
    _, geometry = augmented("TranslateX", torch.zeros(1, 1, SIDE, SIDE, dtype=torch.uint8))
    labels = transported(torch.ones(1, CELLS, CELLS), geometry, (8, 8), (SIDE, SIDE))
    assert labels[0, :, -1].eq(0).all()
    assert labels[0, :, :6].eq(1).all()


def test_erased_tokens_lose_their_label_and_partly_erased_ones_keep_it():
    images = torch.full((64, 1, SIDE, SIDE), 200, dtype=torch.uint8)
    _, geometry = augmented("hflip", images, erase=1.0, erase_mode="const")
    labels = transported(torch.ones(64, CELLS, CELLS), geometry, (16, 16), (SIDE, SIDE))
    erased = torch.zeros(64, SIDE, SIDE)
    for mask, (top, left, bottom, right) in zip(erased, geometry.erased.tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    share = F.avg_pool2d(erased[:, None], 4)[:, 0]
    assert labels[share == 1].eq(0).all()
    assert labels[share == 0].eq(1).all()
    assert (share == 1).any()
    kept = transported(torch.ones(64, CELLS, CELLS), geometry, (16, 16), (SIDE, SIDE), axes="official")
    assert kept.eq(1).all(), "the release leaves erased tokens their labels"


def test_the_official_crop_exchanges_rows_and_columns_and_ours_does_not():
    marked = torch.zeros(1, CELLS, CELLS)
    marked[0, 5, 2] = 1  # bottom left
    top_right = torch.tensor([[[0.5, 0, 0.5], [0, 0.5, -0.5]]])
    geometry = augmented("hflip", torch.zeros(1, 1, SIDE, SIDE, dtype=torch.uint8))[1]
    geometry = geometry._replace(affine=top_right, frames=top_right[:, None])
    ours, released = (transported(marked, geometry, (4, 4), (SIDE, SIDE), axes=a)[0] for a in ("geometric", "official"))
    assert ours.eq(0).all()
    assert released.argmax() == 1 * 4 + 2  # where the mark lies in the bottom left quarter
    with pytest.raises(UserError, match=r"unknown axes='offical'.*official"):
        transported(marked, geometry, (4, 4), (SIDE, SIDE), axes="offical")


@pytest.mark.parametrize("cells", [(1, 1), (1, 9), (3, 7), (5, 2), (40, 33)], ids=str)
@pytest.mark.parametrize("grid", [(1, 1), (4, 4), (3, 10)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_maps_of_any_width_label_tokens_of_any_grid_in_batches_of_any_size(cells, grid, batch):
    images = torch.zeros(batch, 1, 24, 40, dtype=torch.uint8)
    for name in ("resized crop", "everything"):
        geometry = augmented(name, images)[1]
        ones = transported(torch.ones(batch, *cells), geometry, grid, (24, 40))
        assert ones.shape == (batch, *grid)
        assert ((ones - 1).abs() < 1e-5).logical_or(ones == 0).all()


def test_an_untouched_image_takes_over_its_map():
    maps = torch.rand(2, 8, 8)
    geometry = augmented("resized crop", torch.zeros(2, 1, 16, 16, dtype=torch.uint8), crop="none")[1]
    torch.testing.assert_close(transported(maps, geometry, (8, 8), (16, 16)), maps)
    pooled = transported(maps, geometry, (4, 4), (16, 16))
    torch.testing.assert_close(pooled, F.avg_pool2d(maps, 2))
    torch.testing.assert_close(transported(maps, geometry, (1, 1), (16, 16))[:, 0, 0], maps.mean(dim=(1, 2)))


def test_a_batch_is_labelled_like_its_images_one_by_one():
    maps = torch.rand(6, 7, 7)
    geometry = augmented("everything", torch.zeros(6, 1, 32, 32, dtype=torch.uint8))[1]
    whole = transported(maps, geometry, (8, 8), (32, 32))
    for i in range(6):
        own = type(geometry)(*(part[i : i + 1] for part in geometry))
        torch.testing.assert_close(transported(maps[i : i + 1], own, (8, 8), (32, 32)), whole[i : i + 1])


# -- on disk -----------------------------------------------------------------------------------------------------------


def header(images=10, classes=4, **changes):
    values = dict(
        data="made up",
        fingerprint="f" * 64,
        split="train",
        images=images,
        class_names=[f"class {i}" for i in range(classes)],
        grid=(2, 3),
        top_k=2,
        fit="resize",
        size=(32, 48),
        annotator="somebody",
        weights="w",
        raw_scores=False,
    )
    return Header(**values | changes)


def written(folder, head, step=3):
    """Maps whose scores say which image they are of, written in pieces."""
    maps = LabelMaps.create(folder, head)
    for start in range(maps.done, head.images, step):
        number = np.arange(start, min(start + step, head.images))
        shape = (len(number), *head.shape)
        maps.append(np.broadcast_to(number[:, None, None, None], shape), np.full(shape, len(head.class_names) - 1))
    return maps


@pytest.mark.parametrize(("classes", "number"), [(4, "uint8"), (257, "uint16"), (70_000, "uint32")])
def test_class_numbers_take_the_smallest_type_that_holds_them(tmp_path, classes, number):
    head = header(classes=classes)
    written(tmp_path / "maps", head)
    assert head.record["class"] == np.dtype(number)
    scores, found = LabelMaps.open(tmp_path / "maps").take(torch.tensor([9, 0, 4]))
    assert scores[:, 0, 0, 0].tolist() == [9, 0, 4]
    assert found.unique().tolist() == [classes - 1]
    assert (scores.dtype, found.dtype) == (torch.float16, torch.int64)


def test_a_large_dataset_is_read_from_several_files_like_a_small_one_from_one(tmp_path, monkeypatch):
    written(tmp_path / "one", header())
    monkeypatch.setattr(storage, "PART_BYTES", 4 * header().image_bytes)
    written(tmp_path / "several", header())
    assert len(list((tmp_path / "several").glob("part-*.npy"))) == 3
    several = LabelMaps.open(tmp_path / "several")
    index = torch.tensor([9, 3, 4, 0, 3])
    assert several.take(index)[0][:, 0, 0, 0].tolist() == index.tolist()
    joined = np.concatenate([np.load(p) for p in sorted((tmp_path / "several").glob("part-*.npy"))])
    assert np.array_equal(joined, np.load(tmp_path / "one" / "part-00000.npy"))


def test_maps_go_on_where_they_stopped(tmp_path):
    maps = LabelMaps.create(tmp_path / "maps", header())
    maps.append(np.zeros((4, *header().shape)), np.zeros((4, *header().shape)))
    with pytest.raises(UserError, match=r"not complete \(4 of 10 images\)"):
        LabelMaps.open(tmp_path / "maps")
    written(tmp_path / "maps", header())
    scores, _ = LabelMaps.open(tmp_path / "maps").take(torch.arange(10))
    assert scores[:, 0, 0, 0].tolist() == [0, 0, 0, 0, 4, 5, 6, 7, 8, 9]


def test_maps_of_a_process_that_was_killed_before_its_first_file_was_whole_are_begun_again(tmp_path):
    (tmp_path / "maps").mkdir()
    temporary_place(tmp_path / "maps" / "maps.json").write_text("{")
    written(tmp_path / "maps", header())
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == ["maps.json", "part-00000.npy"]


def test_other_maps_are_not_written_over(tmp_path):
    written(tmp_path / "maps", header())
    with pytest.raises(UserError, match="already holds other label maps \\(another weights\\)"):
        LabelMaps.create(tmp_path / "maps", header(weights="other"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    with pytest.raises(UserError, match="already holds something else"):
        LabelMaps.create(tmp_path / "full", header())


def test_a_file_cut_short_is_noticed(tmp_path):
    written(tmp_path / "maps", header())
    part = tmp_path / "maps" / "part-00000.npy"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"part-00000.npy is cut short or damaged"):
        LabelMaps.open(tmp_path / "maps")
    part.unlink()
    with pytest.raises(UserError, match=r"part-00000.npy is missing"):
        LabelMaps.open(tmp_path / "maps")
    np.save(part, np.zeros(3))
    with pytest.raises(UserError, match=r"does not match maps.json beside it"):
        LabelMaps.open(tmp_path / "maps")
    (tmp_path / "maps" / "maps.json").write_text("{")
    with pytest.raises(UserError, match=r"maps\.json is corrupted: it is not valid JSON"):
        LabelMaps.open(tmp_path / "maps")
    with pytest.raises(UserError, match=r"no label maps in .*nowhere"):
        LabelMaps.open(tmp_path / "nowhere")


def test_a_class_that_does_not_exist_is_noticed(tmp_path):
    written(tmp_path / "maps", header())
    path = tmp_path / "maps" / "maps.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"class_names": ["a", "b"]}))
    with pytest.raises(UserError, match="names a class 3 of 2"):
        LabelMaps.open(tmp_path / "maps").take(torch.tensor([0]))


def dataset(n=60, classes=4, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 4, 6, 1), dtype=np.uint8)
    images = ArrayImages(pixels, np.arange(n) % classes)
    names = [f"class {i}" for i in range(classes)]
    return Dataset("made up", names, 1, {"train": images}, images.digest().hex())


def test_each_image_of_a_carved_part_of_the_data_gets_its_own_map(tmp_path):
    data = dataset()
    written(tmp_path / "maps", header(images=60, fingerprint=data.fingerprint))
    train = data.splits["train"].subset(carve_validation(data.splits["train"].labels, seed=5)[0])
    train = train.subset(take_fraction(train.labels, 0.5, 1))
    maps = LabelMaps.open(tmp_path / "maps").of_split(data, train, fit="resize", size=(4, 6))
    order = torch.randperm(len(train))
    scores, _ = maps.take(order)
    expected = [train.names[i] for i in order]
    assert [f"images[{int(s)}]" for s in scores[:, 0, 0, 0]] == expected


def test_images_left_out_as_unreadable_do_not_shift_the_maps(tmp_path):
    """`rows` of such a dataset has gaps; maps are stored without them."""
    data = dataset()
    data.splits["train"] = data.splits["train"].subset([i for i in range(60) if i % 7])
    kept = len(data.splits["train"])
    written(tmp_path / "maps", header(images=kept, fingerprint=data.fingerprint))
    train = data.splits["train"].subset(np.arange(0, kept, 3))
    maps = LabelMaps.open(tmp_path / "maps").of_split(data, train, fit="resize", size=(4, 6))
    assert maps.take(torch.arange(len(train)))[0][:, 0, 0, 0].tolist() == list(range(0, kept, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(fingerprint="0" * 64), "are of other images than made up .*fingerprint 000000000000"),
        (dict(classes=5), "are of 5 classes, made up has 4"),
        (dict(class_names=["class 0", "class 1", "class 2", "dog"]), "name a class 'dog' where made up has 'class 3'"),
        (dict(images=59), "are of 59 images, the train split of made up has 60"),
        (dict(fit="crop"), "seen with fit=crop at 32x48, but training shows fit=resize at 4x6"),
    ],
)
def test_maps_of_something_else_are_refused(tmp_path, changes, message):
    data = dataset()
    changes = dict(images=60, fingerprint=data.fingerprint) | changes
    written(tmp_path / "maps", header(**changes))
    with pytest.raises(UserError, match=message):
        LabelMaps.open(tmp_path / "maps").of_split(data, data.splits["train"], fit="resize", size=(4, 6))


def test_what_is_cut_off_depends_on_the_shape_so_maps_of_another_shape_are_refused(tmp_path):
    data = dataset()
    head = header(images=60, fingerprint=data.fingerprint, fit="crop")
    written(tmp_path / "maps", head)
    maps = LabelMaps.open(tmp_path / "maps")
    assert len(maps.of_split(data, data.splits["train"], fit="crop", size=(4, 6))) == 60
    with pytest.raises(UserError, match=r"labels and pixels would not match. Write maps with fit=crop and size=6x6"):
        maps.of_split(data, data.splits["train"], fit="crop", size=(6, 6))
    assert changed(head, fit="pad") != head


# --- crops of whole pictures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resized crop", "everything"])
def test_a_map_follows_an_image_that_is_cropped_last(name):
    """Flip, RandAugment, crop: as LV-ViT's release orders them."""
    images = torch.nn.functional.interpolate(torch.rand(24, 1, 4, 4), size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
    setting = dict(hflip=0.5, crop_when="last", crop="resized", crop_scale=(0.3, 1.0))
    pixels, geometry = augmented(name, (images * 255).round().byte(), **setting)
    maps = F.avg_pool2d(images, SIDE // CELLS)[:, 0]
    labels = transported(maps, geometry, (16, 16), (SIDE, SIDE))
    shown = F.avg_pool2d(geometry.inside(SIDE, SIDE).float()[:, None], SIDE // 16)[:, 0] == 1
    seen = F.avg_pool2d(brightness(pixels)[:, None], SIDE // 16)[:, 0]
    assert shown.float().mean() > 0.5
    assert (labels - seen)[shown].abs().mean() < 0.05
    assert geometry.cropped_last
    assert geometry.frames.shape[1] == (2 if name == "resized crop" else 5)


def test_the_release_flips_moves_and_crops_a_map_in_its_images_order():
    """A shift by a quarter, then a crop of the upper left quarter; x and y of the crop are exchanged there."""
    maps = torch.arange(64.0).view(1, 8, 8)
    augment = Augment((SIDE, SIDE), **PLAIN | dict(crop="resized", crop_when="last", randaugment="rand-n1", hflip=1.0))
    draws = augment.draw(1)
    draws["op"][:], draws["argument"][:] = op_index("TranslateX"), 0.25
    draws["crop_shape"][:] = torch.tensor([0.17 / 0.92, 0.5])  # a quarter of the area, square
    draws["crop_place"][:] = torch.tensor([0.0, 0.9999])  # at the upper right
    _, geometry = augment.apply(torch.zeros(1, 1, SIDE, SIDE, dtype=torch.uint8), draws, return_geometry=True)
    released = transported(maps, geometry, (4, 4), (SIDE, SIDE), axes="official")
    mirrored = maps.flip(2)
    shifted = torch.cat([mirrored[:, :, 2:], torch.zeros(1, 8, 2)], dim=2)
    assert torch.equal(released, roi_align(shifted[:, None], torch.tensor([[0.5, 0.0, 1.0, 0.5]]), (4, 4))[:, 0])


def test_maps_of_the_central_square_label_the_centre_of_whole_pictures_and_nothing_else(tmp_path):
    data = dataset()
    written(tmp_path / "maps", header(images=60, fingerprint=data.fingerprint, fit="crop", size=(32, 32)))
    maps = LabelMaps.open(tmp_path / "maps")
    whole = maps.of_split(data, data.splits["train"], fit="crop", size=(32, 32), whole=True)
    shares = whole.covered_shares(torch.tensor([[375, 500], [500, 250], [64, 64]]))
    torch.testing.assert_close(shares, torch.tensor([[0.75, 1.0], [1.0, 0.5], [1.0, 1.0]]))
    assert maps.of_split(data, data.splits["train"], fit="crop", size=(32, 32)).covered_shares(shares) is None

    still = torch.eye(3)[None, :2]
    geometry = Geometry(still, still[:, None], torch.zeros(1, 4, dtype=torch.long))
    marked = torch.zeros(1, 8, 8)
    marked[:, :, 0] = 1.0  # the left edge of the square, which is at an eighth of the picture
    labels = transported(marked, geometry, (8, 16), (64, 64), covered=torch.tensor([[0.75, 1.0]]))
    assert labels[0, :, :2].eq(0).all(), "left of the square nothing is known"
    assert labels[0, :, 2].eq(1).all()
    assert labels[0, :, 5:].eq(0).all()
    ones = transported(torch.ones(1, 8, 8), geometry, (8, 16), (64, 64), covered=torch.tensor([[0.75, 1.0]]))
    assert ones[0, 0].tolist() == [0] * 2 + [1] * 12 + [0] * 2


@pytest.mark.parametrize(("made", "accepted"), [("resize", True), ("crop", True), ("pad", False)])
def test_crops_of_whole_pictures_take_maps_that_cover_them_or_their_centre(tmp_path, made, accepted):
    data = dataset()
    written(tmp_path / "maps", header(images=60, fingerprint=data.fingerprint, fit=made))
    maps = LabelMaps.open(tmp_path / "maps")
    if accepted:
        assert len(maps.of_split(data, data.splits["train"], fit="crop", size=(6, 6), whole=True)) == 60
    else:
        with pytest.raises(UserError, match="labels and pixels would not match"):
            maps.of_split(data, data.splits["train"], fit="crop", size=(6, 6), whole=True)
