"""timm's contract, which its own tests ask of every model: over all small variants of our families, and the switches they have.

TorchScript is left out: torch has deprecated it.
"""

import json

import pytest
import timm
import torch
from test_models import (
    SWITCHED,
    TEST,
    create,
    every_kind,
    every_small_model,
    every_test_model,
    gradients,
    images,
    is_convolutional,
    randomise,
)
from timm.models import (
    create_feature_extractor,
    get_graph_node_names,
    group_parameters,
)
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from vitling.models import our_models
from vitling.models.agent import create_agent
from vitling.models.diag import DiagViT
from vitling.models.weights import save_for_timm

CONVOLUTIONAL = sorted(name for name, family in our_models().items() if family in ("agent", "resnet9"))
CONVOLUTIONAL += sorted(name for name in our_models() if name.startswith("diag_resnet18"))


# Learning


@every_small_model
def test_every_parameter_is_trained_and_gets_a_finite_gradient(name):
    """What is never trained is a buffer: timm's tests, optimisers and users take a parameter for something that learns."""
    model = create(name, num_classes=42).train()
    found = gradients(model, images(model))
    assert found.keys() == {key for key, _ in model.named_parameters()}
    for key, gradient in found.items():
        assert gradient.isfinite().all(), key


def test_what_t2t_never_trains_is_a_buffer_that_checkpoints_hold():
    model = create("t2t_vit_test")
    fixed = {"pos_embed", "tokens_to_token.attention1.w", "tokens_to_token.attention2.w"}
    assert dict(model.named_buffers()).keys() == fixed
    assert fixed <= model.state_dict().keys()
    learned = create("vit_s16 small")
    assert isinstance(learned.pos_embed, nn.Parameter)


# Configuration


@every_small_model
def test_the_default_cfg_names_the_first_layer_and_the_classifier(name):
    model = create(name)
    cfg = model.pretrained_cfg
    layers = dict(model.named_modules())
    for entry in ("first_conv", "classifier"):
        names = [cfg[entry]] if isinstance(cfg[entry], str) else cfg[entry]
        assert all(hasattr(layers[layer], "weight") for layer in names), entry
    assert cfg["architecture"] == name.split()[0]
    assert model.num_classes == cfg["num_classes"]


@every_kind
def test_without_classes_the_model_gives_features(name):
    model = create(name, num_classes=0).eval()
    classifiers = model.pretrained_cfg["classifier"]
    classifiers = (classifiers,) if isinstance(classifiers, str) else classifiers
    assert not [key for key in model.state_dict() if key.rpartition(".")[0] in classifiers]
    x = images(model)
    with torch.no_grad():
        assert model(x).shape == (2, model.head_hidden_size)
        model.reset_classifier(0, "")
        unpooled = model(x)
    assert unpooled.ndim in (3, 4)
    assert model.head_hidden_size in unpooled.shape


@every_kind
def test_the_classifier_can_be_replaced(name):
    model = create(name)
    for classes in (5, 0, 3):
        model.reset_classifier(classes)
        assert model.num_classes == classes
        with torch.no_grad():
            assert model.eval()(images(model)).shape == (2, classes or model.head_hidden_size)
    assert isinstance(model.get_classifier(), nn.Module)
    gradients(model.train(), images(model))
    assert all(parameter.grad is not None for parameter in model.get_classifier().parameters())


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_the_pool_size_of_a_convolutional_network_is_that_of_its_last_map(name):
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        maps = model.forward_features(torch.empty(1, *model.pretrained_cfg["input_size"]))
    assert tuple(maps.shape[2:]) == model.pretrained_cfg["pool_size"]


def test_a_switch_that_changes_the_last_map_changes_the_pool_size():
    model = create("agent_test base").eval()
    assert tuple(model.forward_features(images(model)).shape[2:]) == model.pretrained_cfg["pool_size"] == (4, 4)


@every_kind
def test_names_without_weight_decay_are_names_of_parameters(name):
    model = create(name)
    assert set(model.no_weight_decay()) <= {key for key, _ in model.named_parameters()}


@every_kind
@pytest.mark.parametrize("coarse", [False, True])
def test_every_parameter_has_its_layer_and_the_classifier_is_in_the_last(name, coarse):
    model = create(name)
    layers = group_parameters(model, model.group_matcher(coarse=coarse), reverse=True)
    assert layers.keys() == {key for key, _ in model.named_parameters()}
    first = model.pretrained_cfg["first_conv"]
    assert layers[f"{first}.weight"] == 0
    classifier = next(
        key for key, value in model.named_parameters() if value is next(model.get_classifier().parameters())
    )
    assert layers[classifier] == max(layers.values()) >= 2


