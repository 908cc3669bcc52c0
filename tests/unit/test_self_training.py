"""Self-training: what its loss is, and that every image that joins is one of which the teacher is sure."""

import math

import pytest
import torch
import torch.nn.functional as F

from vitling.data.augment.augment import Augment
from vitling.errors import UserError
from vitling.methods import check_method, create_method
from vitling.methods.pool import Pool
from vitling.models import build_model

CLASSES = 3
AS_IT_IS = Augment(16, mean=(0.5,) * 3, std=(0.5,) * 3, hflip=0.0)


def make_method(**args):
    torch.manual_seed(0)
    pool = Pool(
        torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8), torch.rand(7, CLASSES).softmax(dim=1), AS_IT_IS
    )
    model = build_model("boot_vit_test", num_classes=CLASSES, in_chans=3, img_size=(16, 16))
    return create_method("self_training", model, num_classes=CLASSES, pool=pool, **args).eval()


def test_the_loss_is_the_cross_entropy_of_labels_and_soft_labels_together():
    method = make_method(unlabelled_share=1.5, label_smoothing=0.1)
    batch = {"image": torch.randn(4, 3, 16, 16), "label": torch.tensor([0, 2, 1, 1])}
    torch.manual_seed(5)
    losses = method(batch, 0.0)
    torch.manual_seed(5)
    drawn = torch.randint(7, (6,))
    pixels = (method.pool.images[drawn].float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        logits = method.model(torch.cat([batch["image"], pixels]))
    terms = []
    for row, output in enumerate(logits.tolist()):
        total = math.log(sum(map(math.exp, output)))
        if row < 4:
            target = [0.1 / 3 + (0.9 if c == batch["label"][row] else 0.0) for c in range(CLASSES)]
        else:
            target = method.pool.soft_labels[drawn[row - 4]].tolist()
        terms.append(-sum(t * (o - total) for t, o in zip(target, output, strict=True)))
    assert losses["loss"].item() == pytest.approx(sum(terms) / 10, rel=1e-4)
    assert losses["labelled"].item() == pytest.approx(sum(terms[:4]) / 4, rel=1e-4)
    assert losses["unlabelled"].item() == pytest.approx(sum(terms[4:]) / 6, rel=1e-4)


def test_targets_are_mixed_as_the_images_are():
    method = make_method(mixup=1.0)
    batch = {"image": torch.randn(4, 3, 16, 16), "label": torch.tensor([0, 2, 1, 1])}
    torch.manual_seed(1)
    losses = method(batch, 0.0)
    torch.manual_seed(1)  # the same draws, in their order: which images, how they are changed, how they are mixed
    index = torch.randint(7, (4,))
    images = torch.cat([batch["image"], method.pool.augment(method.pool.images[index])])
    share, _ = method.mix.draw(8, 16, 16)
    targets = torch.cat([F.one_hot(batch["label"], CLASSES).float(), method.pool.soft_labels[index]])
    kept = share[:, None]
    mixed = images * kept[..., None, None] + images.flip(0) * (1 - kept[..., None, None])
    with torch.no_grad():
        wanted = F.cross_entropy(method.model(mixed), targets * kept + targets.flip(0) * (1 - kept))
    assert share.max() < 1
    torch.testing.assert_close(losses["loss"].detach(), wanted)


def test_every_token_of_an_unlabelled_image_learns_its_soft_label():
    alone = make_method().pool
    torch.manual_seed(0)
    model = build_model("boot_vit_test", num_classes=CLASSES, in_chans=3, img_size=(16, 16))
    args = dict(num_classes=CLASSES, mix_token=False, label_smoothing=0.0, unlabelled_share=0.5)
    method = create_method("token_labeling", model, pool=alone, **args).eval()
    batch = {"image": torch.randn(4, 3, 16, 16), "label": torch.tensor([0, 2, 1, 1])}
    torch.manual_seed(5)
    losses = method(batch, 0.0)
    torch.manual_seed(5)
    drawn = torch.randint(7, (2,))
    images = torch.cat([batch["image"], alone.augment(alone.images[drawn])])
    targets = torch.cat([F.one_hot(batch["label"], CLASSES).float(), alone.soft_labels[drawn]])
    with torch.no_grad():
        tokens = model.forward_features(images)
        of_class = F.cross_entropy(model.forward_head(tokens), targets)
        dense = method.dense_head(tokens[:, model.num_prefix_tokens :]).transpose(1, 2)
        of_tokens = F.cross_entropy(dense, targets[:, :, None].expand(-1, -1, dense.shape[2]))
    torch.testing.assert_close(losses["cls_label"].detach(), of_class)
    torch.testing.assert_close(losses["token_labels"].detach(), of_tokens)


@pytest.mark.parametrize(
    ("args", "said"),
    [({"confidence": 1.5}, "confidence"), ({"unlabelled_share": 0}, "unlabelled_share"), ({"teach": "a"}, "teacher")],
)
def test_arguments_are_checked(args, said):
    with pytest.raises(UserError, match=said):
        check_method("self_training", args)
