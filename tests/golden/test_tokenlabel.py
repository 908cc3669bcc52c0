"""Token labeling against the authors' release: making maps, moving and cropping them, targets, and the loss with its gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rule import golden
from test_lvvit import build, images
from torch import nn

from vitling.data.augment.augment import Geometry
from vitling.data.augment.pillow_ops import affines, op_index
from vitling.methods.token_labeling import mix_tokens, token_label_loss
from vitling.methods.token_labeling.method import label_target, mix_targets
from vitling.methods.token_labeling.relabeling import best_classes, score_map
from vitling.methods.token_labeling.transport import dense_scores, move_nearest, roi_align, transport_labels
from vitling.models.lvvit import random_box

PIPELINE = golden("tokenlabel__pipeline_a")
K = PIPELINE["num_classes"]


def assert_close(actual, expected):
    """The files keep six digits."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=5e-6, rtol=5e-6)


def stored():
    """Scores and classes (B, h, w, k) of the file's two maps."""
    maps = torch.tensor(PIPELINE["stored"])  # (B, 2, k, h, w)
    return maps[:, 0].permute(0, 2, 3, 1), maps[:, 1].permute(0, 2, 3, 1).long()


def crop_boxes():
    corner, extent = torch.tensor(PIPELINE["crop_boxes_top_left_height_width_fraction"]).split(2, dim=1)
    return torch.cat([corner, corner + extent], dim=1)


def crop_geometry(boxes):
    """What the augmentation would report for these crops and nothing else."""
    affine = torch.zeros(len(boxes), 2, 3)
    affine[:, [1, 0], [1, 0]] = boxes[:, 2:] - boxes[:, :2]
    affine[:, [1, 0], 2] = boxes[:, 2:] + boxes[:, :2] - 1
    return Geometry(affine, affine[:, None], torch.zeros(len(boxes), 4, dtype=torch.long))


