"""Bootstrapping's losses, gradients and whole training steps against the authors' release, alignment against the paper."""

from functools import cache

import pytest
import torch
from plain_agent import plain_state
from rule import golden
from test_bootstrapping_models import fill

import vitling
from vitling.data.splits import take_fraction
from vitling.methods import create_method
from vitling.methods.bootstrap import align_gradients, borrowed_rows, feature_loss, mutual_loss
from vitling.models.vit import BootstrappingViT
from vitling.optim import Schedule, create_optimizer
from vitling.recipes import Optim
from vitling.recipes.named import bootstrapping as recipes

REL = 2e-5  # the files hold six digits


def randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "side", "seed"), [(0, 4, 51), (1, 8, 53), (2, 2, 55)])
def test_feature_loss_and_its_gradient_equal_the_release(case, side, seed):
    expected = golden("bootstrapping__feature_loss_d12")["cases"][case]
    vit = randn(seed, 17, 3, 12).transpose(0, 1).requires_grad_()
    agent = (2 * randn(seed + 1, 3, 12, side, side) + 0.5).requires_grad_()
    loss = feature_loss(vit[:, 1:], agent)
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=REL)
    assert vit.grad.norm().item() == pytest.approx(expected["grad_norm_vit_feature"], rel=REL)
    assert not vit.grad[:, 0].any()
    torch.testing.assert_close(vit.grad[0, 1], torch.tensor(expected["grad_vit_token1_batch0"]), rtol=REL, atol=1e-7)
    assert agent.grad is None

    other = expected["own_computation_not_official"]
    literal = feature_loss(vit[:, 1:], agent, norm="l2").item()
    key = "paper_eq6_l2_per_token_sum_over_channels_mean_over_tokens_and_batch"
    assert literal == pytest.approx(other[key], rel=REL)
    squares = feature_loss(vit[:, 1:], agent, pool="2d").item()
    assert squares == pytest.approx(other["ap2d_with_layernorm_mse"], rel=REL)


def test_mutual_loss_and_its_gradients_equal_the_release():
    file = golden("bootstrapping__mutual_kd_T4")
    vit, agent = (3 * randn(31, 4, 10)).requires_grad_(), (3 * randn(32, 4, 10)).requires_grad_()
    labels = torch.tensor([0, 1, 2, 3])
    for who, student, teacher in (("vit", vit, agent), ("agent", agent, vit)):
        label = torch.nn.functional.cross_entropy(student, labels)
        learned = mutual_loss(student, teacher, file["config"]["T"])
        assert label.item() == pytest.approx(file[f"{who}_ce"], rel=REL)
        assert learned.item() == pytest.approx(file[f"{who}_kd"], rel=REL)
        own, others = torch.autograd.grad(label + learned, [student, teacher], allow_unused=True)
        expected = torch.tensor(file[f"grad_of_{who}_terms_wrt_{who}_logits"])
        torch.testing.assert_close(own, expected, rtol=REL, atol=1e-6)
        assert others is None


@pytest.mark.parametrize("case", range(4))
def test_alignment_of_one_tensor_is_the_papers(case):
    expected = golden("bootstrapping__gradient_alignment")["cases"][case]
    agent, vit = torch.tensor(expected["agent_grad"]), torch.tensor(expected["vit_grad"])
    for align in ("flat", "tensor"):
        aligned = align_gradients(agent, vit, align)
        torch.testing.assert_close(aligned, torch.tensor(expected["aligned_agent_grad"]), rtol=REL, atol=1e-6)
        half = torch.tensor(expected["shared_update_direction_half_sum"])
        torch.testing.assert_close((vit + aligned) / 2, half, rtol=REL, atol=1e-6)


@pytest.mark.parametrize(("align", "key"), [("tensor", "per_tensor"), ("flat", "flattened")])
def test_alignment_of_several_tensors_is_the_papers(align, key):
    expected = golden("bootstrapping__gradient_alignment")["multi_tensor"]
    agent, vit = ([torch.tensor(t) for t in expected[name]] for name in ("agent_grads", "vit_grads"))
    for aligned, values in zip(align_gradients(agent, vit, align), expected[key], strict=True):
        torch.testing.assert_close(aligned, torch.tensor(values), rtol=REL, atol=1e-6)


