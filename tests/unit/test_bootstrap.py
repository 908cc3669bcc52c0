"""Bootstrapping and distillation: what they compute, what they leave alone, what they refuse."""

import copy
import json

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from recorder import Recorder
from sklearn.datasets import load_digits

import vitling
from vitling.errors import UserError
from vitling.methods import create_method
from vitling.methods.bootstrap import align_gradients, borrowed_rows, feature_loss
from vitling.methods.distillation import Teacher
from vitling.models.agent import Agent
from vitling.optim import create_optimizer
from vitling.recipes import Optim, load_recipe, named_recipes, override, replace
from vitling.runs.opening import open_model

torch.manual_seed(0)
VITS = {
    "boot_vit_test": {},
    "t2t_vit_test": {},
    "lvvit_test": {},
    "dhvt_test": {},
    "diag_vit_test": {},
    "vit_tiny_patch16_224": dict(embed_dim=24, depth=2, num_heads=2, patch_size=8),
    "deit_tiny_distilled_patch16_224": dict(embed_dim=24, depth=2, num_heads=2, patch_size=8),
    "vit_medium_patch16_gap_240": dict(embed_dim=24, depth=2, num_heads=2, patch_size=8),  # no class token
}


def create_vit(name: str = "boot_vit_test", size=(32, 32), **arguments):
    arguments = {**VITS.get(name, {}), "img_size": size, "num_classes": 7, **arguments}
    vit = timm.create_model(name, **arguments)
    channels = arguments.get("in_chans", 3)
    vit.pretrained_cfg = {**vit.pretrained_cfg, "input_size": (channels, *size), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    return vit


def bootstrap(vit=None, **method_args):
    return create_method("bootstrap", vit or create_vit(), num_classes=7, **method_args)


def batch_of(n: int = 4, size=(32, 32), channels: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return {
        "image": torch.randn(n, channels, *size, generator=generator),
        "label": torch.randint(7, (n,), generator=generator),
    }


def step(method, *batches, progress: float = 0.0) -> dict[str, torch.Tensor]:
    """Gradients of the mean loss over micro-batches, as the loop takes them."""
    for batch in batches:
        losses = method(batch, progress)
        (losses["loss"] / len(batches)).backward()
    return losses | method.finish_gradients(lambda tensors: tensors)


def freeze_statistics(method) -> None:
    """Leave BatchNorm at its running statistics, where a micro-batch does not depend on its size."""
    for module in method.modules():
        if isinstance(module, torch.nn.BatchNorm2d | torch.nn.Dropout):
            module.eval()


# -- every ViT -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [False, True], ids=["joint", "shared"])
@pytest.mark.parametrize("name", VITS)
def test_any_vit_learns_with_an_agent_and_every_tensor_gets_a_gradient(name, share):
    method = bootstrap(create_vit(name, size=(32, 48)), share=share)
    losses = step(method, batch_of(size=(32, 48)))
    assert all(value.isfinite() for value in losses.values())
    names = ["loss", "vit_label", "agent_label", "vit_from_agent", "agent_from_vit", "vit_from_agent_features"]
    assert list(losses) == names + (["shared_conflict", "shared_cosine"] if share else [])
    learned = [p for p in method.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned)


@pytest.mark.parametrize("share", [False, True], ids=["joint", "shared"])
def test_each_network_runs_forward_once_in_a_step(share):
    method = bootstrap(share=share)
    calls = {"vit": 0, "agent": 0}
    method.model.blocks[0].register_forward_hook(lambda *_: calls.update(vit=calls["vit"] + 1))
    method.agent.layers[0].register_forward_hook(lambda *_: calls.update(agent=calls["agent"] + 1))
    step(method, batch_of())
    assert calls == {"vit": 1, "agent": 1}


@pytest.mark.parametrize("name", VITS)
def test_the_tapped_pass_gives_the_models_own_logits(name):
    method = bootstrap(create_vit(name)).eval()
    images = batch_of()["image"]
    with torch.no_grad():
        logits, blocks = method._run_vit(images)
        torch.testing.assert_close(logits, method.model(images))
        torch.testing.assert_close(method._run_agent(images)[0], method.agent(images))
    grid = getattr(method.model, "grid_size", None) or method.model.patch_embed.grid_size
    assert {block.shape[1] for block in blocks} == {grid[0] * grid[1]}


# -- sharing -------------------------------------------------------------------------------------------------------------


def test_a_sharing_method_holds_each_tensor_once():
    vit = create_vit()
    method = bootstrap(vit, share=True)
    step(method, batch_of())
    assert {name.split(".")[0] for name in method.state_dict()} == {"model", "agent"}
    assert not any("cnn_block" in name or "mlp_block" in name for name in method.state_dict())
    joint = sum(p.numel() for p in bootstrap(create_vit()).parameters())
    alone = sum(p.numel() for p in vit.parameters())
    assert sum(p.numel() for p in method.parameters()) < alone + (joint - alone) / 3


def test_the_lent_tensors_are_the_vits_memory_for_one_step_only():
    method = bootstrap(share=True)
    method(batch_of(), 0.0)["loss"].backward()
    assert all(t.data_ptr() == method.model.get_parameter(name).data_ptr() for name, t in method.loan.items())
    method.finish_gradients(lambda tensors: tensors)
    assert not method.loan


@pytest.mark.parametrize("align", ["flat", "tensor", "none"])
def test_aligning_acts_on_the_mean_over_micro_batches(align):
    whole = bootstrap(share=True, align=align).train()
    freeze_statistics(whole)
    parts = copy.deepcopy(whole)
    batch = batch_of(8)
    micro = [{key: value[i : i + 2] for key, value in batch.items()} for i in range(0, 8, 2)]
    logged, logged_parts = step(whole, batch), step(parts, *micro)
    torch.testing.assert_close(logged_parts["shared_cosine"], logged["shared_cosine"], rtol=1e-3, atol=1e-5)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-5)


def test_without_alignment_sharing_is_one_backward_of_half_the_sum():
    method = bootstrap(share=True, align="none")
    freeze_statistics(method)
    plain = copy.deepcopy(method)
    plain.borrowed = {}  # the agent then uses the ViT's tensors themselves, as the release does
    step(method, batch_of())
    step(plain, batch_of())
    for one, other in zip(method.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_the_averages_over_processes_are_what_is_aligned():
    one, two = bootstrap(share=True), None
    freeze_statistics(one)
    two = copy.deepcopy(one)
    step(one, batch_of())
    two(batch_of(), 0.0)["loss"].backward()
    two.finish_gradients(lambda tensors: [-tensor for tensor in tensors])
    name = next(name for name in one.borrowed if name.endswith("fc1.weight"))
    assert not torch.allclose(one.model.get_parameter(name).grad, two.model.get_parameter(name).grad)


def test_frozen_tensors_are_not_shared_for_learning():
    vit = create_vit()
    vit.blocks[0].requires_grad_(False)
    method = bootstrap(vit, share=True)
    assert not any(name.startswith("blocks.0.") for name in borrowed_rows(vit))
    step(method, batch_of())
    assert all(p.grad is None for p in vit.blocks[0].parameters())
    vit.requires_grad_(False)
    assert "shared_cosine" not in step(bootstrap(vit, share=True), batch_of())


@pytest.mark.parametrize("align", ["flat", "tensor"])
def test_aligned_gradients_never_oppose_the_vits(align):
    agent, vit = ([torch.randn(n) for n in (5, 3, 8)] for _ in range(2))
    aligned = align_gradients([a - v for a, v in zip(agent, vit, strict=True)], vit, align)
    dots = torch.stack([a.dot(v) for a, v in zip(aligned, vit, strict=True)])
    assert (dots > -1e-5).all() if align == "tensor" else dots.sum() > -1e-5


def test_a_gradient_of_zero_is_left_alone():
    zero, other = torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])
    for align in ("flat", "tensor"):
        assert torch.equal(align_gradients(other, zero, align), other)
        assert torch.equal(align_gradients(zero, other, align), zero)