@every_kind
def test_optimizers_group_every_parameter_once(name):
    model = create(name)
    for groups in (param_groups_weight_decay(model, 0.05), param_groups_layer_decay(model, 0.05, layer_decay=0.7)):
        grouped = [id(parameter) for group in groups for parameter in group["params"]]
        trainable = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
        assert sorted(grouped) == sorted(trainable)
    scales = {group["lr_scale"] for group in param_groups_layer_decay(model, 0.05, layer_decay=0.7)}
    assert len(scales) >= 3  # stem, blocks and head differ


@every_kind
def test_intermediates_end_in_the_features(name):
    model = randomise(create(name)).eval()
    x = images(model)
    with torch.no_grad():
        features = model.forward_features(x)
        final, maps = model.forward_intermediates(x)
        torch.testing.assert_close(final, features)
        assert len(maps) == len(model.feature_info)
        for feature, info in zip(maps, model.feature_info, strict=True):
            assert feature.ndim == 4
            assert feature.shape[1] == info["num_chs"]
        last = model.forward_intermediates(x, indices=1, norm=not is_convolutional(model), intermediates_only=True)
        assert len(last) == 1
        early = model.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True)
        torch.testing.assert_close(early[0], maps[0])
        if not is_convolutional(model):
            tokens = model.forward_intermediates(x, indices=1, norm=True, output_fmt="NLC", intermediates_only=True)
            torch.testing.assert_close(last[0].flatten(2).mT, tokens[0])
            torch.testing.assert_close(tokens[0], features[:, model.num_prefix_tokens :])
            if model.num_prefix_tokens:  # timm gives no pairs where there is nothing to pair
                ((_, prefix),) = model.forward_intermediates(
                    x, indices=1, return_prefix_tokens=True, intermediates_only=True
                )
                assert prefix.shape == (2, model.num_prefix_tokens, model.num_features)


@every_small_model
def test_features_only_gives_maps_of_the_announced_width(name):
    model = create(name, features_only=True).eval()
    x = images(model, batch=1)
    with torch.no_grad():
        maps = model(x)
    assert len(maps) == len(model.feature_info.channels())
    for feature, channels, reduction in zip(
        maps, model.feature_info.channels(), model.feature_info.reduction(), strict=True
    ):
        assert feature.shape[:2] == (1, channels)
        assert feature.shape[-1] == x.shape[-1] // reduction


@every_kind
def test_pruned_intermediate_layers_give_the_same_maps(name):
    model = randomise(create(name)).eval()
    x = images(model)
    with torch.no_grad():
        expected = model.forward_intermediates(x, indices=[0], intermediates_only=True)
        taken = model.prune_intermediate_layers([0], prune_norm=False, prune_head=True)
        got = model.forward_intermediates(x, indices=taken, intermediates_only=True)
    torch.testing.assert_close(got[0], expected[0])


# Building


@every_kind
def test_a_model_is_built_where_and_in_the_precision_that_is_asked_for(name):
    model = create(name, device="meta", dtype=torch.bfloat16)
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    assert {(tensor.device.type, tensor.dtype) for tensor in tensors} == {("meta", torch.bfloat16)}
    model = create(name, device="cpu", dtype=torch.bfloat16).eval()
    with torch.no_grad():
        assert model(images(model).bfloat16()).dtype == torch.bfloat16


def test_the_diagnosis_vit_hands_device_and_precision_to_its_blocks():
    model = DiagViT(depth=1, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.float16)}


@every_kind
def test_a_model_built_without_memory_becomes_whole_with_its_checkpoint(name):
    """Buffers that no checkpoint holds are computed again, by the method that timm and transformers call."""
    whole = randomise(create(name)).eval()
    model = create(name, device="meta").eval()
    model.to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(torch.nan if tensor.is_floating_point() else 0)  # what memory may hold
    model.load_state_dict(whole.state_dict())
    compute_buffers(model)
    x = images(whole)
    with torch.no_grad():
        assert torch.equal(model(x), whole(x))


def test_a_sharing_agent_built_without_memory_becomes_whole():
    vit = create("boot_vit_test").eval()
    whole = create_agent(vit, share=True).eval()
    with torch.device("meta"):
        agent = create_agent(create("boot_vit_test"), share=True).eval()
    agent.to_empty(device="cpu")
    agent.load_state_dict(whole.state_dict())
    compute_buffers(agent)
    for mine, other in zip(agent.buffers(), whole.buffers(), strict=True):
        assert torch.equal(mine, other)


