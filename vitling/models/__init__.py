"""The list of families; importing this registers every variant with timm.

A family is one module. It ends with `TABLES`, pairs of a model class and the table of its variants (name -> constructor
arguments). The class says in `default_cfg(**arguments)` what timm's `pretrained_cfg` should hold for one of them.
"""

import sys

import timm.models
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs

from vitling.models import dhvt

FAMILIES = (dhvt,)


def filter_checkpoint(state: dict, model) -> dict:
    """What timm calls on a checkpoint before loading it: position embeddings take the size of the model."""
    from vitling.weights import adapt_state

    return adapt_state(state, model)[0]


def _entrypoint(model_class: type, name: str, variant: dict):
    def create(pretrained: bool = False, **kwargs):
        # Names that timm passes to every model; a family that lacks one of them says so itself.
        return build_model_with_cfg(
            model_class,
            name,
            pretrained,
            pretrained_filter_fn=filter_checkpoint,
            feature_cfg=dict(out_indices=3, feature_cls="getter"),
            **{**variant, **kwargs},
        )

    create.__name__ = create.__qualname__ = name
    create.__module__ = model_class.__module__
    create.__doc__ = f"{model_class.__name__}({', '.join(f'{k}={v!r}' for k, v in variant.items())})"
    return create


def register_variants(model_class: type, variants: dict[str, dict]) -> None:
    """Enter each row of a family's table into timm's registry, as `timm.create_model(name)`."""
    module = sys.modules[model_class.__module__]
    if not hasattr(module, "default_cfgs"):
        module.default_cfgs = {}
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
        module.default_cfgs.update(generate_default_cfgs({name: cfg}))
        timm.models.register_model(_entrypoint(model_class, name, variant))


def our_models() -> dict[str, str]:
    """Name of every variant we add to timm -> the family (module) it belongs to."""
    return {
        name: family.__name__.rpartition(".")[2]
        for family in FAMILIES
        for _, variants in family.TABLES
        for name in variants
    }


for _family in FAMILIES:
    for _model_class, _variants in _family.TABLES:
        register_variants(_model_class, _variants)
