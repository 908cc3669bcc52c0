"""The diagnosis paper's ViT and ResNet-18 against the authors' release: keys, counts, outputs, gradients, attention, steps."""

from functools import cache

import pytest
import timm
import torch
import torch.nn.functional as F
from rule import draws, every, fan_in, files, golden, images, numbers_in, tolerance

import vitling
from vitling.models.diag import DiagResNet18, DiagViT


def build(file: dict, **kwargs) -> torch.nn.Module:
    """The paper's network with the sizes of the file, in float64."""
    config = file["config"]
    common = dict(num_classes=config["num_classes"], in_chans=file["input"]["shape"][1], **kwargs)
    if is_vit(file):
        model = DiagViT(
            img_size=config["image_size"],
            patch_size=config["patch_size"],
            embed_dim=config["dim"],
            depth=config["depth"],
            num_heads=config["heads"],
            head_dim=config["dim_head"],
            mlp_dim=config["mlp_dim"],
            global_pool={"cls": "token", "mean": "avg"}[config["pool"]],
            qkv_bias=config["qkv_bias"],
            **common,
        )
    else:
        model = DiagResNet18(img_size=file["input"]["shape"][2:], width=config["widths"][0], **common)
    model.double()
    vitling.load_weights(model, fan_in(file["state_dict"], file["fill"]))
    return model.eval()


def is_vit(file: dict) -> bool:
    return "patch_size" in file["config"]


@cache
def built(name: str):
    return golden(name), build(golden(name))


def authors_gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, float]:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    return model.to_authors(named) if hasattr(model, "to_authors") else named


every_network = every("diagnosis__", "state_dict")
every_vit = every("diagnosis__", "attention_image0")


def test_the_named_networks_have_the_sizes_of_the_papers_files():
    """The release's variants and our names of them."""
    for name, model in (
        ("diagnosis__vit_paper_p4_d512_c10", timm.create_model("diag_vit_patch4")),
        ("diagnosis__vit_main_p8_d64_c10", timm.create_model("diag_vit_patch8", embed_dim=64)),
        ("diagnosis__resnet18_c10", timm.create_model("diag_resnet18")),
    ):
        if name in files("diagnosis__"):
            state = {key: value.shape for key, value in built(name)[1].state_dict().items()}
            assert {key: value.shape for key, value in model.state_dict().items()} == state


@every_network
def test_writing_in_the_authors_names_gives_their_keys_shapes_and_values(name):
    file, model = built(name)
    written = model.to_authors(model.state_dict()) if hasattr(model, "to_authors") else model.state_dict()
    assert {key: list(value.shape) for key, value in written.items()} == dict(file["state_dict"])
    assert all(torch.equal(written[key], value) for key, value in fan_in(file["state_dict"], file["fill"]).items())
    assert sum(p.numel() for p in model.parameters()) == file["param_count"]


@every_network
def test_logits_loss_and_gradients_equal_the_release(name):
    file, model = built(name)
    logits = model(images(file).double())
    close(file, "float64", logits, file["logits"])
    labels, expected = next(
        (key.removeprefix("eval_loss_labels_").split("_"), value)
        for key, value in file.items()
        if key.startswith("eval_loss_labels_")
    )
    loss = F.cross_entropy(logits, torch.tensor([int(label) for label in labels]))
    close(file, "float64", loss, expected)
    gradients = authors_gradients(model, loss)
    norms = {key: gradients[key].norm().item() for key in file["grad_l2"]}
    assert norms == pytest.approx(file["grad_l2"], rel=6e-7)  # the file rounds to seven digits


@every_network
def test_float32_is_within_the_stated_distance(name):
    file = golden(name)
    close(file, "float32", build(file).float()(images(file)), file["logits"])


def close(file: dict, precision: str, actual: torch.Tensor, expected) -> None:
    """The tolerance that the file states, but no less than its nine digits."""
    allowed = tolerance(file, precision)
    allowed["rtol"] = max(allowed["rtol"], 1e-8)
    torch.testing.assert_close(actual.detach().double(), torch.tensor(expected).double(), **allowed)


@every_vit
def test_attention_of_every_block_is_captured_and_equals_the_release(name):
    file = golden(name)
    model = build(file)
    maps = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: maps.append(output))
    with torch.no_grad():
        explicit = model(images(file).double())
    close(file, "float64", explicit, file["logits"])
    expected = file["attention_image0"]
    for layer, entry in ((0, "head_mean_class_row_layer0"), (-1, "head_mean_class_row_last_layer")):
        close(file, "float64", maps[layer][0].mean(dim=0)[0], expected[entry])
    attention = torch.stack(maps, dim=1)  # (B, layer, H, N, N)
    entropy = -(attention * attention.log()).sum(-1).mean(dim=(0, 3))
    expected = torch.tensor(file["attention_both_images"]["mean_entropy_nats_layer_head"]).double()
    torch.testing.assert_close(entropy, expected, atol=6e-7, rtol=0)  # seven digits


@every("diagnosis__", "train_six_steps")
def test_the_steps_of_adam_give_the_losses_of_the_release(name):
    file = golden(name)
    expected = file["train_six_steps"]
    model = build(file, pos_drop_rate=0.0, proj_drop_rate=0.0).train()
    x, labels = draws(expected["X"])[0].tensor(dtype=torch.float64), torch.tensor(expected["labels"])
    optimizer = torch.optim.Adam(model.parameters(), lr=numbers_in(r"lr=#", expected["what"])[0])
    losses = []
    for _ in expected["losses"]:
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected["losses"], abs=tolerance(file, "float64")["atol"])


@every("diagnosis__", "train_mode")
def test_resnet18_in_train_mode_equals_the_release(name):
    file = golden(name)
    expected = file["train_mode"]
    model = build(file).train()
    x = draws(expected["what"])[0].tensor(dtype=torch.float64)
    count, seed = numbers_in(r"randint\(0,nc,\(#,\)\) seed #", expected["what"])
    generator = torch.Generator().manual_seed(int(seed))
    labels = torch.randint(0, file["config"]["num_classes"], (int(count),), generator=generator)
    loss = F.cross_entropy(model(x), labels)
    close(file, "float64", loss, expected["loss"])
    gradients = authors_gradients(model, loss)
    norms = {key: gradients[key].norm().item() for key in expected["grad_l2"]}
    assert norms == pytest.approx(expected["grad_l2"], rel=6e-7)


@every("diagnosis__", "feature_maps_image0")
def test_resnet18_convolutions_give_the_feature_maps_of_the_release(name):
    file, model = built(name)
    maps, handles = {}, []
    for layer, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d) and "shortcut" not in layer:
            handles.append(module.register_forward_hook(lambda m, args, out, layer=layer: maps.update({layer: out[0]})))
    with torch.no_grad():
        model(images(file).double())
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
