"""Bootstrapping's losses, gradients and whole training steps against the authors' release, alignment against the paper."""

import copy
from functools import cache

import pytest
import torch
from plain_agent import plain_state
from rule import draws, every, files, golden, labels_in, numbers_in, randn, scaled, seed_in, tolerance
from test_bootstrapping_models import agent_settings, build_vit

import vitling
from vitling.data.splits import take_fraction
from vitling.methods import create_method
from vitling.methods.bootstrap import align_gradients, borrowed_rows, feature_loss, mutual_loss
from vitling.optim import Schedule, create_optimizer
from vitling.recipes import Optim, replace
from vitling.recipes.named import bootstrapping as recipes


def every_case(kind: str, entry: str = "cases"):
    """All cases of all files of this kind."""
    return pytest.mark.parametrize(
        ("file", "case"),
        [
            pytest.param(golden(name), case, id=f"{name.partition('__')[2]}-{i}")
            for name in files(kind, entry)
            for i, case in enumerate(golden(name)[entry])
        ],
    )


def assert_near(file: dict, actual: torch.Tensor, expected, atol: float = 1e-6) -> None:
    """The files hold six digits."""
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), expected, rtol=tolerance(file, "strict")["rtol"], atol=atol)


# -- parts -------------------------------------------------------------------------------------------------------------


@every_case("bootstrapping__feature_loss")
def test_feature_loss_and_its_gradient_equal_the_release(file, case):
    vit = draws(case["vit_feature"])[0].tensor().transpose(0, 1).requires_grad_()
    agent = draws(case["agent_feature"])[0].tensor().requires_grad_()
    loss = feature_loss(vit[:, 1:], agent)
    loss.backward()
    assert_near(file, loss, case["loss"], 0.0)
    assert_near(file, vit.grad.norm(), case["grad_norm_vit_feature"], 0.0)
    assert not vit.grad[:, 0].any()
    assert_near(file, vit.grad[0, 1], case["grad_vit_token1_batch0"], 1e-7)
    assert agent.grad is None

    other = case["own_computation_not_official"]
    key = "paper_eq6_l2_per_token_sum_over_channels_mean_over_tokens_and_batch"
    assert_near(file, feature_loss(vit[:, 1:], agent, norm="l2"), other[key], 0.0)
    assert_near(file, feature_loss(vit[:, 1:], agent, pool="2d"), other["ap2d_with_layernorm_mse"], 0.0)


@every("bootstrapping__", "vit_kd")
def test_mutual_loss_and_its_gradients_equal_the_release(name):
    file = golden(name)
    vit, agent = (draw.tensor().requires_grad_() for draw in draws(file["inputs"]))
    labels = labels_in(file["inputs"])
    for who, student, teacher in (("vit", vit, agent), ("agent", agent, vit)):
        label = torch.nn.functional.cross_entropy(student, labels)
        learned = mutual_loss(student, teacher, file["config"]["T"])
        assert_near(file, label, file[f"{who}_ce"], 0.0)
        assert_near(file, learned, file[f"{who}_kd"], 0.0)
        own, others = torch.autograd.grad(label + learned, [student, teacher], allow_unused=True)
        assert_near(file, own, file[f"grad_of_{who}_terms_wrt_{who}_logits"])
        assert others is None


@every_case("bootstrapping__gradient_alignment")
def test_alignment_of_one_tensor_is_the_papers(file, case):
    agent, vit = torch.tensor(case["agent_grad"]), torch.tensor(case["vit_grad"])
    for align in ("flat", "tensor"):
        aligned = align_gradients(agent, vit, align)
        assert_near(file, aligned, case["aligned_agent_grad"])
        assert_near(file, (vit + aligned) / 2, case["shared_update_direction_half_sum"])


@every("bootstrapping__", "multi_tensor")
@pytest.mark.parametrize(("align", "key"), [("tensor", "per_tensor"), ("flat", "flattened")])
def test_alignment_of_several_tensors_is_the_papers(name, align, key):
    file = golden(name)
    expected = file["multi_tensor"]
    agent, vit = ([torch.tensor(t) for t in expected[who]] for who in ("agent_grads", "vit_grads"))
    for aligned, values in zip(align_gradients(agent, vit, align), expected[key], strict=True):
        assert_near(file, aligned, values)


def test_the_recipes_are_the_releases():
    recipe = recipes.cifar100_vit_s_joint()
    assert (recipe.optim.lr, recipe.epochs) == (1e-3, 240)
    part = recipes.imagenet_10pct_vit_b()
    assert (part.fraction, part.fraction_rule) == (0.1, "bootstrapping")


