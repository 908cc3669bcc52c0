"""Token labeling against the authors' release: making maps, moving and cropping them, targets, and the loss with its gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rule import draws, every, files, golden, images, numbers_in
from test_lvvit import assert_norms, build, token_labels
from torch import nn

from vitling.data.augment.augment import Geometry
from vitling.data.augment.pillow_ops import affines, op_index
from vitling.methods.token_labeling import mix_tokens, token_label_loss
from vitling.methods.token_labeling.method import label_target, mix_targets
from vitling.methods.token_labeling.relabeling import best_classes, score_map
from vitling.methods.token_labeling.transport import dense_scores, move_nearest, roi_align, transport_labels
from vitling.models.lvvit import random_box


def assert_close(actual, expected):
    """The files keep six digits."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=5e-6, rtol=5e-6)


def stored(file):
    """Scores and classes (B, h, w, k) of the file's maps."""
    maps = torch.tensor(file["stored"])  # (B, 2, k, h, w)
    return maps[:, 0].permute(0, 2, 3, 1), maps[:, 1].permute(0, 2, 3, 1).long()


def crop_boxes(file):
    corner, extent = torch.tensor(file["crop_boxes_top_left_height_width_fraction"]).split(2, dim=1)
    return torch.cat([corner, corner + extent], dim=1)


def crop_geometry(boxes):
    """What the augmentation would report for these crops and nothing else."""
    affine = torch.zeros(len(boxes), 2, 3)
    affine[:, [1, 0], [1, 0]] = boxes[:, 2:] - boxes[:, :2]
    affine[:, [1, 0], 2] = boxes[:, 2:] + boxes[:, :2] - 1
    return Geometry(affine, affine[:, None], torch.zeros(len(boxes), 4, dtype=torch.long))


def image_size(file):
    """Of images whose maps these are; no label depends on it."""
    side = 16 * len(file["stored"][0][0][0])
    return side, side


class PerCellClassifier(nn.Module):
    """The file's annotator: a feature map and a linear classifier behind average pooling, drawn from one generator."""

    def __init__(self, rule: str):
        super().__init__()
        generator = torch.Generator().manual_seed(int(numbers_in(r"seed #", rule)[0]))
        self.features, self.weight, self.bias = (torch.randn(draw.shape, generator=generator) for draw in draws(rule))

    def forward_features(self, x):
        return self.features

    def forward_head(self, x):
        return F.linear(x.mean(dim=(2, 3)), self.weight, self.bias)


@every("tokenlabel__", "generate_label")
def test_an_annotator_gives_the_maps_that_the_release_saves(name):
    file = golden(name)["generate_label"]
    top_k = int(numbers_in(r"top-#", file["feature_rule"])[0])
    logits = score_map(PerCellClassifier(file["feature_rule"]), torch.zeros(1, 3, 32, 32))
    scores, classes = best_classes(logits, top_k, raw_scores=True)
    saved = torch.stack([scores[0].permute(2, 0, 1), classes[0].permute(2, 0, 1).half()])
    assert str(saved.dtype) == f"torch.{file['saved_dtype']}"
    assert list(saved.shape) == file["saved_shape"]
    torch.testing.assert_close(saved, torch.tensor(file["saved"]).half(), atol=0, rtol=2**-10)
    assert torch.equal(saved[1], torch.tensor(file["saved"])[1].half())


@every("tokenlabel__", "mix_token_box")
def test_the_class_label_is_mixed_by_the_area_of_the_released_boxes(name):
    file = golden(name)["mix_token_box"]
    grid = tuple(file["size"][2:])
    tokens = grid[0] * grid[1]
    for sample in file["samples"]:
        box = random_box(grid, np.random.RandomState(sample["numpy_seed"]))
        assert list(box) == sample["box"]
        target = torch.eye(2)[:, :, None].expand(-1, -1, 2 + tokens)
        logits = torch.tensor([[0.0, -30.0], [0.0, -30.0]], requires_grad=True)
        token_label_loss(logits, torch.zeros(2, tokens, 2), target, box, grid).backward()
        # The first image's label for its own class is what the box leaves of it.
        assert_close(1 - 2 * logits.grad[0, 0], sample["lam_from_area"])


every_pipeline = every("tokenlabel__", "stored")


@every_pipeline
def test_the_dense_map_of_the_best_classes_equals_the_release(name):
    file = golden(name)
    dense = dense_scores(*stored(file), file["num_classes"]).permute(0, 3, 1, 2)
    expected = file["dense_map"]
    assert list(dense.shape) == expected["shape"]
    assert_close(dense[0, :, 0, 0], expected["sample0_cell00"])
    assert_close(dense.mean(), expected["stats"]["mean"])
    assert_close(dense.norm(), expected["stats"]["l2"])


@every_pipeline
def test_a_mirrored_map_equals_the_release(name):
    file = golden(name)
    scores, classes = (part[0].permute(2, 0, 1) for part in stored(file))
    expected = file["hflip_sample0"]
    assert_close(scores.flip(2)[0], expected["score_map_top1"])
    assert classes.flip(2)[0].tolist() == expected["index_map_top1"]
    mirrored = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]]])
    geometry = Geometry(mirrored, mirrored[:, None], torch.zeros(1, 4, dtype=torch.long))
    where = dict(num_classes=file["num_classes"], size=tuple(scores.shape[1:]), img_size=image_size(file))
    for axes in ("geometric", "official"):
        moved = transport_labels(*(part[:1] for part in stored(file)), geometry, axes=axes, **where)
        assert_close(moved[0].amax(dim=0), expected["score_map_top1"])


