"""Token labels and an agent together: both learn, from each other too, and from the same images."""

import pytest
import torch
import torch.nn.functional as F

from vitling.errors import UserError
from vitling.methods import create_method
from vitling.methods.bootstrap import mutual_loss
from vitling.models import build_model
from vitling.recipes import Optim


def method_for(name="dhvt_test", **options):
    torch.manual_seed(0)
    model = build_model(name, num_classes=5, in_chans=3, img_size=(16, 16))
    return create_method("token_bootstrap", model, num_classes=5, **options)


def batch_of(n=6):
    torch.manual_seed(1)
    return {"image": torch.randn(n, 3, 16, 16), "label": torch.arange(n) % 5, "index": torch.arange(n)}


@pytest.mark.parametrize("agent", ["auto", "resnet9_test"])
@pytest.mark.parametrize("name", ["lvvit_test", "boot_vit_test"])
def test_every_parameter_of_both_networks_learns(name, agent):
    method = method_for(name, agent=agent)
    method(batch_of(), 0.0)["loss"].backward()
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad)
    grouped = {id(p) for group in method.parameter_groups(Optim(), 1e-3) for p in group["params"]}
    assert grouped == {id(p) for p in method.parameters() if p.requires_grad}


def test_the_terms_are_those_of_the_two_methods():
    method = method_for(agent="resnet9_test", mutual_weight=0.5, temperature=2.0, label_smoothing=0.0).eval()
    batch = batch_of()
    losses = method(batch, 0.0)
    vit, agent = method.model(batch["image"]), method.agent(batch["image"])
    torch.testing.assert_close(losses["agent_label"], F.cross_entropy(agent, batch["label"]))
    torch.testing.assert_close(losses["vit_from_agent"], 0.5 * mutual_loss(vit, agent, 2.0))
    torch.testing.assert_close(losses["cls_label"], F.cross_entropy(vit, batch["label"]))
    torch.testing.assert_close(losses["loss"], sum(v for k, v in losses.items() if k != "loss"))
    assert "token_labels" in losses


def test_both_networks_see_the_same_mixed_images():
    method, seen = method_for(agent="resnet9_test", cutmix=1.0), []
    for network in (method.model.patch_embed, method.agent.stem):
        network.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    batch = batch_of()
    method(batch, 0.0)
    torch.testing.assert_close(seen[0], seen[1])
    assert not torch.equal(seen[0], batch["image"])


def test_mixtoken_is_refused_and_a_wrong_argument_named():
    with pytest.raises(UserError, match="an agent cannot follow"):
        method_for(mix_token=True)
    with pytest.raises(UserError, match="Did you mean mutual_weight"):
        method_for(mutual_wait=1.0)
    with pytest.raises(UserError, match="temperature"):
        method_for(temperature=0.0)
