"""Weights of images: carried with the labels, and in every term of every method's loss."""

import numpy as np
import pytest
import torch
from timm import create_model

from vitling.data.augment.augment import Augment
from vitling.data.pipeline.loader import Resident, TrainLoader
from vitling.data.sources.images import ArrayImages
from vitling.methods import METHODS, create_method
from vitling.methods.bootstrap import feature_loss
from vitling.methods.mixing import Mix
from vitling.recipes import Recipe
from vitling.runs.opening import open_model

CLASSES = 3


def vit():
    model = create_model("boot_vit_test", num_classes=CLASSES, img_size=16, in_chans=1)
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (1, 16, 16), "mean": (0.5,), "std": (0.5,)}
    return model


def build(name: str, **method_args):
    torch.manual_seed(0)
    if name == "distillation":
        method_args["teacher"] = open_model(vit(), device="cpu")
    if name.startswith("token"):
        method_args["label_smoothing"] = 0.0
    if name == "token_labeling":
        method_args["mix_token"] = False
    return create_method(name, vit(), num_classes=CLASSES, **method_args).eval()


def batch(count: int = 4):
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 1, 2, 1])[:count]
    return {"image": torch.randn(count, 1, 16, 16, generator=generator), "label": labels, "index": torch.arange(count)}


WEIGHING = [name for name, method in METHODS.items() if method.weighs_images]
CASES = [(name, {}) for name in WEIGHING]
CASES += [("distillation", {"kind": "soft"}), ("bootstrap", {"feature_norm": "l2", "feature_pool": "2d"})]


@pytest.mark.parametrize(("name", "method_args"), CASES)
def test_a_batch_that_counts_one_image_has_the_losses_of_that_image(name, method_args):
    method, images = build(name, **method_args), batch()
    for i in range(4):
        weights = torch.zeros(4)
        weights[i] = 4.0
        weighted = method({**images, "weight": weights}, 0.3)
        alone = method({key: value[i : i + 1] for key, value in images.items()}, 0.3)
        for term, value in alone.items():
            torch.testing.assert_close(weighted[term], value, msg=lambda text, term=term: f"{term}: {text}")


@pytest.mark.parametrize("name", WEIGHING)
def test_equal_weights_change_nothing(name):
    method, images = build(name), batch()
    plain, equal = method(images, 0.3), method({**images, "weight": torch.ones(4)}, 0.3)
    torch.testing.assert_close(equal, plain)


def test_the_papers_methods_weigh_images():
    assert WEIGHING == ["supervised", "bootstrap", "distillation", "token_labeling", "token_bootstrap"]


def test_a_mixed_image_counts_what_its_parts_do():
    mix = Mix(num_classes=CLASSES, label_smoothing=0.2)
    targets = mix.mix_labels(torch.tensor([0, 1]), torch.tensor([0.75, 0.75]), torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(targets.sum(dim=1), torch.tensor([0.75 * 1 + 0.25 * 3, 0.75 * 3 + 0.25 * 1]))


def test_features_count_by_their_image():
    vit, agent = torch.randn(2, 4, 8), torch.randn(2, 8, 2, 2)
    first = feature_loss(vit, agent, weights=torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(first, feature_loss(vit[:1], agent[:1]))


def test_weights_follow_their_images_through_subsets_and_into_batches():
    images = ArrayImages(np.zeros((6, 4, 4), np.uint8), np.arange(6) % 2)
    assert images.subset([1, 2]).weights is None
    plain = images.digest()
    images.weights = np.arange(6, dtype=np.float64)
    assert images.digest() != plain
    part = images.subset([5, 3, 2, 1])
    assert part.weights.tolist() == [5, 3, 2, 1]
    source = Resident(torch.zeros(4, 1, 4, 4, dtype=torch.uint8), torch.as_tensor(part.labels))
    augment = Augment((4, 4), mean=(0.5,), std=(0.5,), crop="none", hflip=0.0)
    loader = TrainLoader(
        source,
        augment,
        recipe=Recipe(batch_size=4, accumulate=2),
        device=torch.device("cpu"),
        weights=torch.as_tensor(part.weights),
    )
    [step] = loader.epoch(0)
    for micro in step:
        assert micro["weight"].tolist() == [[5, 3, 2, 1][i] for i in micro["index"]]