# -- losses --------------------------------------------------------------------------------------------------------------


def test_the_longer_sequence_is_pooled_whichever_network_it_is_of():
    tokens, fine = torch.randn(2, 6, 5), torch.randn(2, 5, 4, 6)
    pooled = fine.flatten(2).unflatten(2, (6, 4)).mean(3)
    expected = F.mse_loss(F.layer_norm(tokens, (5,)), F.layer_norm(pooled.transpose(1, 2), (5,)))
    torch.testing.assert_close(feature_loss(tokens, fine), expected)
    coarse = torch.randn(2, 5, 1, 3)
    pooled = tokens.unflatten(1, (3, 2)).mean(2)
    expected = F.mse_loss(F.layer_norm(pooled, (5,)), F.layer_norm(coarse.flatten(2).transpose(1, 2), (5,)))
    torch.testing.assert_close(feature_loss(tokens, coarse), expected)


def test_two_dimensional_pooling_keeps_rows_and_columns_apart():
    tokens, fine = torch.randn(2, 6, 5), torch.randn(2, 5, 4, 6)
    pooled = F.avg_pool2d(fine, 2).flatten(2).transpose(1, 2)
    expected = F.mse_loss(F.layer_norm(tokens, (5,)), F.layer_norm(pooled, (5,)))
    torch.testing.assert_close(feature_loss(tokens, fine, pool="2d", grid=(2, 3)), expected)
    with pytest.raises(UserError, match="6 tokens do not form a square"):
        feature_loss(tokens, fine, pool="2d")


