import contextlib

import pytest
import timm
import torch
from rule import files, golden, numbers_in
from timm.optim import list_optimizers
from torch import nn

from vitling.errors import UserError
from vitling.methods import create_method
from vitling.optim import SAM, Schedule, check_patterns, create_optimizer, parameter_groups, peak_lr
from vitling.optim.muon import QUINTIC, Muon, orthogonalise
from vitling.recipes import Optim, Recipe
from vitling.training.setup import freeze

IMAGENET = [case for name in files("schedule__", "cases") for case in golden(name)["cases"]]
TRANSFERS = [golden(name)["transfer"] for name in files("schedule__", "transfer")]
DHVT = {key: case for name in files("dhvt__", "schedules") for key, case in golden(name)["schedules"].items()}
# The release runs this many epochs at the lowest rate behind its `total_epochs` less them.
COOLDOWN_EPOCHS = 10


def small_vit(**kwargs):
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=48, depth=2, num_heads=2, num_classes=5, **kwargs
    )


def rates(recipe, epochs, lr=None):
    """Learning rate in force in each of the epochs, ten steps each."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr or peak_lr(recipe))
    schedule = Schedule(optimizer, recipe, steps_per_epoch=10)
    found = []
    for epoch in epochs:
        schedule.set(epoch * 10 + 3)
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("case", IMAGENET, ids=lambda case: case["name"])
def test_the_imagenet_schedules_of_t2t_and_lvvit_are_met(case):
    optim = Optim(
        lr=case["base_lr"], warmup_epochs=case["warmup_epochs"], warmup_lr=case["warmup_lr"], min_lr=case["min_lr"],
        cooldown_epochs=COOLDOWN_EPOCHS, schedule_per="epoch",
    )  # fmt: skip
    assert rates(Recipe(epochs=case["total_epochs"], optim=optim), case["epochs"]) == pytest.approx(
        case["lr"], rel=1e-7
    )


@pytest.mark.parametrize("case", DHVT.values(), ids=DHVT)
def test_the_schedule_of_dhvt_is_met_with_its_lag_and_its_scaling_by_batch(case):
    optim = Optim(
        lr=case["base_lr_arg"], lr_per_batch=512, warmup_epochs=case["warmup_epochs"], warmup_lr=case["warmup_lr"],
        min_lr=case["min_lr"], schedule_per="epoch", schedule_lag_epochs=1,
    )  # fmt: skip
    recipe = Recipe(epochs=case["epochs"], batch_size=case["per_gpu_batch"] * case["world"], optim=optim)
    assert peak_lr(recipe) == case["effective_peak_lr"]
    wanted = case["lr_at_epoch"]
    assert rates(recipe, map(int, wanted)) == pytest.approx(list(wanted.values()), rel=1e-7)


@pytest.mark.parametrize("case", DHVT.values(), ids=DHVT)
def test_the_same_tensors_decay_as_in_dhvts_release(case):
    model = timm.create_model("dhvt_tiny_cifar_patch4", num_classes=100)
    groups = parameter_groups(model, Optim(weight_decay=0.05), lr=1.0)
    found = {g["weight_decay"]: (len(g["params"]), sum(p.numel() for p in g["params"])) for g in groups}
    assert found == {g["weight_decay"]: (g["n_tensors"], g["n_values"]) for g in case["param_groups"]}


@pytest.mark.parametrize("case", TRANSFERS, ids=lambda case: case["name"])
def test_the_transfer_schedule_of_t2t_keeps_its_floor_for_every_group(case):
    lr, ratio, floor, epochs = numbers_in(
        r"lr #, backbone ratio #, eta_min # for every group, T_max # epochs", case["name"]
    )
    optim = Optim(
        name="sgd", lr=lr, warmup_epochs=0, min_lr=floor, schedule_per="epoch", lr_factors={"blocks.*": ratio}
    )
    recipe = Recipe(epochs=int(epochs), optim=optim)
    optimizer = create_optimizer(parameter_groups(small_vit(), optim, lr), optim, lr)
    schedule = Schedule(optimizer, recipe, steps_per_epoch=10)
    for epoch, backbone, head in zip(case["epochs"], case["lr_backbone"], case["lr_head"], strict=True):
        schedule.set(epoch * 10)
        assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx([backbone, head], rel=1e-7)


def test_the_step_schedule_drops_and_the_constant_one_stays():
    step = Optim(lr=1.0, schedule="step", decay_epochs=10, decay_rate=0.1, warmup_epochs=0)
    assert rates(Recipe(epochs=30, optim=step), [0, 9, 10, 25]) == pytest.approx([1, 1, 0.1, 0.01])
    constant = Optim(lr=1.0, schedule="constant", warmup_epochs=2, warmup_lr=0.0)
    assert rates(Recipe(epochs=30, optim=constant), [1, 2, 29]) == pytest.approx([0.65, 1, 1])


def test_position_embeddings_and_biases_do_not_decay_unless_all_is_asked():
    model = small_vit()
    spared = {id(p) for g in parameter_groups(model, Optim(), 1.0) if g["weight_decay"] == 0 for p in g["params"]}
    assert {id(model.pos_embed), id(model.cls_token), id(model.norm.bias)} <= spared
    assert id(model.blocks[0].attn.qkv.weight) not in spared
    groups = parameter_groups(model, Optim(decay_all=True), 1.0)
    assert {g["weight_decay"] for g in groups} == {0.05}


def test_a_method_tells_timm_what_must_not_decay():
    method = create_method("supervised", small_vit(), num_classes=5)
    assert {"model.pos_embed", "model.cls_token"} <= method.no_weight_decay()


def test_layer_decay_gives_early_layers_less():
    model = small_vit()
    groups = parameter_groups(model, Optim(layer_decay=0.5), 1.0)
    scale = {id(p): g["lr_scale"] for g in groups for p in g["params"]}
    assert (
        scale[id(model.patch_embed.proj.weight)]
        < scale[id(model.blocks[1].attn.qkv.weight)]
        < scale[id(model.head.weight)]
    )


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "lion"])
def test_optimisers_lower_a_loss(name):
    torch.manual_seed(0)
    model, optim = small_vit(), Optim(name=name, lr=0.01)
    optimizer = create_optimizer(parameter_groups(model, optim, optim.lr), optim, optim.lr)
    x, y = torch.randn(16, 3, 16, 16), torch.arange(16) % 5
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["sgd", "sgdw", "nesterov", "momentum"])
def test_without_momentum_a_step_is_the_gradient_alone(name):
    weight = nn.Parameter(torch.ones(3))
    optimizer = create_optimizer([{"params": [weight]}], Optim(name=name, momentum=0.0, weight_decay=0.0), 0.1)
    for _ in range(2):
        weight.grad = torch.full((3,), 0.5)
        optimizer.step()
    assert torch.allclose(weight, torch.full((3,), 1 - 2 * 0.1 * 0.5))
    assert not optimizer.param_groups[0]["nesterov"]


def test_with_momentum_sgd_still_looks_ahead():
    optimizer = create_optimizer([{"params": [nn.Parameter(torch.ones(1))]}], Optim(name="sgd"), 0.1)
    assert (optimizer.param_groups[0]["nesterov"], optimizer.param_groups[0]["momentum"]) == (True, 0.9)


def test_every_optimiser_of_timm_is_made_or_refused_as_a_user_error():
    for name in list_optimizers():
        with contextlib.suppress(UserError):
            create_optimizer([{"params": [nn.Parameter(torch.zeros(2, 2))]}], Optim(name=name, momentum=0.0), 0.1)


def test_muon_leaves_embeddings_and_classifier_to_adamw():
    model = small_vit()
    groups = parameter_groups(model, Optim(name="muon"), 1.0)
    fallback = {id(p) for g in groups if g.get("use_fallback") for p in g["params"]}
    assert {id(model.pos_embed), id(model.head.weight)} <= fallback
    assert id(model.blocks[0].mlp.fc1.weight) not in fallback


def test_betas_reach_every_optimiser_that_has_them():
    for name in ("adamw", "lion", "muon"):
        group = [{"params": [nn.Parameter(torch.zeros(2, 2))]}]
        assert create_optimizer(group, Optim(name=name, betas=(0.5, 0.6)), 1e-3).param_groups[0]["betas"] == (0.5, 0.6)


def test_an_unknown_optimiser_is_met_with_a_suggestion():
    with pytest.raises(UserError, match="Did you mean adamw"):
        create_optimizer([{"params": [nn.Parameter(torch.zeros(1))]}], Optim(name="adamww"), 1.0)


def test_a_pattern_that_fits_nothing_is_refused():
    with pytest.raises(UserError, match=r"no parameter is called 'blok\.\*'"):
        check_patterns(small_vit(), ["blok.*"], "optim.lr_factors")


def test_frozen_parameters_are_left_out_and_freezing_all_is_refused():
    model = small_vit()
    freeze(model, ("backbone",))
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]
    groups = parameter_groups(model, Optim(), 1.0)
    assert sum(len(g["params"]) for g in groups) == 2
    with pytest.raises(UserError, match="leaves nothing to train"):
        freeze(small_vit(), ("*",))


@pytest.mark.parametrize(
    ("name", "heads"),
    [("lvvit_test", ["head", "aux_head"]), ("deit_tiny_distilled_patch16_224", ["head", "head_dist"])],
)
def test_freezing_the_backbone_leaves_every_classifier_of_a_model(name, heads):
    sizes = dict(embed_dim=24, depth=1, num_heads=2, patch_size=4) if name.startswith("deit") else {}
    model = timm.create_model(name, img_size=16, num_classes=5, **sizes)
    freeze(model, ("backbone",))
    kept = [f"{head}.{part}" for head in heads for part in ("weight", "bias")]
    assert [key for key, parameter in model.named_parameters() if parameter.requires_grad] == kept
    logits = model.train()(torch.randn(2, 3, 16, 16))
    logits.logsumexp(1).sum().backward()
    assert all(model.get_parameter(key).grad.any() for key in kept)


def test_a_fixed_table_may_be_named_among_what_is_frozen_and_running_statistics_may_not():
    freeze(timm.create_model("t2t_vit_test"), ("norm.*", "pos_embed"))
    with pytest.raises(UserError, match="no parameter is called"):
        freeze(timm.create_model("lvvit_test"), ("patch_embed.bn1.running_mean",))


def test_sam_climbs_by_rho_along_the_gradient_and_comes_back():
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    weight.grad = torch.tensor([3.0, 4.0])
    sam = SAM([weight], rho=0.5)
    sam.climb()
    assert torch.allclose(weight, torch.tensor([3.3, 4.4]))
    sam.descend()
    assert torch.equal(weight, torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize("name", files("bootstrapping__", "lr_cosine"))
def test_the_cosine_of_bootstrapping_is_met(name):
    wanted = golden(name)["lr_cosine"]  # of the first epoch, some others and the last
    epochs = 1 + max(map(int, wanted))
    recipe = Recipe(epochs=epochs, optim=Optim(lr=wanted["0"], warmup_epochs=0, min_lr=0.0, schedule_per="epoch"))
    assert rates(recipe, map(int, wanted)) == pytest.approx(list(wanted.values()), rel=1e-6)


def test_a_linear_schedule_is_a_triangle():
    optim = Optim(lr=1.0, warmup_epochs=2, warmup_lr=0.0, min_lr=0.0, schedule="linear", schedule_per="epoch")
    assert rates(Recipe(epochs=10, optim=optim), [0, 1, 2, 6, 10]) == pytest.approx([0, 0.5, 1, 0.5, 0])


def test_muon_orthogonalises_as_timm_does_in_float32():
    from timm.optim.muon import zeropower_via_newtonschulz

    generator = torch.Generator().manual_seed(0)
    for shape in [(3, 8, 24), (3, 24, 8), (1, 16, 16)]:
        x = torch.randn(shape, generator=generator)
        expected = zeropower_via_newtonschulz(x, 5, [QUINTIC], dtype=torch.float32)
        torch.testing.assert_close(orthogonalise(x), expected, rtol=1e-4, atol=1e-5)


def test_muon_moves_every_direction_of_a_matrix_alike():
    x = torch.diag(torch.tensor([5.0, 1.0, 0.3, 0.1]))
    values = torch.linalg.svdvals(orthogonalise(x))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_step_of_muon_is_the_orthogonal_momentum_at_adamws_size():
    weight = nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    before, gradient = weight.detach().clone(), torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    weight.grad = gradient.clone()
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    direction = orthogonalise(gradient)  # momentum and gradient point the same way in the first step
    expected = before * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 6**0.5 * direction
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-5, atol=1e-6)


def test_muon_steps_what_is_no_matrix_as_adamw_does():
    generator = torch.Generator().manual_seed(0)
    shapes = [(7,), (8, 1, 3, 3), (12, 6)]  # a bias, a depth-wise filter, a classifier in a fallback group
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    ours, theirs = ([nn.Parameter(value.clone()) for value in values] for _ in range(2))
    groups = [{"params": ours[:2]}, {"params": ours[2:], "use_fallback": True}]
    settings = dict(lr=0.01, weight_decay=0.1, betas=(0.8, 0.9))
    optimizers = [Muon(groups, **settings), torch.optim.AdamW(theirs, **settings)]
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs)
