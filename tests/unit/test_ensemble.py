"""models/ensemble.py: several networks as one timm model."""

import pytest
import timm
import torch

from vitling.errors import UserError
from vitling.models import build_model
from vitling.models.ensemble import Ensemble
from vitling.models.weights import load_weights, save_weights

FAMILIES = ("hybrid_vit_test", "dhvt_test", "lvvit_test", "t2t_vit_test", "resnet9_nano", "resnet18")


@pytest.fixture(params=FAMILIES)
def ensemble(request):
    torch.manual_seed(0)
    return build_model(
        "ensemble", num_classes=5, in_chans=1, img_size=(16, 16), architecture=request.param, members=3
    ).eval()


def test_an_ensemble_answers_with_the_mean_of_its_members_probabilities(ensemble):
    images = torch.randn(4, 1, 16, 16)
    with torch.inference_mode():
        mean = torch.stack([member(images).softmax(dim=1) for member in ensemble.members]).mean(dim=0)
        torch.testing.assert_close(ensemble(images).exp(), mean)
        torch.testing.assert_close(ensemble.forward_head(ensemble.forward_features(images)), ensemble(images))


def test_its_features_are_those_of_all_members_side_by_side(ensemble):
    images = torch.randn(2, 1, 16, 16)
    with torch.inference_mode():
        features = ensemble.forward_head(ensemble.forward_features(images), pre_logits=True)
        first = ensemble.members[0]
        own = first.forward_head(first.forward_features(images), pre_logits=True).flatten(1)
    torch.testing.assert_close(features[:, : own.shape[1]], own)
    assert features.shape == (2, 3 * own.shape[1])


def test_its_weights_survive_a_round_trip(ensemble, tmp_path):
    save_weights(ensemble, tmp_path / "weights.safetensors")
    again = timm.create_model(
        "ensemble",
        architecture=ensemble.members[0].pretrained_cfg["architecture"],
        members=3,
        num_classes=5,
        in_chans=1,
        img_size=16,
    ).eval()
    load_weights(again, tmp_path / "weights.safetensors")
    images = torch.randn(2, 1, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(again(images), ensemble(images), rtol=0, atol=0)


def test_a_new_classifier_is_every_members(ensemble):
    ensemble.reset_classifier(7)
    with torch.inference_mode():
        assert ensemble(torch.randn(2, 1, 16, 16)).shape == (2, 7)
    assert ensemble.num_classes == 7


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (dict(architecture="ensemble", members=2), "cannot be a member"),
        (dict(architecture="no_such_network", members=2), "cannot be a member"),
        (dict(architecture="hybrid_vit_test", members=0), "1 to 100"),
        (dict(architecture="hybrid_vit_test", members=101), "1 to 100"),
        (dict(architecture="hybrid_vit_test", members=2, architecture_args={"checkpoint_path": "x"}), "not allowed"),
    ],
)
def test_what_cannot_be_joined_is_refused(wrong, reason):
    with pytest.raises(UserError, match=reason):
        Ensemble(img_size=16, **wrong)
