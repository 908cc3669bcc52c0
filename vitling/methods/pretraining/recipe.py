"""The recipe of a pre-training, from that of a training: the same network and image size, so that its weights fit."""

from typing import Any

from vitling.recipes import NO_FIRST_STAGE, Recipe, override, to_dict

METHOD = "masked_images"
# What goes by labels or by accuracy, or is meant for another loss.
NEUTRAL: dict[str, Any] = {
    "init": "",
    "freeze": (),
    **NO_FIRST_STAGE,
    "balance": "none",
    "ema_decay": 0.0,
    "soup_epochs": 0,
    "patience_epochs": 0,
    "keep": "last",
    "test_mirror": False,
    "test_crops": False,
    "test_shifts": False,
    "compile": "off",
    "accumulate": 1,
    "validate_every": 1,
}
PLAIN = {"randaugment": "", "erase": 0.0, "cutout": 0.0, "repeats": 1, "crop_when": "first", "crop_at": "img_size"}
WARMUP_SHARE = 0.1  # of the epochs


def pretraining_recipe(recipe: Recipe, method: str, *, channels: int) -> Recipe:
    """What is pre-trained for a recipe with labels: its model, image size, batch and epochs; the rest is the method's own."""
    from vitling.methods import find_unlabelled  # the list of methods holds those of this package

    found = find_unlabelled("method", method)
    tree = to_dict(recipe)
    own: dict[str, Any] = getattr(found, "defaults", {})
    jitter = own.get("color_jitter", 0.0) if channels == 3 else 0.0
    augment = {**tree["augment"], **PLAIN, **own.get("augment", {}), "color_jitter": jitter}
    optim = {**to_dict(Recipe())["optim"], **own.get("optim", {}), "warmup_epochs": WARMUP_SHARE * recipe.epochs}
    # A network that exchanges tokens while it is trained does so for its labels; it has no weights for that.
    model_args = {key: value for key, value in recipe.model_args.items() if key != "mix_token"}
    changes = {
        **NEUTRAL,
        "method": method,
        "method_args": {},
        "model_args": model_args,
        "augment": augment,
        "optim": optim,
    }
    return override(recipe, changes)