@every("bootstrapping__", "lr_cosine")
def test_the_learning_rate_of_the_recipes_follows_the_releases(name):
    wanted = golden(name)["lr_cosine"]  # of the first epoch, some others and the last
    recipe = recipes.cifar100_vit_s_joint()
    optim = replace(recipe.optim, lr=wanted["0"])
    recipe = replace(recipe, epochs=1 + max(map(int, wanted)), optim=optim)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = create_optimizer([{"params": [parameter], "lr": optim.lr}], optim, optim.lr)
    schedule = Schedule(optimizer, recipe, steps_per_epoch=10)
    for epoch, lr in wanted.items():
        for step in (0, 9):  # constant inside an epoch
            schedule.set(10 * int(epoch) + step)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(lr, rel=1e-6, abs=1e-12)


@every_case("bootstrapping__", "partial_dataset")
def test_the_part_of_a_dataset_is_the_releases(file, case):
    size, seed = case["class_size"], case["seed_is_class_index"]
    labels = torch.arange(seed + 1).repeat_interleave(size)
    picked = take_fraction(labels.numpy(), case["fraction"], rule="bootstrapping", seed=0)
    assert sorted(i - seed * size for i in picked if i >= seed * size) == sorted(case["picked"])


# -- whole steps -------------------------------------------------------------------------------------------------------


def build(name: str, **method_args):
    """The release's two networks as one method, with the file's weights, and its AdamW over all tensors."""
    file = golden(name)
    config, shares = file["config"], file["config"]["mode"] == "shared"
    (classes,) = next(shape for key, shape, _ in file["keys"] if key == "models.vit.cls_head.bias")
    vit = build_vit(config["models"]["vit"], config["models"]["vit"]["patch_embed"]["img_size"], classes)
    agent_args = agent_settings(config["models"]["cnn"]) | {"mlp_drop_rate": 0.0}
    weights = dict(
        temperature=config["T"], mutual_weight=loss_weight(config, "kd"), feature_weight=loss_weight(config, "hint")
    )
    method = create_method(
        "bootstrap", vit, num_classes=classes, share=shares, agent_args=agent_args, **weights, **method_args
    )
    state = scaled(file["keys"], file["fill"]["scale"], file["aliases"])
    vitling.load_weights(vit, state)
    method.agent.load_state_dict(method.agent.from_authors(state))
    assert sum(p.numel() for p in method.parameters()) == file["param_count"]
    lr, decay = numbers_in(r"AdamW lr # wd #", config["optimizer"])
    betas = numbers_in(r"betas \(#,#\)", config["optimizer"])
    optim = Optim(
        lr=lr, weight_decay=decay, betas=tuple(betas), eps=numbers_in(r"eps #", config["optimizer"])[0], decay_all=True
    )
    optimizer = create_optimizer(method.parameter_groups(optim, optim.lr), optim, optim.lr)
    return file, method.train(), optimizer


def loss_weight(config: dict, term: str) -> float:
    """Of a term of the ViT, beside its cross-entropy; with shared weights the release has Algorithm 1's half in all of them."""
    weights = config["loss_weights"]
    return weights.get(f"{term}_vit", weights.get(term)) / weights.get("cls_vit", weights.get("cls"))


def batch_of(file: dict, step: int) -> dict[str, torch.Tensor]:
    """Step `step` of the file's data, whose seeds count up from that of the first."""
    sentence = file["data"]
    (first,) = numbers_in(r"seed #\+i", sentence)
    classes = len(last_logits(file)["vit"][0])
    shape = draws(sentence)[0].shape
    return {"image": randn(shape, int(first) + step), "label": (labels_in(sentence) + step) % classes}


def last_logits(file: dict) -> dict:
    return next(value for key, value in file.items() if key.startswith("train_mode_logits_after"))


def gradients(method, batch: dict, progress: float):
    losses = method(batch, progress)
    losses["loss"].backward()
    return losses | method.finish_gradients(lambda tensors: tensors)


def named_gradients(method) -> dict[str, torch.Tensor]:
    vit, agent = ({n: p.grad for n, p in net.named_parameters()} for net in (method.model, method.agent))
    vit, agent = method.model.to_authors(vit), method.agent.to_authors(agent)
    return {f"models.vit.{k}": g for k, g in vit.items()} | {f"models.cnn.{k}": g for k, g in agent.items()}


@cache
def trained(name: str):
    """The steps of the released training: losses of each, gradients of the first, then logits in train mode."""
    shares = golden(name)["config"]["mode"] == "shared"
    file, method, optimizer = build(name, **({"align": "none"} if shares else {}))
    progress = file["config"]["epoch"] / file["config"]["total_epochs"]
    losses, first = [], None
    for step in range(len(file["loss_items_per_step"])):
        found = gradients(method, batch_of(file, step), progress)
        losses.append({term: value.item() for term, value in found.items()})
        first = first or {key: grad.clone() for key, grad in named_gradients(method).items()}
        optimizer.step()
        optimizer.zero_grad()
    images = randn(draws(file["data"])[0].shape, seed_in(file["note"]))
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


every_training = every("bootstrapping__", "loss_items_per_step")