def test_token_counts_that_do_not_divide_are_refused():
    with pytest.raises(UserError, match="the ViT has 6 tokens along an axis where the agent has 16: neither divides"):
        feature_loss(torch.randn(1, 6, 4), torch.randn(1, 4, 4, 4))


@pytest.mark.parametrize(
    ("args", "progress", "weight"),
    [
        ({}, 0.0, 10),
        ({}, 0.25, 7.5),
        ({}, 1.0, 0),
        ({"feature_decay": False}, 0.25, 10),
        ({"feature_weight": 2}, 0.5, 1),
    ],
)
def test_the_feature_weight_fades_linearly_unless_told_not_to(args, progress, weight):
    losses = bootstrap(**args)(batch_of(), progress)
    rest = sum(value for name, value in losses.items() if name not in ("loss", "vit_from_agent_features"))
    torch.testing.assert_close(losses["loss"], rest + weight * losses["vit_from_agent_features"])


def test_a_term_without_weight_is_neither_computed_nor_logged():
    kd_only = bootstrap(feature_weight=0)(batch_of(), 0.0)
    assert list(kd_only) == ["loss", "vit_label", "agent_label", "vit_from_agent", "agent_from_vit"]
    features_only = bootstrap(mutual_weight=0)(batch_of(), 0.0)
    assert list(features_only) == ["loss", "vit_label", "agent_label", "vit_from_agent_features"]


def test_mixing_and_smoothing_reach_both_networks():
    plain = bootstrap().eval()
    smooth = copy.deepcopy(plain)
    smooth.mix.label_smoothing = 0.3
    mixed = copy.deepcopy(plain)
    mixed.mix.mixup_alpha = 1.0
    batch = batch_of()
    before = batch["image"].clone()
    for other in (smooth, mixed):
        for name in ("vit_label", "agent_label"):
            assert other(batch, 0.0)[name] != plain(batch, 0.0)[name]
    assert torch.equal(batch["image"], before)


@pytest.mark.parametrize("share", [False, True], ids=["joint", "shared"])
def test_losses_are_float32_under_bfloat16(share):
    method = bootstrap(share=share)
    freeze_statistics(method)
    exact = method(batch_of(), 0.0)
    method.loan = {}
    with torch.autocast("cpu", torch.bfloat16):
        losses = method(batch_of(), 0.0)
    losses["loss"].backward()
    method.finish_gradients(lambda tensors: tensors)
    for name, value in losses.items():
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(exact[name].item(), rel=0.1, abs=0.1)


# -- two networks, two settings --------------------------------------------------------------------------------------------


