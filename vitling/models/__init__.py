"""The list of families; importing this registers every variant with timm.

A family is one module. It ends with `TABLES`, pairs of a model class and the table of its variants (name -> constructor
arguments). The class says in `default_cfg(**arguments)` what timm's `pretrained_cfg` should hold for one of them.
"""

from vitling.models import agent, dhvt, diag, ensemble, hybrid, lvvit, resnet9, t2t, vit
from vitling.models.registry import (
    build_model,
    check_input,
    check_name,
    default_size,
    register_variants,
    registered_models,
)

__all__ = [
    "FAMILIES",
    "build_model",
    "check_input",
    "check_name",
    "default_size",
    "our_models",
    "register_variants",
    "registered_models",
]

FAMILIES = (hybrid, dhvt, lvvit, t2t, vit, agent, diag, resnet9)


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
register_variants(ensemble.Ensemble, ensemble.VARIANTS)  # of networks of any family, and none itself
