"""Arguments of a network: which of them a recipe, a caller or a file may give, and the range of the usual ones.

Some of timm's arguments read files or download, and some are set by vitling itself: both are refused by name, before timm sees them.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from vitling.errors import UserError
from vitling.validation.values import Range, Share, Side, check, check_plain

# The data decides these; a recipe has a key of its own for them.
SET_BY_VITLING = {
    "num_classes": "the number of classes is that of the data",
    "img_size": "set img_size instead",
    "in_chans": "set channels instead",
    "features_only": "a classifier is trained",
}
# timm's `create_model` and `build_model_with_cfg` would open, fetch or call what these name.
NEVER = (
    "model_name",
    "variant",
    "model_cls",
    "model_cfg",
    "feature_cfg",
    "checkpoint_path",
    "cache_dir",
    "kwargs_filter",
    "scriptable",
    "exportable",
    "no_jit",
    "device",
    "dtype",
)

Width = Annotated[int, Range(1, 65_536)]
Depth = Annotated[int, Range(0, 1000)]
Heads = Annotated[int, Range(1, 4096)]
Factor = Annotated[float, Range(above=0, high=1000)]
SIZES: dict[str, Any] = {
    "embed_dim": Width,
    "token_dim": Width,
    **dict.fromkeys(("depth", "depths", "layers", "num_layers"), Depth),
    "num_heads": Heads,
    "patch_size": Side,
    "mlp_ratio": Factor,
    "init_values": Annotated[float, Range(0, 1000)],
    **{f"{kind}_rate": Share for kind in ("drop", "drop_path", "attn_drop", "proj_drop", "pos_drop", "patch_drop")},
}
LARGEST = Range(-65_536, 65_536)  # any other number


def check_model_args(given: Mapping[str, Any], key: str = "model_args", *, own: bool = True) -> None:
    """Refuse arguments that no network may be given; `own=False` lets pass what vitling itself writes into a config.json."""
    for name, value in given.items():
        where = f"{key}.{name}"
        check_plain(value, where)
        if name in NEVER or name.startswith("pretrained"):
            raise UserError(f"{where} is not allowed: a network is built from sizes alone; weights come from init.")
        if own and name in SET_BY_VITLING:
            raise UserError(f"{where} is not allowed: {SET_BY_VITLING[name]}.")
        for item in value if isinstance(value, list | tuple) else [value]:  # one number, or one per stage or axis
            if name in SIZES and item is not None:
                check(item, SIZES[name], where)
            elif isinstance(item, int | float) and item not in LARGEST:
                raise UserError(f"{where}={item:g} is out of range; it must be {LARGEST}.")