def compute_buffers(model):
    """What timm and transformers do to a model that was built without memory."""
    for module in model.modules():
        if hasattr(module, "init_non_persistent_buffers"):
            module.init_non_persistent_buffers()


# Memory layout and tracing


@every_kind
def test_channels_last_changes_nothing_but_the_layout(name):
    model = randomise(create(name)).eval()
    x = images(model)
    with torch.no_grad():
        expected = model(x)
        logits = model.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in (*TEST, *SWITCHED) if name != "lvvit_test mixed tokens"])
def test_a_traced_graph_gives_the_same_logits_and_features(name):
    """In training a random box is mixed with LV-ViT's tokens: that one model has no graph."""
    model = randomise(create(name)).eval()
    x = images(model)
    _, nodes = get_graph_node_names(model)
    block = next(node for node in reversed(nodes) if ".1." in node or node.startswith("layer2."))
    traced = create_feature_extractor(model, [block, nodes[-1]]).eval()
    with torch.no_grad():
        *_, logits = traced(x).values()
        assert torch.equal(logits, model(x))


@every_test_model
def test_a_traced_graph_trains_every_parameter(name):
    model = create(name, num_classes=42).train()
    traced = torch.fx.symbolic_trace(model).train()
    logits = traced(images(model))
    assert logits.shape == (2, 42)
    logits.square().mean().backward()
    assert [key for key, parameter in traced.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", ["t2t_vit_test", "lvvit_test", "dhvt_test plain"])
def test_images_of_another_size_are_refused_by_the_model_and_by_its_graph(name):
    model = create(name).eval()
    x = images(model, size=32)
    for refusing in (model, torch.fx.symbolic_trace(model)):
        with pytest.raises(ValueError, match="set_input_size"):
            refusing(x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t2t_vit_test", "t2t_vit_dense_test", "t2t_vit_test transformer"])
def test_t2t_compiles_in_training_mode_with_its_dropout(name):
    model = randomise(create(name, token_drop_rate=0.1)).train()
    x = images(model)
    expected = gradients(model, x)
    for key, gradient in compiled_gradients(model, x, "aot_eager").items():
        torch.testing.assert_close(gradient, expected[key.removeprefix("_orig_mod.")], rtol=1e-3, atol=1e-4)


def compiled_gradients(model, x, backend):
    torch._dynamo.reset()
    return gradients(torch.compile(model, fullgraph=True, dynamic=False, backend=backend), x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "aot_eager") for name in TEST), ("hybrid_vit_test", "inductor")]
)
def test_compiled_training_equals_eager(name, backend):
    """One whole graph, forward and backward; code is generated for one block only, since each takes its time."""
    model = randomise(create(name, **({"depth": 1} if backend == "inductor" else {}))).eval()
    x = images(model)
    expected = gradients(model, x)
    for key, gradient in compiled_gradients(model, x, backend).items():
        eager = expected[key.removeprefix("_orig_mod.")]
        torch.testing.assert_close(gradient, eager, rtol=1e-3, atol=1e-5 + 1e-4 * eager.abs().max().item())


# Other libraries


@every_test_model
def test_transformers_opens_the_folder_that_we_write(name, tmp_path):
    """It builds the architecture with `num_classes`, taken from the top of config.json, and `model_args` beside it."""
    arguments = {"img_size": (16, 32), "in_chans": 1}
    model = randomise(create(name, num_classes=3, **arguments)).eval()
    save_for_timm(model, tmp_path, model_args={**arguments, "num_classes": 3}, label_names=["a", "b", "c"])
    config = json.loads((tmp_path / "config.json").read_text())
    built = timm.create_model(config["architecture"], num_classes=config["num_classes"], **config["model_args"])
    assert built.num_classes == len(config["label_names"]) == 3
    assert {key: value.shape for key, value in built.state_dict().items()} == {
        key: value.shape for key, value in model.state_dict().items()
    }


@every_test_model
def test_a_folder_gives_the_same_logits_in_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    arguments = {"img_size": (16, 32), "in_chans": 1}
    model = randomise(create(name, num_classes=3, **arguments)).eval()
    save_for_timm(model, tmp_path, model_args=arguments, label_names=["a", "b", "c"])
    opened = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    x = images(model, size=(16, 32), in_chans=1)
    with torch.no_grad():
        torch.testing.assert_close(opened(x).logits, model(x), rtol=0, atol=0)
    assert opened.config.id2label == {0: "a", 1: "b", 2: "c"}
