"""The diagnosis paper's ViT and ResNet-18 against the authors' release: keys, counts, outputs, gradients, attention, steps."""

from functools import cache

import pytest
import timm
import torch
import torch.nn.functional as F
from rule import fan_in, golden

import vitling

VITS = ["vit_main_p8_d64_c10", "vit_paper_p4_d512_c10"]
ALL = [*VITS, "resnet18_c10"]


def build(variant: str, **kwargs) -> torch.nn.Module:
    file = golden(f"diagnosis__{variant}")
    if variant in VITS:
        config = file["config"]
        model = timm.create_model(f"diag_vit_patch{config['patch_size']}", embed_dim=config["dim"], **kwargs)
    else:
        model = timm.create_model("diag_resnet18", **kwargs)
    model.double()
    vitling.load_weights(model, fan_in(file["state_dict"], file["fill"]))
    return model.eval()


@cache
def built(variant: str):
    return golden(f"diagnosis__{variant}"), build(variant)


def images(file: dict) -> torch.Tensor:
    return randn(file["input"]["shape"], file["input"]["seed"])


def randn(shape, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def authors_gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, float]:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    return model.to_authors(named) if hasattr(model, "to_authors") else named


@pytest.mark.parametrize("variant", ALL)
def test_writing_in_the_authors_names_gives_their_keys_shapes_and_values(variant):
    file, model = built(variant)
    written = model.to_authors(model.state_dict()) if hasattr(model, "to_authors") else model.state_dict()
    assert {key: list(value.shape) for key, value in written.items()} == dict(file["state_dict"])
    assert all(torch.equal(written[key], value) for key, value in fan_in(file["state_dict"], file["fill"]).items())
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]


@pytest.mark.parametrize("variant", ALL)
def test_logits_loss_and_gradients_equal_the_release(variant):
    file, model = built(variant)
    logits = model(images(file))
    torch.testing.assert_close(logits, torch.tensor(file["logits"]).double(), atol=1e-7, rtol=1e-7)
    loss = F.cross_entropy(logits, torch.tensor([1, 2]))
    assert loss.item() == pytest.approx(file["eval_loss_labels_1_2"], abs=1e-7)
    gradients = authors_gradients(model, loss)
    norms = {key: gradients[key].norm().item() for key in file["grad_l2"]}
    assert norms == pytest.approx(file["grad_l2"], rel=6e-7)  # the file rounds to seven digits


@pytest.mark.parametrize("variant", ALL)
def test_float32_is_within_the_stated_distance(variant):
    file, model = built(variant)
    model = build(variant).float()
    tolerance = dict(atol=2e-4, rtol=1e-4) if variant in VITS else dict(atol=5e-4, rtol=1e-3)
    torch.testing.assert_close(model(images(file).float()), torch.tensor(file["logits"]), **tolerance)


@pytest.mark.parametrize("variant", VITS)
def test_attention_of_every_block_is_captured_and_equals_the_release(variant):
    file = golden(f"diagnosis__{variant}")
    model = build(variant)
    maps = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: maps.append(output))
    with torch.no_grad():
        explicit = model(images(file))
    torch.testing.assert_close(explicit, torch.tensor(file["logits"]).double(), atol=1e-7, rtol=1e-7)
    expected = file["attention_image0"]
    for layer, name in ((0, "head_mean_class_row_layer0"), (-1, "head_mean_class_row_last_layer")):
        row = maps[layer][0].mean(dim=0)[0]
        torch.testing.assert_close(row, torch.tensor(expected[name]).double(), atol=1e-7, rtol=1e-7)
    attention = torch.stack(maps, dim=1)  # (B, layer, H, N, N)
    entropy = -(attention * attention.log()).sum(-1).mean(dim=(0, 3))
    expected = torch.tensor(file["attention_both_images"]["mean_entropy_nats_layer_head"]).double()
    torch.testing.assert_close(entropy, expected, atol=6e-7, rtol=0)


def test_six_steps_of_adam_give_the_losses_of_the_release():
    file = golden("diagnosis__vit_main_p8_d64_c10")
    model = build("vit_main_p8_d64_c10", pos_drop_rate=0.0, proj_drop_rate=0.0).train()
    x, labels = randn((16, 3, 32, 32), 11), torch.tensor(file["train_six_steps"]["labels"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(file["train_six_steps"]["losses"], abs=1e-7)


def test_resnet18_in_train_mode_equals_the_release():
    file = golden("diagnosis__resnet18_c10")
    model = build("resnet18_c10").train()
    x = randn((16, 3, 32, 32), 11)
    labels = torch.randint(0, 10, (16,), generator=torch.Generator().manual_seed(12))
    loss = F.cross_entropy(model(x), labels)
    assert loss.item() == pytest.approx(file["train_mode"]["loss"], rel=1e-7)
    gradients = authors_gradients(model, loss)
    norms = {key: gradients[key].norm().item() for key in file["train_mode"]["grad_l2"]}
    assert norms == pytest.approx(file["train_mode"]["grad_l2"], rel=6e-7)


def test_resnet18_convolutions_give_the_feature_maps_of_the_release():
    file, model = built("resnet18_c10")
    maps, handles = {}, []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d) and "shortcut" not in name:
            handles.append(module.register_forward_hook(lambda m, args, out, name=name: maps.update({name: out[0]})))
    with torch.no_grad():
        model(images(file))
    for handle in handles:
        handle.remove()
    expected = file["feature_maps_image0"]["layers"]
    assert list(maps) == [layer["name"] for layer in expected]
    for layer in expected:
        assert list(maps[layer["name"]].shape) == layer["shape"]
        mean_map = maps[layer["name"]].mean(dim=0)
        measured = [mean_map.mean(), mean_map.std(correction=0), mean_map.min(), mean_map.max(), *mean_map[0, :4]]
        listed = [layer[f"map_{what}"] for what in ("mean", "std_population", "min", "max")]
        assert torch.stack(measured).tolist() == pytest.approx(listed + layer["map_first4_of_row0"], rel=1.5e-7)


@pytest.mark.parametrize(
    ("name", "arguments", "params"),
    [
        ("diag_vit_patch8", {"embed_dim": 64, "num_classes": 100}, 1_205_156),
        ("diag_vit_patch4", {"embed_dim": 64}, 1_193_162),
        ("diag_vit_patch4", {"num_classes": 100}, 9_569_892),
        ("diag_vit_patch8", {}, 9_572_874),
        ("diag_vit_patch8", {"num_classes": 100}, 9_619_044),
        ("diag_resnet18", {"num_classes": 100}, 11_220_132),
    ],
)
def test_parameter_counts_are_those_measured_on_the_release(name, arguments, params):
    with torch.device("meta"):
        model = timm.create_model(name, **arguments)
    assert sum(p.numel() for p in model.parameters()) == params