def test_the_recipes_learning_rate_is_the_releases():
    recipe = recipes.cifar100_vit_s_joint()
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = create_optimizer([{"params": [parameter], "lr": recipe.optim.lr}], recipe.optim, recipe.optim.lr)
    schedule = Schedule(optimizer, recipe, steps_per_epoch=10)
    for epoch, lr in golden("bootstrapping__misc")["lr_cosine"].items():
        for step in (0, 9):  # constant inside an epoch
            schedule.set(10 * int(epoch) + step)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(lr, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("case", range(2))
def test_the_part_of_a_dataset_is_the_releases(case):
    expected = golden("bootstrapping__misc")["partial_dataset"][case]
    size, seed = expected["class_size"], expected["seed_is_class_index"]
    assert recipes.imagenet_10pct_vit_b().fraction == expected["fraction"]
    assert recipes.imagenet_10pct_vit_b().fraction_rule == "bootstrapping"
    labels = torch.arange(seed + 1).repeat_interleave(size)
    picked = take_fraction(labels.numpy(), expected["fraction"], rule="bootstrapping", seed=0)
    assert sorted(i - seed * size for i in picked if i >= seed * size) == sorted(expected["picked"])


# -- whole steps -------------------------------------------------------------------------------------------------------


def build(form: str, **method_args):
    """The release's two networks as one method, with the file's weights, and its AdamW over all tensors."""
    file = golden(f"bootstrapping__train_{form}_micro_A")
    sizes, agent = file["config"]["models"]["vit"]["transformer"], file["config"]["models"]["cnn"]
    patches = file["config"]["models"]["vit"]["patch_embed"]
    vit = BootstrappingViT(
        img_size=patches["img_size"],
        patch_size=patches["patch_size"],
        num_classes=10,
        embed_dim=sizes["embed_dim"],
        depth=sizes["num_encoder_layers"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["dim_feedforward"] / sizes["embed_dim"],
        norm_eps=sizes["norm_eps"],
    )
    agent_args = dict(stem="res", mid_chans=agent["input_proj"]["mid_channel"], mlp_drop_rate=0.0)
    method = create_method(
        "bootstrap", vit, num_classes=10, share=form == "shared", agent_args=agent_args, **method_args
    )
    assert list(method.agent.down_sample) == agent["down_sample_layers"]
    state = fill(file["keys"], file["fill"]["scale"], file["aliases"])
    vitling.load_weights(vit, state)
    method.agent.load_state_dict(method.agent.from_authors(state))
    assert sum(p.numel() for p in method.parameters()) == file["param_count"]
    optim = Optim(lr=1e-3, weight_decay=0.05, decay_all=True)
    optimizer = create_optimizer(method.parameter_groups(optim, optim.lr), optim, optim.lr)
    return file, method.train(), optimizer


def batch_of(step: int) -> dict[str, torch.Tensor]:
    labels = (torch.tensor([1, 2, 3, 0]) + step) % 10
    return {"image": randn(200 + step, 4, 3, 64, 64), "label": labels}


def gradients(method, step: int, progress: float):
    losses = method(batch_of(step), progress)
    losses["loss"].backward()
    return losses | method.finish_gradients(lambda tensors: tensors)


def named_gradients(method) -> dict[str, torch.Tensor]:
    vit, agent = ({n: p.grad for n, p in net.named_parameters()} for net in (method.model, method.agent))
    vit, agent = method.model.to_authors(vit), method.agent.to_authors(agent)
    return {f"models.vit.{k}": g for k, g in vit.items()} | {f"models.cnn.{k}": g for k, g in agent.items()}


@cache
def trained(form: str):
    """Three steps of the released training: losses of each, gradients of the first, then logits in train mode."""
    file, method, optimizer = build(form, **({"align": "none"} if form == "shared" else {}))
    progress = file["config"]["epoch"] / file["config"]["total_epochs"]
    losses, first = [], None
    for step in range(3):
        losses.append({name: value.item() for name, value in gradients(method, step, progress).items()})
        first = first or {key: grad.clone() for key, grad in named_gradients(method).items()}
        optimizer.step()
        optimizer.zero_grad()
    images = randn(203, 4, 3, 64, 64)
    with torch.no_grad():
        return file, losses, first, {"vit": method.model(images), "cnn": method.agent(images)}


TERMS = {
    "joint": dict(
        vit_label="vit.cls", agent_label="cnn.cls", vit_from_agent="vit.kd.cnn", agent_from_vit="cnn.kd.vit",
        vit_from_agent_features="vit.hint_vit.cnn_layer_",
    ),
    "shared": dict(
        vit_label="joint.cls_vit", agent_label="joint.cls_cnn", vit_from_agent="joint.kd_vit.cnn",
        agent_from_vit="joint.kd_cnn.vit", vit_from_agent_features="joint.hint_vit.cnn_layer_",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ["joint", "shared"])
def test_loss_terms_of_three_training_steps_equal_the_release(form):
    file, losses, _, _ = trained(form)
    for step, expected in enumerate(file["loss_items_per_step"]):
        for ours, theirs in TERMS[form].items():
            value = sum(item for name, item in expected.items() if name.startswith(theirs))
            assert losses[step][ours] == pytest.approx(value, rel=1e-4 if step == 0 else 1e-3), (step, ours)


@pytest.mark.parametrize("form", ["joint", "shared"])
def test_the_feature_loss_of_every_block_equals_the_release(form):
    file, method, _ = build(form)
    with torch.no_grad():
        _, vit = method._run_vit(batch_of(0)["image"])
        _, agent = method._run_agent(batch_of(0)["image"])
    prefix = TERMS[form]["vit_from_agent_features"]
    for i in range(3):
        expected = file["loss_items_per_step"][0][f"{prefix}{i}"]
        assert feature_loss(vit[i], agent[i]).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("form", ["joint", "shared"])
def test_gradient_norms_of_the_first_step_equal_the_release(form):
    file, _, first, _ = trained(form)
    norms = {file["aliases"].get(key, key): norm for key, norm in file["grad_norms_first_step"].items()}
    assert first.keys() == norms.keys()
    for key, expected in norms.items():
        if expected < 1e-6:  # zero but for rounding
            assert first[key].norm() < 1e-6, key
        else:
            assert first[key].norm().item() == pytest.approx(expected, rel=1e-4), key


@pytest.mark.parametrize("form", ["joint", "shared"])
def test_logits_after_three_training_steps_equal_the_release(form):
    file, _, _, logits = trained(form)
    for who, expected in file["train_mode_logits_after_3_steps"].items():
        torch.testing.assert_close(logits[who], torch.tensor(expected), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("align", "key"),
    [("flat", "flattened_half_sum_norm"), ("tensor", "per_tensor_half_sum_norm"), ("none", "plain_half_sum_norm")],
)
def test_shared_gradients_are_those_of_the_papers_algorithm(align, key):
    file, method, _ = build("shared", align=align)
    expected = file["paper_alignment_not_official"]
    logged = gradients(method, 0, progress=0.0)
    found = named_gradients(method)
    inner = method.model.embed_dim
    names = [name for name, tensor in expected["tensors"].items() if key in tensor]
    assert len(names) == len(borrowed_rows(method.model))
    for name in names:
        tensor, _, rows = name.partition(" [")
        grad = found[tensor][2 * inner :] if rows else found[tensor]
        assert grad.norm().item() == pytest.approx(expected["tensors"][name][key], rel=1e-4), name
    assert logged["shared_cosine"] < 0
    assert expected["flattened_dot"] < 0
    conflicts = [expected["tensors"][name]["dot"] < 0 for name in names]
    if align == "tensor":
        # Biases that only BatchNorm reads have no true gradient, so the sign of their product is left to rounding.
        noise = [expected["tensors"][name]["agent_grad_norm"] < 1e-6 for name in names]
        sure = sum(c for c, n in zip(conflicts, noise, strict=True) if not n)
        assert sure <= round(logged["shared_conflict"].item() * len(names)) <= sure + sum(noise)
    else:
        assert logged["shared_conflict"] == 1


def test_queries_and_keys_keep_the_vits_own_gradient():
    _, aligned, _ = build("shared")
    gradients(aligned, 0, progress=0.0)
    _, alone, _ = build("joint")
    vitling.load_weights(alone.model, aligned.model.state_dict())
    alone.agent.load_state_dict(plain_state(aligned.agent))
    gradients(alone, 0, progress=0.0)
    for mine, others in zip(aligned.model.blocks, alone.model.blocks, strict=True):
        inner = aligned.model.embed_dim
        mine, others = mine.attn.qkv.weight.grad, others.attn.qkv.weight.grad
        torch.testing.assert_close(mine[: 2 * inner], others[: 2 * inner], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(mine[2 * inner :], others[2 * inner :], rtol=1e-4, atol=1e-6)
