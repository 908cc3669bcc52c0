"""Learning without labels: masks, losses against a plain re-implementation, every family, data without labels."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from vitling.data.shared import find_shared
from vitling.data.sources.dataset import open_dataset
from vitling.data.sources.images import ArrayImages
from vitling.errors import UserError
from vitling.evaluation.neighbours import neighbour_accuracy
from vitling.methods import create_method
from vitling.methods.pretraining import dino_loss, masked_patch_loss, masked_pixel_loss, pretraining_recipe
from vitling.methods.pretraining.masked_images import draw_hidden, join_patches, split_patches
from vitling.models import build_model, our_models
from vitling.recipes import Optim, Recipe, override
from vitling.training.setup import check_settings

SIZE = (32, 32)
VARIANTS = sorted(name for name in our_models() if name.endswith("_test"))


def make_method(name, model_name, *, channels=3, size=SIZE, **method_args):
    model = build_model(model_name, num_classes=0, in_chans=channels, img_size=size)
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (channels, *size)}
    return create_method(name, model, num_classes=0, **method_args)


def make_batch(method, images=4):
    batch = {"image": torch.randn(images, method.channels, *method.size)}
    for number, view in enumerate(method.views(), start=1):
        batch[f"view_{number}"] = torch.randn(images, method.channels, *(view.size or method.size))
    return batch


# -- masks and losses --------------------------------------------------------------------------------------------------


def test_the_same_number_of_cells_is_hidden_in_every_image_and_other_ones():
    hidden = draw_hidden(64, 49, 0.75)
    assert hidden.shape == (64, 49)
    assert (hidden.sum(dim=1) == round(0.75 * 49)).all()
    assert len({tuple(row.tolist()) for row in hidden}) > 60
    assert (draw_hidden(3, 2, 0.99).sum(dim=1) == 1).all()  # something is always seen, and something hidden


def test_patches_are_cut_row_by_row_and_joined_again():
    images = torch.randn(2, 3, 8, 12)
    patches = split_patches(images, (4, 2))
    assert patches.shape == (2, 2 * 6, 4 * 2 * 3)
    assert torch.equal(patches[1, 7].view(4, 2, 3), images[1, :, 4:8, 2:4].permute(1, 2, 0))
    assert torch.equal(join_patches(patches, (4, 2), (8, 12)), images)


def test_the_loss_of_patches_is_that_of_a_plain_loop():
    torch.manual_seed(0)
    painted, patches, hidden = torch.randn(3, 5, 12), torch.randn(3, 5, 12) * 3 + 1, draw_hidden(3, 5, 0.6)
    terms = []
    for b in range(3):
        for n in range(5):
            if hidden[b, n]:
                values = patches[b, n].tolist()
                mean = sum(values) / 12
                spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 12 + 1e-6)
                wanted = [(v - mean) / spread for v in values]
                terms.append(sum((p - w) ** 2 for p, w in zip(painted[b, n].tolist(), wanted, strict=True)) / 12)
    assert masked_patch_loss(painted, patches, hidden).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_the_loss_of_pixels_counts_hidden_ones_alone():
    torch.manual_seed(0)
    painted, images, hidden = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), torch.rand(2, 4, 4) < 0.5
    terms = [
        abs(painted[b, c, y, x].item() - images[b, c, y, x].item())
        for b in range(2)
        for c in range(3)
        for y in range(4)
        for x in range(4)
        if hidden[b, y, x]
    ]
    assert masked_pixel_loss(painted, images, hidden).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_the_loss_of_dino_is_that_of_a_plain_loop_over_pairs_of_views():
    torch.manual_seed(0)
    student, teacher, centre = (
        [torch.randn(3, 6) for _ in range(4)],
        [torch.randn(3, 6) for _ in range(2)],
        torch.randn(1, 6),
    )

    def softmax(values):
        top = max(values)
        weights = [math.exp(v - top) for v in values]
        return [w / sum(weights) for w in weights]

    pairs = []
    for t in range(2):
        for s in range(4):
            if s == t:
                continue
            rows = []
            for b in range(3):
                choice = softmax(
                    [(v - c) / 0.04 for v, c in zip(teacher[t][b].tolist(), centre[0].tolist(), strict=True)]
                )
                answer = softmax([v / 0.1 for v in student[s][b].tolist()])
                rows.append(-sum(p * math.log(max(q, 1e-300)) for p, q in zip(choice, answer, strict=True)))
            pairs.append(sum(rows) / 3)
    found = dino_loss(student, teacher, centre, student_temperature=0.1, teacher_temperature=0.04)
    assert found.item() == pytest.approx(sum(pairs) / 6, rel=1e-5)


def test_the_centre_and_the_teacher_follow_as_the_paper_says():
    torch.manual_seed(0)
    method = make_method("dino", "resnet9_test", prototypes=16, teacher_momentum=0.9, centre_momentum=0.8).train()
    batch = make_batch(method)
    with torch.no_grad():
        outputs = torch.cat([method.teacher(batch["image"]), method.teacher(batch["view_1"])])
        for parameter in method.head.parameters():
            parameter.add_(1.0)
    before = method.teacher.head.prototypes.clone()
    method(batch, 0.25)
    method.finish_gradients(lambda tensors: tensors)
    torch.testing.assert_close(method.centre, 0.2 * outputs.mean(dim=0, keepdim=True))
    share = 0.1 * (math.cos(math.pi * 0.25) + 1) / 2
    torch.testing.assert_close(method.teacher.head.prototypes, before + share * (method.head.prototypes - before))


def test_a_validation_moves_neither_centre_nor_teacher():
    method = make_method("dino", "resnet9_test", prototypes=16).eval()
    method.held_out(make_batch(method))
    assert not method.seen
    assert not method.centre.any()


def test_neighbours_vote_by_similarity():
    known = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    new, labels = torch.tensor([[1.0, 0.05], [0.1, 1.0], [0.2, 1.0]]), torch.tensor([0, 1, 0])
    assert neighbour_accuracy(new, labels, known, torch.tensor([0, 0, 1]), neighbours=3) == pytest.approx(2 / 3)


# -- every family ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["masked_images", "dino"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_learns_without_labels(variant, name):
    torch.manual_seed(0)
    method = make_method(name, variant).train()
    losses = method(make_batch(method), 0.0)
    assert losses["loss"].isfinite()
    losses["loss"].backward()
    learning = [parameter for parameter in method.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in learning)
    grouped = {id(p) for group in method.parameter_groups(Optim(), 1e-3) for p in group["params"]}
    assert grouped == {id(parameter) for parameter in learning}
    assert sum(p.numel() for p in method.model.parameters() if p.requires_grad) > 0.95 * sum(
        p.numel() for p in method.model.parameters()
    )


@pytest.mark.parametrize(
    ("variant", "drops"),
    [
        ("boot_vit_test", True),
        ("diag_vit_test", True),
        ("hybrid_vit_test", False),
        ("dhvt_test", False),
        ("t2t_vit_test", False),
        ("lvvit_test", False),
        ("resnet9_test", False),
    ],
)
def test_the_structure_says_whether_tokens_are_dropped_or_pixels_covered(variant, drops):
    assert make_method("masked_images", variant).drops is drops


def test_blocks_see_only_what_is_not_hidden():
    method = make_method("masked_images", "boot_vit_test", mask_ratio=0.75)
    seen = []
    method.model.blocks[1].register_forward_pre_hook(lambda block, args: seen.append(args[0].shape[1]))
    method(make_batch(method), 0.0)
    assert seen == [1 + 64 // 4]
    assert not method.model.blocks[0]._forward_pre_hooks  # nothing stays in the model


def test_what_is_hidden_cannot_be_seen():
    """Other hidden pixels change nothing of what is painted."""
    for variant in ("boot_vit_test", "resnet9_test"):
        torch.manual_seed(0)
        method = make_method("masked_images", variant).eval()
        images, hidden = torch.randn(2, 3, *SIZE), draw_hidden(2, math.prod(method.grid), 0.5)
        others = torch.where(method._in_pixels(hidden)[:, None], torch.randn_like(images), images)
        if method.drops:
            first, second = method._paint_dropped(images, hidden), method._paint_dropped(others, hidden)
        else:
            pixels = method._in_pixels(hidden)
            first, second = method._paint_covered(images, pixels), method._paint_covered(others, pixels)
        torch.testing.assert_close(first, second)


def test_pictures_keep_what_was_seen():
    method = make_method("masked_images", "boot_vit_test").eval()
    shown = method.pictures({"image": torch.randn(3, 3, *SIZE)})
    assert list(shown) == ["original", "masked", "reconstructed"]
    same = shown["masked"] == shown["original"]
    assert 0.2 < same.float().mean() < 0.3
    assert torch.equal(shown["reconstructed"][same], shown["original"][same])


def test_small_views_are_made_where_the_network_takes_another_size():
    assert make_method("dino", "resnet9_test").local_views == 2
    assert make_method("dino", "resnet9_test", local_views=3).local_views == 3
    assert make_method("dino", "boot_vit_test").local_views == 0
    with pytest.raises(UserError, match=r"method_args.local_views=6 are of .* this network takes images of .* alone"):
        make_method("dino", "boot_vit_test", local_views=6)


@pytest.mark.parametrize(
    ("variant", "args", "said"),
    [
        ("boot_vit_test", {"mask_size": 4}, "mask_size does not apply"),
        ("resnet9_test", {"decoder_dim": 64}, "decoder_dim does not apply"),
        ("boot_vit_test", {"decoder_dim": 33}, "multiple of 32"),
        ("boot_vit_test", {"mask_ratio": 1.0}, "mask_ratio"),
    ],
)
def test_arguments_that_cannot_be_are_refused(variant, args, said):
    with pytest.raises(UserError, match=said):
        make_method("masked_images", variant, **args)


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_the_recipe_of_a_pretraining_keeps_network_and_size():
    recipe = override(
        Recipe(), {"model": "hybrid_vit_nano", "img_size": 32, "ema_decay": 0.9, "method_args.cutmix": 1.0}
    )
    stage = pretraining_recipe(recipe, "dino", channels=3)
    assert (stage.model, stage.img_size, stage.method, stage.method_args) == ("hybrid_vit_nano", 32, "dino", {})
    assert (stage.keep, stage.ema_decay, stage.augment.color_jitter) == ("last", 0.0, 0.4)
    check_settings(stage)
    assert pretraining_recipe(recipe, "dino", channels=1).augment.color_jitter == 0.0
    with pytest.raises(UserError, match="learns from labels; without them there are masked_images, dino"):
        pretraining_recipe(recipe, "supervised", channels=3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keep": "best"}, "set keep=last"),
        ({"ema_decay": 0.9}, "ema_decay"),
        ({"balance": "loss"}, "balance"),
        ({"optim.sam_rho": 0.1}, "sam_rho"),
        ({"compile": "on"}, "compile"),
    ],
)
def test_settings_that_go_by_labels_are_refused(changes, said):
    recipe = override(pretraining_recipe(Recipe(), "masked_images", channels=3), changes)
    with pytest.raises(UserError, match=said):
        check_settings(recipe)


def test_two_beginnings_are_refused():
    with pytest.raises(UserError, match="both say where the weights begin"):
        check_settings(Recipe(init="a", unlabelled="b"))
    with pytest.raises(UserError, match="unlabelled_method=supervised learns from labels"):
        check_settings(Recipe(unlabelled="b", unlabelled_method="supervised"))


# -- data without labels -----------------------------------------------------------------------------------------------


def save_images(folder, count, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")


def test_a_flat_folder_is_read_without_labels(tmp_path):
    save_images(tmp_path / "flat", 6)
    save_images(tmp_path / "flat" / "more", 2, seed=1)
    dataset = open_dataset(f"unlabelled:{tmp_path / 'flat'}")
    assert (len(dataset.splits["train"]), dataset.class_names, dataset.labelled) == (8, ["image"], False)
    with pytest.raises(UserError):
        open_dataset(tmp_path / "flat")


def test_labels_that_are_there_are_kept_to_measure_with_and_the_test_split_is_left_alone(tmp_path):
    for split in ("train", "test"):
        for name in "ab":
            save_images(tmp_path / split / name, 3)
    dataset = open_dataset(f"unlabelled:{tmp_path}")
    assert (dataset.class_names, list(dataset.splits), dataset.with_test) == (["a", "b"], ["train"], False)
    everything = open_dataset(f"unlabelled+test:{tmp_path}")
    assert (len(everything.splits["train"]), list(everything.splits), everything.with_test) == (12, ["train"], True)
    assert everything.splits["train"].read(11).shape == (8, 8, 3)


def test_a_class_of_one_image_is_no_reason_to_refuse_images_without_labels(tmp_path):
    save_images(tmp_path / "a", 3)
    save_images(tmp_path / "b", 1)
    assert open_dataset(f"unlabelled:{tmp_path}").class_names == ["image"]


def test_arrays_need_no_labels(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "plain.npz", images=images)
    assert len(open_dataset(f"unlabelled:{tmp_path / 'plain.npz'}").splits["train"]) == 5
    with pytest.raises(UserError, match="has no train_images"):
        open_dataset(tmp_path / "plain.npz")


def test_a_list_of_paths_needs_no_labels(tmp_path):
    save_images(tmp_path / "flat", 3)
    (tmp_path / "list.txt").write_text("flat/0.png\nflat/2.png\n")
    dataset = open_dataset(f"unlabelled:{tmp_path / 'list.txt'}")
    assert [dataset.splits["train"].read(i).shape for i in range(2)] == [(8, 8, 3)] * 2


@pytest.mark.parametrize(("name", "said"), [("empty", "holds no images|is empty|no images"), ("gone", "gone")])
def test_nothing_to_learn_from_is_said_in_one_line(tmp_path, name, said):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=said) as caught:
        open_dataset(f"unlabelled:{tmp_path / name}")
    assert "\n" not in str(caught.value)


def test_shared_images_are_found_by_what_they_hold(tmp_path):
    save_images(tmp_path / "a", 4)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "copy.png").write_bytes((tmp_path / "a" / "2.png").read_bytes())
    save_images(tmp_path / "b", 1, seed=9)
    mine, theirs = (open_dataset(f"unlabelled:{tmp_path / name}").splits["train"] for name in "ab")
    assert find_shared(mine, [theirs]).tolist() == [2]
    pixels = ArrayImages(np.stack([mine.read(1)]), [0])
    assert find_shared(mine, [pixels]).tolist() == [1]  # a file and an array: by their pixels


@pytest.mark.parametrize("setting", ["test_mirror", "test_crops", "test_shifts"])
def test_settings_of_predictions_are_refused(setting):
    recipe = override(pretraining_recipe(Recipe(), "masked_images", channels=3), {setting: True})
    with pytest.raises(UserError, match=f"learns without labels and does not go with {setting}"):
        check_settings(recipe)
    check_settings(pretraining_recipe(Recipe(**{setting: True}), "masked_images", channels=3))  # a first stage


def test_labels_that_nobody_reads_are_refused_and_those_that_say_how_to_read_are_not(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "marks.npz", train_images=images, train_labels=rng.integers(0, 2, (30, 3)))
    np.savez(tmp_path / "floats.npz", train_images=images, train_labels=rng.random(30))
    save_images(tmp_path / "flat", 4)
    (tmp_path / "list.txt").write_text("flat/0.png\nflat/2.png\n")
    (tmp_path / "table.csv").write_text("path,label\nflat/0.png,a;b\nflat/1.png,\nflat/2.png,b\n")
    stage = pretraining_recipe(Recipe(), "masked_images", channels=3)
    for name in ("marks.npz", "floats.npz", "flat", "list.txt"):
        data = f"unlabelled:{tmp_path / name}"
        assert len(open_dataset(data).splits["train"]) >= 2  # without labels=
        check_settings(override(stage, {"data": data}))
        for labels in ("several", "numbers", "classes"):
            with pytest.raises(
                UserError, match=f"reads none from .*{name}, so labels={labels} would be ignored"
            ) as caught:
                check_settings(override(stage, {"data": data, "labels": labels}))
            assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="does not go with labels=grades"):
        check_settings(override(stage, {"labels": "grades"}))
    table = f"unlabelled:{tmp_path / 'table.csv'}"
    with pytest.raises(UserError, match="set labels=several"):
        open_dataset(table)
    assert len(open_dataset(table, labels="several").splits["train"]) == 3
    check_settings(override(stage, {"data": table, "labels": "several"}))
