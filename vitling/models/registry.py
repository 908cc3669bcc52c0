"""Our variants in timm's registry, and any registered model built for given images."""

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import timm
import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, resolve_pretrained_cfg
from torch import nn

from vitling.errors import UserError, did_you_mean, first_line
from vitling.models.weights import adapt_state
from vitling.plugins import load_installed
from vitling.validation.memory import total_memory
from vitling.validation.model_arguments import check_model_args
from vitling.validation.values import show


def filter_checkpoint(state: dict, model: nn.Module) -> dict:
    """What timm calls on a checkpoint before loading it: names, position embeddings and the first layer become the model's."""
    return adapt_state(state, model)[0]


def _entrypoint(model_class: Any, name: str, variant: dict):  # a class of ours, with `default_cfg`
    def create(pretrained: bool = False, device: Any = None, dtype: torch.dtype | None = None, **kwargs):
        # The number of classes and of channels may come from the config.json of a folder that is being loaded.
        cfg = resolve_pretrained_cfg(name, kwargs.get("pretrained_cfg"), kwargs.get("pretrained_cfg_overlay"))
        arguments = {**variant, "num_classes": cfg.num_classes, "in_chans": cfg.input_size[0], **kwargs}
        # timm adapts a first convolution of three channels and drops any other one; `filter_checkpoint` adapts them all,
        # so timm does not learn that there are not three.
        build = partial(model_class, in_chans=arguments["in_chans"])
        # A switch of the family can rename these two layers, or change the last map.
        default_cfg = model_class.default_cfg(**{**arguments, "img_size": variant.get("img_size", 224)})
        switched = {key: default_cfg[key] for key in ("first_conv", "classifier", "pool_size") if key in default_cfg}
        arguments["pretrained_cfg_overlay"] = {**switched, **(kwargs.get("pretrained_cfg_overlay") or {})}
        # Every family learns here where to be built, and in which precision: none has to hand it to each of its layers.
        with torch.device(device) if device is not None else nullcontext():
            model = build_model_with_cfg(
                build,
                name,
                pretrained,
                pretrained_filter_fn=filter_checkpoint,
                feature_cfg=dict(out_indices=min(3, arguments.get("depth", 3)), feature_cls="getter"),
                kwargs_filter=("in_chans",),
                **arguments,
            )
        return model.to(dtype=dtype)

    create.__name__ = create.__qualname__ = name
    create.__module__ = model_class.__module__
    create.__doc__ = f"{model_class.__name__}({', '.join(f'{k}={v!r}' for k, v in variant.items())})"
    return create


def register_variants(model_class: type[Any], variants: dict[str, dict]) -> None:
    """Enter each row of a family's table into timm's registry, as `timm.create_model(name)`."""
    module = sys.modules[model_class.__module__]
    default_cfgs = vars(module).setdefault("default_cfgs", {})
    for name, variant in variants.items():
        cfg = dict(
            input_size=(variant.get("in_chans", 3), *to_2tuple(variant.get("img_size", 224))),
            num_classes=variant.get("num_classes", 1000),
            interpolation="bicubic",
            crop_pct=1.0,
            mean=IMAGENET_DEFAULT_MEAN,
            std=IMAGENET_DEFAULT_STD,
            license="apache-2.0",
        ) | model_class.default_cfg(**variant)
        default_cfgs.update(generate_default_cfgs({name: cfg}))
        setattr(module, name, timm.models.register_model(_entrypoint(model_class, name, variant)))


def build_model(
    name: str, *, num_classes: int, in_chans: int, img_size: tuple[int, int], **model_args: Any
) -> nn.Module:
    """Any model of ours or timm's for these images, checked to take them."""
    check_name(name)
    check_model_args(model_args)
    try:
        _check_memory(name, img_size, num_classes=num_classes, in_chans=in_chans, **model_args)
        model = create_network(name, img_size, num_classes=num_classes, in_chans=in_chans, **model_args)
    except UserError:
        raise
    except (
        Exception
    ) as error:  # each family of timm refuses in its own way: some divide by zero, some assert in silence
        if not model_args:
            raise _cannot_take(name, in_chans, img_size, error) from None
        size = f"{in_chans} x {img_size[0]} x {img_size[1]}"
        raise UserError(
            f"model={name} cannot be built with {_shown(model_args)} for images of {size}: {_reason(error)}"
        ) from None
    check_input(model, name, in_chans, img_size)
    return model