def test_each_network_has_its_own_learning_rate_and_weight_decay():
    method = bootstrap(agent_lr=2e-3, agent_weight_decay=0.3)
    groups = method.parameter_groups(Optim(lr=1e-3, weight_decay=0.05), lr=4e-3)  # lr was scaled by four for the batch
    create_optimizer(groups, Optim(), 4e-3)  # takes every parameter once
    of = {id(p): group for group in groups for p in group["params"]}
    assert of.keys() == {id(p) for p in method.parameters()}
    vit, agent = of[id(method.model.blocks[0].mlp.fc1.weight)], of[id(method.agent.layers[0].mlp_block.conv1.weight)]
    assert (vit["lr"], vit["weight_decay"]) == (4e-3, 0.05)
    assert (agent["lr"], agent["weight_decay"]) == (8e-3, 0.3)
    assert of[id(method.model.pos_embed)]["weight_decay"] == 0
    assert of[id(method.agent.bn.weight)]["weight_decay"] == 0


def test_the_agents_settings_are_the_vits_unless_given_and_all_tensors_may_decay():
    groups = bootstrap(share=True).parameter_groups(Optim(decay_all=True, weight_decay=0.05), lr=1e-3)
    assert {(group["lr"], group["weight_decay"]) for group in groups} == {(1e-3, 0.05)}


def test_each_network_is_clipped_by_itself():
    method = bootstrap(agent_clip_grad=0.5)
    (vit, vit_norm), (agent, agent_norm) = method.clip_limits(2.0)
    assert (vit_norm, agent_norm) == (2.0, 0.5)
    assert [*map(id, vit)] == [*map(id, method.model.parameters())]
    assert [*map(id, agent)] == [*map(id, method.agent.parameters())]


def test_the_plain_vit_is_the_model_and_the_agent_is_evaluated_beside_it():
    vit = create_vit()
    method = bootstrap(vit)
    assert method.model is vit
    assert method.evaluated() == {"agent": method.agent}


def test_an_agent_can_be_named_and_any_model_can_be_one_for_its_predictions():
    named = bootstrap(agent="agent_test", agent_args=dict(mlp_drop_rate=0.0))
    assert isinstance(named.agent, Agent)
    assert named.agent.num_classes == 7
    assert named.agent.layers[0].mlp_block.drop.p == 0
    step(named, batch_of())
    other = bootstrap(create_vit("t2t_vit_dense_test"), agent="resnet18", feature_weight=0)
    step(other, batch_of())
    assert all(p.grad is not None for p in other.parameters() if p.requires_grad)