class PerCellClassifier(nn.Module):
    """The file's annotator: a feature map and a linear classifier behind average pooling."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(9)
        self.features = torch.randn(1, 6, 4, 4, generator=g)
        self.weight = torch.randn(10, 6, generator=g)
        self.bias = torch.randn(10, generator=g)

    def forward_features(self, x):
        return self.features

    def forward_head(self, x):
        return F.linear(x.mean(dim=(2, 3)), self.weight, self.bias)


def test_an_annotator_gives_the_maps_that_the_release_saves():
    file = golden("tokenlabel__generate_and_box")["generate_label"]
    logits = score_map(PerCellClassifier(), torch.zeros(1, 3, 32, 32))
    scores, classes = best_classes(logits, 5, raw_scores=True)
    saved = torch.stack([scores[0].permute(2, 0, 1), classes[0].permute(2, 0, 1).half()])
    assert str(saved.dtype) == f"torch.{file['saved_dtype']}"
    assert list(saved.shape) == file["saved_shape"]
    torch.testing.assert_close(saved, torch.tensor(file["saved"]).half(), atol=0, rtol=2**-10)
    assert torch.equal(saved[1], torch.tensor(file["saved"])[1].half())


def test_the_class_label_is_mixed_by_the_area_of_the_released_boxes():
    file = golden("tokenlabel__generate_and_box")["mix_token_box"]
    for sample in file["samples"]:
        box = random_box(tuple(file["size"][2:]), np.random.RandomState(sample["numpy_seed"]))
        assert list(box) == sample["box"]
        target = torch.eye(2)[:, :, None].expand(-1, -1, 2 + 14 * 14)
        logits = torch.tensor([[0.0, -30.0], [0.0, -30.0]], requires_grad=True)
        token_label_loss(logits, torch.zeros(2, 196, 2), target, box).backward()
        # The first image's label for its own class is what the box leaves of it.
        assert_close(1 - 2 * logits.grad[0, 0], sample["lam_from_area"])


def test_the_dense_map_of_the_best_classes_equals_the_release():
    dense = dense_scores(*stored(), K).permute(0, 3, 1, 2)
    expected = PIPELINE["dense_map"]
    assert list(dense.shape) == expected["shape"]
    assert_close(dense[0, :, 0, 0], expected["sample0_cell00"])
    assert_close(dense.mean(), expected["stats"]["mean"])
    assert_close(dense.norm(), expected["stats"]["l2"])


def test_a_mirrored_map_equals_the_release():
    scores, classes = (part[0].permute(2, 0, 1) for part in stored())
    expected = PIPELINE["hflip_sample0"]
    assert_close(scores.flip(2)[0], expected["score_map_top1"])
    assert classes.flip(2)[0].tolist() == expected["index_map_top1"]
    mirrored = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]]])
    geometry = Geometry(mirrored, mirrored[:, None], torch.zeros(1, 4, dtype=torch.long))
    for axes in ("geometric", "official"):
        moved = transport_labels(
            *(part[:1] for part in stored()), geometry, num_classes=K, size=(6, 6), img_size=(96, 96), axes=axes
        )
        assert_close(moved[0].amax(dim=0), expected["score_map_top1"])


@pytest.mark.parametrize("axes", ["geometric", "official"])
@pytest.mark.parametrize("name", list(PIPELINE["targets"]))
def test_targets_of_crops_equal_the_release(name, axes):
    settings = dict(part.split("=") for part in name.split(","))
    size, smoothing, lam = int(settings["label_size"]), float(settings["smoothing"]), float(settings["lam"])
    where = dict(num_classes=K, img_size=(96, 96), axes=axes)
    crop, *tokens = (
        transport_labels(*stored(), crop_geometry(crop_boxes()), size=(side, side), **where)
        for side in ([1] if size == 1 else [1, size])
    )
    target = label_target(torch.tensor(PIPELINE["ground_truth"]), crop, *tokens, label_smoothing=smoothing)
    if lam < 1:  # what Mixup of the whole batch makes of it
        target = mix_targets(target, torch.tensor([lam, lam]))
    expected = PIPELINE["targets"][name]
    assert list(target.shape) == expected["shape"]
    stats = expected[f"{axes}_stats"]
    for value, key in ((target.mean(), "mean"), (target.min(), "min"), (target.max(), "max"), (target.norm(), "l2")):
        assert_close(value, stats[key])
    if axes in expected:
        assert_close(target, expected[axes])


@pytest.mark.parametrize("axes", ["geometric", "official"])
def test_roi_align_by_itself_equals_the_release(axes):
    boxes = crop_boxes() if axes == "geometric" else crop_boxes()[:, [1, 0, 3, 2]]
    aligned = roi_align(dense_scores(*stored(), K).permute(0, 3, 1, 2), boxes, (3, 3))
    expected = torch.tensor(PIPELINE["targets"]["label_size=3,smoothing=0.1,lam=1.0"][axes])[:, :, 2:]
    assert_close(label_target(torch.tensor([0, 0]), aligned)[:, :, 1:], expected)


@pytest.mark.parametrize("case", golden("tokenlabel__randaug_a")["ops"], ids=lambda case: f"{case['op']} {case['arg']}")
def test_maps_move_as_the_release_moves_them(case):
    file = golden("tokenlabel__randaug_a")
    scores, classes = (torch.tensor(file[f"input_{key}_top1"])[None, None] for key in ("scores", "indices"))
    to_pixels = torch.tensor([[3.0, 0, 3], [0, 3, 3], [0, 0, 1]], dtype=torch.float64)
    move = torch.eye(3, dtype=torch.float64)
    move[:2] = affines(torch.tensor([op_index(case["op"].removesuffix("Rel"))]), torch.tensor([case["arg"]]), 6, 6)[0]
    affine = (to_pixels.inverse() @ move @ to_pixels)[None, :2].float()
    assert torch.equal(move_nearest(scores, affine)[0, 0], torch.tensor(case["scores_top1"]))
    assert torch.equal(move_nearest(classes, affine, edge=True)[0, 0], torch.tensor(case["indices_top1"]))


@pytest.mark.parametrize("variant", ["small_a", "small_mhaffn"])
def test_loss_and_gradients_equal_the_release(variant):
    file = golden(f"lvvit__{variant}")
    expected = file["train"]["gradients"]
    model = build(file).train()
    cls, dense, box = model.forward_tokens(images(file), tuple(file["train"]["box_rows_cols"]))
    B, N, classes = dense.shape
    labels = (3 * torch.randn(B, classes, 1 + N, generator=torch.Generator().manual_seed(1))).softmax(dim=1)
    target = torch.cat([torch.full((B, classes, 1), torch.nan), labels], dim=2)  # the truth must not be looked at
    loss = token_label_loss(cls, dense, target, box, dense_weight=0.5)
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(expected["loss_value"]), atol=1.5e-5, rtol=1.5e-5)
    norms = {key: parameter.grad.norm().item() for key, parameter in model.named_parameters()}
    wrong = {k: v for k, v in expected["grad_l2"].items() if abs(norms[k] - v) > 1.5e-5 + 1.5e-5 * v}
    assert norms.keys() == expected["grad_l2"].keys()
    assert not wrong


def test_mixing_labels_and_unmixing_outputs_are_the_same_loss():
    """Eq. 9 mixes the labels of tokens with the mask; the release and we put the outputs back instead."""
    box, grid = (1, 0, 3, 2), (4, 4)
    dense, labels = torch.randn(4, 16, K), torch.randn(4, K, 18).softmax(dim=1)
    unmixed = mix_tokens(dense.unflatten(1, grid), box).flatten(1, 2)
    mixed_labels = mix_tokens(labels[:, :, 2:].mT.unflatten(1, grid), box).flatten(1, 2).mT
    ours = token_label_loss(torch.zeros(4, K), unmixed, labels, box, cls_weight=0.0)
    torch.testing.assert_close(ours, F.cross_entropy(dense.mT, mixed_labels))