def _check_memory(name: str, img_size: tuple[int, int], **arguments: Any) -> None:
    """Refuse a network that does not fit into memory, by building it without any first: the system would end us otherwise."""
    random = torch.get_rng_state()
    try:
        with torch.device("meta"):
            network = create_network(name, img_size, **arguments)
    except (NotImplementedError, RuntimeError):  # some of timm's compute while they are built
        return
    finally:
        torch.set_rng_state(random)
    needed = sum(tensor.numel() * tensor.element_size() for tensor in (*network.parameters(), *network.buffers()))
    if needed > (there_is := total_memory()):
        raise UserError(
            f"model={name} needs {needed / 2**30:,.0f} GB for its weights alone, and this machine has {there_is / 2**30:,.0f} GB; "
            "choose smaller sizes."
        )


def create_network(name: str, img_size: tuple[int, int], **arguments: Any) -> nn.Module:
    """timm's network of that name; one that takes images of any size is not told theirs."""
    try:
        return timm.create_model(name, img_size=img_size, **arguments)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        return timm.create_model(name, **arguments)  # convolutional networks take any size


def check_input(model: nn.Module, name: str, in_chans: int, img_size: tuple[int, int]) -> None:
    """Refuse images of a size that a model cannot take."""
    patch = _separate_patch(model)
    if patch and any(side % p for side, p in zip(img_size, patch, strict=True)):
        p = patch[0]
        below = max(p, img_size[0] // p * p)
        raise UserError(
            f"img_size={img_size[0]}x{img_size[1]} does not divide by the patch of {p} of model={name}; "
            f"try img_size={below} or {below + p}, or another model_args.patch_size."
        )
    training = model.training
    try:
        with torch.inference_mode():
            device = next((parameter.device for parameter in model.parameters()), None)
            model.eval()(torch.zeros(1, in_chans, *img_size, device=device))
    except UserError:
        raise
    except Exception as error:  # as above
        raise _cannot_take(name, in_chans, img_size, error) from None
    finally:
        model.train(training)


def _separate_patch(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of patches that lie side by side; None where they overlap, as in PVT-v2, and any size is cut into them."""
    embedding = getattr(model, "patch_embed", None)
    patch = getattr(embedding, "patch_size", None)
    stride = getattr(getattr(embedding, "proj", None), "stride", patch)
    return to_2tuple(patch) if patch and to_2tuple(stride) == to_2tuple(patch) else None


def _cannot_take(name: str, in_chans: int, img_size: tuple[int, int], error: Exception) -> UserError:
    made_for = default_size(name)
    advice = "Try another model."
    if made_for != tuple(img_size):
        advice = f"It was made for {made_for[0]} x {made_for[1]}; try img_size={max(made_for)} or another model."
    size = f"{in_chans} x {img_size[0]} x {img_size[1]}"
    return UserError(f"model={name} cannot take images of {size}: {_reason(error)} {advice}")


def _reason(error: Exception) -> str:
    if isinstance(error, ArithmeticError):
        return f"nothing is left of them on the way through it ({first_line(error).rstrip('.')})."
    return first_line(error) if str(error).strip() else "it refuses them without a reason."


def default_size(name: str) -> tuple[int, int]:
    """Height and width that a model was made for."""
    check_name(name)
    return tuple(timm.get_pretrained_cfg(name, allow_unregistered=False).input_size[1:])


def registered_models() -> dict[str, Any]:
    """Every name that timm builds a model of, with what builds it."""
    return {name: timm.model_entrypoint(name) for name in timm.list_models()}


def check_name(name: str) -> None:
    """Refuse a name that timm does not know."""
    load_installed()
    if not timm.is_model(name):
        raise UserError(f"unknown model '{name}'. {did_you_mean(name, timm.list_models())}")


def _shown(arguments: dict) -> str:
    return ", ".join(f"model_args.{key}={show(value)}" for key, value in arguments.items())