# -- bad input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "method_args", "message"),
    [
        ("resnet18", {}, "ResNet cannot have an agent built for it: it has no `blocks`"),
        ("resnet18", {}, "such are boot_vit_*, t2t_vit_*, lvvit_*, dhvt_*, diag_vit_* and timm's vit_* and deit_*"),
        ("swin_tiny_patch4_window7_224", {}, "SwinTransformer cannot have an agent"),
        ("t2t_vit_dense_test", {"share": True}, "cannot share weights with an agent"),
        ("boot_vit_test", {"align": "flat"}, "add method_args.share=true"),
        ("boot_vit_test", {"align": "flatt", "share": True}, "Did you mean flat"),
        ("boot_vit_test", {"feature_pool": "3d"}, "method_args.feature_pool=3d is not one of sequence, 2d"),
        ("boot_vit_test", {"feature_norm": "layr"}, "Did you mean layer"),
        ("boot_vit_test", {"temperature": 0}, "temperature=0 is out of range; it must be more than 0"),
        ("boot_vit_test", {"feature_weight": -1}, "feature_weight=-1 is out of range; it must be at least 0"),
        ("boot_vit_test", {"agent": "agent_test", "share": True}, "leave agent=auto"),
        ("boot_vit_test", {"agent": "agent_tst"}, "unknown model 'agent_tst'. Did you mean agent_test"),
        ("boot_vit_test", {"agent": "agent_nano"}, "features need an agent of the ViT's depth 3 and width 36"),
        ("boot_vit_test", {"agent": "resnet18"}, "or feature_weight=0"),
        ("boot_vit_test", {"agent_args": {"stemm": "base"}}, "agent_args={'stemm': 'base'}"),
        ("boot_vit_test", {"agent": "agent_test", "agent_args": {"patch_size": 6, "stem": "base", "down_sample": ()}}, "neither divides"),
        ("boot_vit_test", {"featur_weight": 1}, "has no argument 'method_args.featur_weight'. Did you mean feature_weight"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_line(model, method_args, message):
    vit = create_vit(model) if "vit" in model else timm.create_model(model)
    with pytest.raises(UserError) as error:
        bootstrap(vit, **method_args)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# -- recipes ---------------------------------------------------------------------------------------------------------------


def test_every_row_of_the_papers_tables_is_a_recipe():
    names = {name.removeprefix("bootstrapping/") for name in named_recipes() if name.startswith("bootstrapping/")}
    sizes = [
        f"vit_{size}{kind}" for size in "sb" for kind in ("", "_sam", "_sparse", "_pretrained", "_joint", "_shared")
    ]
    table_1 = ["efficientnet_b2", "resnet50", "agent_s", "agent_b", *sizes]
    assert {f"{data}_{row}" for data in ("cifar10", "cifar100") for row in table_1} <= names
    table_3 = ["resnet50", "agent_b", "vit_b", "vit_b_sam", "vit_b_sparse", "vit_b_joint", "vit_b_shared"]
    assert {f"imagenet_{percent}pct_{row}" for percent in (1, 5, 10, 50) for row in table_3} <= names
    table_4 = ["kd_only", "features_only", "features_only_no_decay", "features_only_2d", "joint_no_decay"]
    assert {f"cifar100_vit_s_{row}" for row in [*table_4, "joint_base_agent"]} | {"cifar100_agent_s_base"} <= names


@pytest.mark.slow  # builds the paper's networks
@pytest.mark.parametrize(
    "name", [n for n in named_recipes() if n.startswith("bootstrapping/") and ("cifar100_" in n or "nano" in n)]
)
def test_every_recipe_of_the_paper_can_be_built(name):
    recipe = load_recipe(name)
    vit = timm.create_model(recipe.model, num_classes=100, **recipe.model_args)
    method = create_method(recipe.method, vit, num_classes=100, **recipe.method_args)
    groups = method.parameter_groups(recipe.optim, recipe.optim.lr)
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(p.numel() for p in method.parameters())
    if name == "bootstrapping/cifar100_vit_s_shared":
        assert sum(p.numel() for p in method.parameters()) == 6_514_504


# -- distillation ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher_run(tmp_path_factory):
    """A (hardly) trained run on digits, and what its model sees."""
    path = tmp_path_factory.mktemp("runs") / "teacher"
    recipe = vitling.Recipe(
        model="diag_resnet18_test", data="digits", epochs=1, batch_size=256, optim=Optim(warmup_epochs=0)
    )
    return vitling.train(recipe, path)


def student_of(run, name: str = "boot_vit_test", **arguments):
    vit = timm.create_model(name, num_classes=10, img_size=8, patch_size=2, in_chans=1, **arguments)
    seen = run.preprocessing()
    vit.pretrained_cfg = {**vit.pretrained_cfg, "input_size": (1, 8, 8), "mean": seen.mean, "std": seen.std}
    return vit


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_student_learns_from_labels_and_from_the_runs_model(teacher_run, kind):
    method = create_method(
        "distillation", student_of(teacher_run), num_classes=10, teacher=str(teacher_run.path), kind=kind, teacher_weight=0.3
    )  # fmt: skip
    batch = {"image": torch.randn(6, 1, 8, 8), "label": torch.arange(6)}
    losses = method.eval()(batch, 0.0)
    taught = teacher_run.load_model()(batch["image"])
    logits = method.model(batch["image"])
    label = F.cross_entropy(logits, batch["label"])
    if kind == "hard":
        from_teacher = F.cross_entropy(logits, taught.argmax(1))
    else:
        p, log_q = (taught / 3).softmax(1), (logits / 3).log_softmax(1)
        from_teacher = 9 * (p * (p.log() - log_q)).sum(1).mean()
    torch.testing.assert_close(losses["student_label"], label)
    torch.testing.assert_close(losses["student_from_teacher"], from_teacher)
    torch.testing.assert_close(losses["loss"], 0.7 * label + 0.3 * from_teacher)


def test_a_distillation_token_learns_from_the_teacher_and_the_class_token_from_the_labels(teacher_run):
    vit = student_of(teacher_run, "deit_tiny_distilled_patch16_224", embed_dim=24, depth=2, num_heads=2)
    method = create_method("distillation", vit, num_classes=10, teacher=str(teacher_run.path))
    losses = method({"image": torch.randn(6, 1, 8, 8), "label": torch.arange(6)}, 0.0)
    heads = [vit.head.weight, vit.head_dist.weight]
    by_label = torch.autograd.grad(losses["student_label"], heads, retain_graph=True, allow_unused=True)
    by_teacher = torch.autograd.grad(losses["student_from_teacher"], heads, allow_unused=True)
    assert [grad is not None for grad in by_label] == [True, False]
    assert [grad is not None for grad in by_teacher] == [False, True]
    assert vit.eval()(torch.randn(1, 1, 8, 8)).shape == (1, 10)


def test_the_teacher_is_no_part_of_what_is_trained_or_saved(teacher_run):
    method = create_method("distillation", student_of(teacher_run), num_classes=10, teacher=str(teacher_run.path))
    assert all(name.startswith("model.") for name in method.state_dict())
    assert [*method.parameters()] == [*method.model.parameters()]
    network = method.train().teacher.network[0]
    assert not any(module.training for module in network.modules())
    method.double()
    assert next(network.parameters()).dtype == torch.float64
    assert method({"image": torch.randn(2, 1, 8, 8).double(), "label": torch.arange(2)}, 0.0)["loss"].isfinite()


def test_the_teacher_sees_images_of_its_own_size_and_normalisation():
    network, student = torch.nn.Flatten(), torch.nn.Identity()
    network.pretrained_cfg = {"input_size": (3, 4, 4), "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.25, 1.0)}
    student.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}
    pixels = torch.rand(2, 3, 1, 1).expand(2, 3, 8, 8)
    seen = Teacher(open_model(network, device="cpu"), student)((pixels - 0.5) / 0.2).view(2, 3, 4, 4)
    mean, std = (torch.tensor(network.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(seen, (pixels[..., :4, :4] - mean) / std)


@pytest.mark.parametrize(
    ("method_args", "message"),
    [
        ({}, "method=distillation needs a teacher"),
        ({"teacher": "resnet81"}, "method_args.teacher=resnet81: no model at resnet81; give a run"),
        ({"teacher": "RUN", "kind": "sofft"}, "Did you mean soft"),
        (
            {"teacher": "RUN", "teacher_weight": 0},
            "teacher_weight=0 is out of range; it must be more than 0 and at most 1",
        ),
        ({"teacher": "RUN", "temperature": -1}, "temperature=-1 is out of range; it must be more than 0"),
        ({"teacher": "RUN", "num_classes": 7}, "knows 10 classes, the data has 7"),
        ({"teacher": "boot_vit_test"}, "boot_vit_test has no published weights"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_in_one_line(teacher_run, method_args, message):
    given = {"num_classes": 10, **method_args}
    if given.get("teacher") == "RUN":
        given["teacher"] = str(teacher_run.path)
    with pytest.raises(UserError) as error:
        create_method("distillation", student_of(teacher_run), **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_teacher_that_learned_the_same_classes_in_another_order_answers_in_the_datas(teacher_run):
    names = teacher_run.class_names
    shuffled = [names[i] for i in (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)]
    given = dict(num_classes=10, teacher=str(teacher_run.path))
    plain, permuted, unnamed = (
        create_method("distillation", student_of(teacher_run), class_names=chosen, **given).eval()
        for chosen in (names, shuffled, None)
    )
    images = torch.randn(6, 1, 8, 8)
    answers = teacher_run.load_model()(images)
    torch.testing.assert_close(plain.teacher(images), answers)
    torch.testing.assert_close(unnamed.teacher(images), answers)
    torch.testing.assert_close(permuted.teacher(images), answers[:, [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]])
    assert not [key for key in permuted.state_dict() if "teacher" in key]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([*"012345678", "ten"], "it knows 9, the data has ten"),
        (
            [f"class {i}" for i in range(10)],
            "it knows 0, 1, 2 and 7 more, the data has class 0, class 1, class 2 and 7 more",
        ),
        ([*"0123456788"], "it knows 9, the data has 0, 1, 2 and 7 more"),
    ],
    ids=["one other", "all others", "one twice"],
)
def test_a_teacher_of_other_classes_is_refused_by_their_names(teacher_run, names, says):
    given = dict(num_classes=10, teacher=str(teacher_run.path), class_names=names)
    with pytest.raises(UserError) as error:
        create_method("distillation", student_of(teacher_run), **given)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def write_digits(path, order):
    """Some of scikit-learn's digits, their classes called by other numbers than their own."""
    data = load_digits()
    labels = np.argsort(order)[data.target[:400]]
    images = (data.images[:400, :, :, None] * 15).astype(np.uint8)
    names = [f"digit {i}" for i in order]
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        test_images=images[:50],
        test_labels=labels[:50],
        class_names=names,
    )
    return str(path)


def test_training_compares_the_classes_of_the_teacher_with_those_of_the_data(tmp_path):
    """One dataset numbers its classes in another order than that of the teacher, a third has other classes."""
    numbers, reversed_numbers = list(range(10)), list(range(9, -1, -1))
    recipe = vitling.Recipe(model="resnet9_test", epochs=1, batch_size=100, optim=Optim(warmup_epochs=0))
    teacher = vitling.train(replace(recipe, data=write_digits(tmp_path / "a.npz", numbers)), tmp_path / "teacher")
    student = replace(recipe, method="distillation", method_args=dict(teacher=str(teacher.path)))
    reordered = replace(student, data=write_digits(tmp_path / "b.npz", reversed_numbers))
    assert vitling.train(reordered, tmp_path / "student").finished
    with pytest.raises(UserError, match="has learned other classes"):
        vitling.train(replace(student, data="digits"), tmp_path / "refused")
    with pytest.raises(UserError, match="class_names is not a setting"):
        vitling.train(override(reordered, ["method_args.class_names=[a, b]"]), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_teacher_without_names_is_believed_and_said_so(teacher_run, tmp_path):
    weights = teacher_run.path / "best" / "model.safetensors"
    config = json.loads((teacher_run.path / "best" / "config.json").read_text())
    for key in ("label_names", "vitling"):
        config.pop(key, None)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "model.safetensors").write_bytes(weights.read_bytes())
    (tmp_path / "bare" / "config.json").write_text(json.dumps(config))
    recorder = Recorder()
    recipe = vitling.Recipe(
        model="resnet9_test", data="digits", fraction=0.2, epochs=1, batch_size=64, optim=Optim(warmup_epochs=0),
        method="distillation", method_args=dict(teacher=str(tmp_path / "bare")),
    )  # fmt: skip
    vitling.train(recipe, tmp_path / "run", callback=recorder)
    assert any("does not name its classes" in line for line in recorder.messages)


@pytest.mark.parametrize("method", ["supervised", "bootstrap", "distillation", "token_bootstrap"])
def test_only_token_labeling_takes_a_model_that_mixes_tokens_in_training(teacher_run, method):
    model = timm.create_model("lvvit_test", num_classes=10, img_size=8, patch_size=2, in_chans=1, mix_token=True)
    given = dict(teacher=str(teacher_run.path)) if method == "distillation" else {}
    with pytest.raises(UserError, match=r"model_args\.mix_token=true .* only method=token_labeling") as error:
        create_method(method, model, num_classes=10, **given)
    assert "\n" not in str(error.value)
    batch = {"image": torch.randn(4, 1, 8, 8), "label": torch.arange(4)}
    assert create_method("token_labeling", model, num_classes=10).train()(batch, 0.0)["loss"].isfinite()
    with pytest.raises(UserError, match="contradict each other"):
        create_method("token_labeling", model, num_classes=10, mix_token=False)


def test_a_teacher_for_other_channels_is_refused(teacher_run):
    vit = create_vit(num_classes=10)
    with pytest.raises(UserError, match="takes images of 1 channels, the data has 3"):
        create_method("distillation", vit, num_classes=10, teacher=str(teacher_run.path))