@pytest.mark.parametrize("axes", ["geometric", "official"])
@pytest.mark.parametrize(
    ("name", "settings"), [(name, key) for name in files("tokenlabel__", "stored") for key in golden(name)["targets"]]
)
def test_targets_of_crops_equal_the_release(name, settings, axes):
    file = golden(name)
    expected = file["targets"][settings]
    chosen = dict(part.split("=") for part in settings.split(","))
    size, smoothing, lam = int(chosen["label_size"]), float(chosen["smoothing"]), float(chosen["lam"])
    where = dict(num_classes=file["num_classes"], img_size=image_size(file), axes=axes)
    crop, *tokens = (
        transport_labels(*stored(file), crop_geometry(crop_boxes(file)), size=(side, side), **where)
        for side in ([1] if size == 1 else [1, size])
    )
    target = label_target(torch.tensor(file["ground_truth"]), crop, *tokens, label_smoothing=smoothing)
    if lam < 1:  # what Mixup of the whole batch makes of it
        target = mix_targets(target, torch.full((len(target),), lam))
    assert list(target.shape) == expected["shape"]
    stats = expected[f"{axes}_stats"]
    for value, key in ((target.mean(), "mean"), (target.min(), "min"), (target.max(), "max"), (target.norm(), "l2")):
        assert_close(value, stats[key])
    if axes in expected:
        assert_close(target, expected[axes])


def unmixed_targets():
    """(file, its settings) of targets that are stored whole, with a label per token and without Mixup."""
    for name in files("tokenlabel__", "stored"):
        for key, target in golden(name)["targets"].items():
            if "lam=1.0" in key and not key.startswith("label_size=1,") and "official" in target:
                yield name, key


@pytest.mark.parametrize("axes", ["geometric", "official"])
@pytest.mark.parametrize(("name", "settings"), list(unmixed_targets()))
def test_roi_align_by_itself_equals_the_release(name, settings, axes):
    file = golden(name)
    chosen = dict(part.split("=") for part in settings.split(","))
    side, smoothing = int(chosen["label_size"]), float(chosen["smoothing"])
    boxes = crop_boxes(file) if axes == "geometric" else crop_boxes(file)[:, [1, 0, 3, 2]]
    aligned = roi_align(dense_scores(*stored(file), file["num_classes"]).permute(0, 3, 1, 2), boxes, (side, side))
    expected = torch.tensor(file["targets"][settings][axes])[:, :, 2:]
    target = label_target(torch.tensor(file["ground_truth"]), aligned, label_smoothing=smoothing)
    assert_close(target[:, :, 1:], expected)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name} {case['op']} {case['arg']}")
        for name in files("tokenlabel__", "ops")
        for case in golden(name)["ops"]
    ],
)
def test_maps_move_as_the_release_moves_them(name, case):
    file = golden(name)
    scores, classes = (torch.tensor(file[f"input_{key}_top1"])[None, None] for key in ("scores", "indices"))
    height, width = scores.shape[2:]
    to_pixels = torch.tensor([[width / 2, 0, width / 2], [0, height / 2, height / 2], [0, 0, 1]], dtype=torch.float64)
    move = torch.eye(3, dtype=torch.float64)
    op = torch.tensor([op_index(case["op"].removesuffix("Rel"))])
    move[:2] = affines(op, torch.tensor([case["arg"]]), height, width)[0]
    affine = (to_pixels.inverse() @ move @ to_pixels)[None, :2].float()
    assert torch.equal(move_nearest(scores, affine)[0, 0], torch.tensor(case["scores_top1"]))
    assert torch.equal(move_nearest(classes, affine, edge=True)[0, 0], torch.tensor(case["indices_top1"]))


@every("lvvit__", "train.gradients")
def test_loss_and_gradients_equal_the_release(name):
    file = golden(name)
    expected = file["train"]["gradients"]
    model = build(file).train()
    cls, dense, box = model.forward_tokens(images(file), tuple(file["train"]["box_rows_cols"]))
    labels, dense_weight, cls_weight = token_labels(file, dense.shape)
    unseen = torch.full((len(labels), labels.shape[1], 1), torch.nan)  # the truth must not be looked at
    target, grid = torch.cat([unseen, labels], dim=2), model.patch_embed.grid_size
    loss = token_label_loss(cls, dense, target, box, grid, cls_weight=cls_weight, dense_weight=dense_weight)
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss_value"], rel=1.5e-5)
    assert_norms(model, expected["grad_l2"])


def test_mixing_labels_and_unmixing_outputs_are_the_same_loss():
    """Eq. 9 mixes the labels of tokens with the mask; the release and we put the outputs back instead."""
    box, grid, K = (1, 0, 3, 2), (4, 4), 8
    dense, labels = torch.randn(4, 16, K), torch.randn(4, K, 18).softmax(dim=1)
    unmixed = mix_tokens(dense.unflatten(1, grid), box).flatten(1, 2)
    mixed_labels = mix_tokens(labels[:, :, 2:].mT.unflatten(1, grid), box).flatten(1, 2).mT
    ours = token_label_loss(torch.zeros(4, K), unmixed, labels, box, cls_weight=0.0)
    torch.testing.assert_close(ours, F.cross_entropy(dense.mT, mixed_labels))