@every_training
def test_loss_terms_of_the_training_steps_equal_the_release(name):
    file, losses, _, _ = trained(name)
    for step, expected in enumerate(file["loss_items_per_step"]):
        allowed = tolerance(file, "step 0 losses" if step == 0 else "later losses", "note")
        for ours, theirs in TERMS[file["config"]["mode"]].items():
            value = sum(item for term, item in expected.items() if term.startswith(theirs))
            assert losses[step][ours] == pytest.approx(value, rel=allowed["rtol"]), (step, ours)


@every_training
def test_the_feature_loss_of_every_block_equals_the_release(name):
    file, method, _ = build(name)
    images = batch_of(file, 0)["image"]
    with torch.no_grad():
        _, vit = method._run_vit(images)
        _, agent = method._run_agent(images)
    prefix = TERMS[file["config"]["mode"]]["vit_from_agent_features"]
    expected = {term: item for term, item in file["loss_items_per_step"][0].items() if term.startswith(prefix)}
    assert len(expected) == len(vit) == len(agent)
    rel = tolerance(file, "step 0 losses", "note")["rtol"]
    for i, (mine, others) in enumerate(zip(vit, agent, strict=True)):
        assert feature_loss(mine, others).item() == pytest.approx(expected[f"{prefix}{i}"], rel=rel)


@every_training
def test_gradient_norms_of_the_first_step_equal_the_release(name):
    file, _, first, _ = trained(name)
    rel = tolerance(file, "gradient norms", "note")["rtol"]
    (zero,) = numbers_in(r"gradients below # are zero", file["note"])
    norms = {file["aliases"].get(key, key): norm for key, norm in file["grad_norms_first_step"].items()}
    assert first.keys() == norms.keys()
    for key, expected in norms.items():
        if expected < zero:  # but for rounding
            assert first[key].norm() < zero, key
        else:
            assert first[key].norm().item() == pytest.approx(expected, rel=rel), key


@every_training
def test_logits_after_the_training_steps_equal_the_release(name):
    file, _, _, logits = trained(name)
    for who, expected in last_logits(file).items():
        torch.testing.assert_close(logits[who], torch.tensor(expected), **tolerance(file, "logits abs", "note"))


@every("bootstrapping__", "paper_alignment_not_official")
@pytest.mark.parametrize(
    ("align", "key"),
    [("flat", "flattened_half_sum_norm"), ("tensor", "per_tensor_half_sum_norm"), ("none", "plain_half_sum_norm")],
)
def test_shared_gradients_are_those_of_the_papers_algorithm(name, align, key):
    file, method, _ = build(name, align=align)
    expected = file["paper_alignment_not_official"]
    progress = file["config"]["epoch"] / file["config"]["total_epochs"]
    logged = gradients(method, batch_of(file, 0), progress)
    found = named_gradients(method)
    inner = method.model.embed_dim
    names = [tensor for tensor, values in expected["tensors"].items() if key in values]
    assert len(names) == len(borrowed_rows(method.model))
    for entry in names:
        tensor, _, rows = entry.partition(" [")
        grad = found[tensor][2 * inner :] if rows else found[tensor]
        assert grad.norm().item() == pytest.approx(expected["tensors"][entry][key], rel=1e-4), entry
    opposed = expected["flattened_dot"] < 0
    assert (logged["shared_cosine"] < 0) == opposed
    conflicts = [expected["tensors"][entry]["dot"] < 0 for entry in names]
    if align == "tensor":
        # Biases that only BatchNorm reads have no true gradient, so the sign of their product is left to rounding.
        noise = [expected["tensors"][entry]["agent_grad_norm"] < 1e-6 for entry in names]
        sure = sum(c for c, n in zip(conflicts, noise, strict=True) if not n)
        assert sure <= round(logged["shared_conflict"].item() * len(names)) <= sure + sum(noise)
    else:
        assert logged["shared_conflict"] == opposed


@every("bootstrapping__", "paper_alignment_not_official")
def test_queries_and_keys_keep_the_vits_own_gradient(name):
    file, aligned, _ = build(name)
    vit = copy.deepcopy(aligned.model)
    agent_args = agent_settings(file["config"]["models"]["cnn"]) | {"mlp_drop_rate": 0.0}
    alone = create_method(
        "bootstrap", vit, num_classes=aligned.num_classes, agent_args=agent_args, feature_weight=aligned.feature_weight
    ).train()
    alone.agent.load_state_dict(plain_state(aligned.agent))
    for method in (aligned, alone):
        gradients(method, batch_of(file, 0), progress=0.0)
    inner = aligned.model.embed_dim
    for mine, others in zip(aligned.model.blocks, alone.model.blocks, strict=True):
        mine, others = mine.attn.qkv.weight.grad, others.attn.qkv.weight.grad
        torch.testing.assert_close(mine[: 2 * inner], others[: 2 * inner], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(mine[2 * inner :], others[2 * inner :], rtol=1e-4, atol=1e-6)
