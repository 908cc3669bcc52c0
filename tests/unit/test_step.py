"""One optimiser step: what an overflow in half precision leaves behind."""

import copy

import pytest
import timm
import torch
from accelerate import Accelerator

from vitling.methods import create_method
from vitling.optim import SAM, create_optimizer
from vitling.recipes import Optim, Recipe
from vitling.training.setup import Setup
from vitling.training.step import Stepper


def stepper(model, *, rho: float, loss_scale: float) -> Stepper:
    """Steps of supervised training with a loss scaler, as half precision has one."""
    recipe = Recipe(optim=Optim(name="sgd", lr=0.1, sam_rho=0.05))
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale)
    method = create_method("supervised", model, num_classes=10)
    optimizer = create_optimizer(method.parameter_groups(recipe.optim, 0.1), recipe.optim, 0.1)
    prepared, optimizer = accelerator.prepare(method, optimizer)
    sam = SAM(prepared.parameters(), rho)
    return Stepper(Setup(recipe, None, accelerator, method, prepared, optimizer, None, sam))


def batch() -> dict:
    generator = torch.Generator().manual_seed(0)
    return {"image": torch.randn(8, 3, 16, 16, generator=generator), "label": torch.arange(8)}


@pytest.mark.parametrize(
    ("rho", "loss_scale"),
    [pytest.param(0.05, 2.0**127, id="of its gradients"), pytest.param(1e30, 1.0, id="of what SAM meets up there")],
)
@pytest.mark.parametrize("name", ["dhvt_test", "lvvit_test"])
def test_a_step_of_sam_that_overflows_is_skipped_and_leaves_finite_statistics(name, rho, loss_scale):
    model = timm.create_model(name).train()
    before = copy.deepcopy(model)
    losses = stepper(model, rho=rho, loss_scale=loss_scale).take(0, [batch()])
    assert losses["loss"].isfinite()
    for (key, value), other in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(value, other), key
    for key, value in model.named_buffers():
        assert value.isfinite().all(), key


def test_a_step_of_sam_without_overflow_is_taken_and_counts_both_of_its_passes():
    model = timm.create_model("dhvt_test", drop_path_rate=0.0).train()
    before = copy.deepcopy(model)
    stepper(model, rho=0.05, loss_scale=1024.0).take(0, [batch()])
    assert not torch.equal(model.head.weight, before.head.weight)
    assert model.blocks[0].mlp.bn1.num_batches_tracked == 2
