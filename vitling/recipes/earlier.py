"""Recipes that earlier versions wrote: what a record without the newer keys means."""

from collections.abc import Iterator
from typing import Any

from vitling.recipes.schema import NO_FIRST_STAGE

# What earlier versions did, before these keys could say otherwise.
EARLIER = {
    "test_crop": None,
    "test_split": "test",
    "interpolation": "bicubic",
    "test_mirror": False,
    "keep": "best",
    "shuffle_buffer": None,
    "augment.crop_at": "img_size",
    "augment.crop_when": "first",
    "augment.interpolation": "random",
    "augment.crop_padding_mode": "zeros",
    "augment.cutout": 0.0,
}
# The same, of keys that were added last.
ADDED_LAST = {
    "labels": "auto",
    "group": "",
    "test_crops": False,
    "test_shifts": False,
    "soup_epochs": 0,
    **NO_FIRST_STAGE,
}
RECORDED = {
    "train_size",
    "img_size",
    "fit",
    "augment",
    "epochs",
    "seed",
}  # by which a whole record is told from a few keys


def complete(tree: dict[str, Any]) -> dict[str, Any]:
    """A whole record with the newer keys that its version did not know."""
    if not _is_record(tree):
        return tree
    own = {key: value for key, value in {**EARLIER, **ADDED_LAST}.items() if "." not in key}
    augment = {key.removeprefix("augment."): value for key, value in EARLIER.items() if "." in key}
    return {**own, **tree, "augment": {**augment, **tree["augment"]}}


def bring_up_to_date(tree: dict[str, Any]) -> dict[str, Any]:
    """The same, meaning what it meant: without a train_size, crops were cut from images of the model's size."""
    if _crops_fitted_images(tree) and tree["train_size"] is None and tree["augment"].get("crop") == "resized":
        tree = {**tree, "train_size": tree["img_size"]}
    return complete(tree)


def earlier_forms(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How an earlier version may have written this recipe; nothing where it could not have."""
    if tree["unlabelled_time"] == ADDED_LAST["unlabelled_time"]:  # the very last one
        yield {key: value for key, value in tree.items() if key != "unlabelled_time"}
    if any(tree[key] != value for key, value in ADDED_LAST.items()):
        return
    tree = {key: value for key, value in tree.items() if key not in ADDED_LAST}
    yield tree
    augment = tree["augment"]
    flat = {**tree, **{f"augment.{key}": value for key, value in augment.items()}}
    if any(flat[key] != value for key, value in EARLIER.items()):
        return
    kept = {key: value for key, value in tree.items() if key not in EARLIER}
    kept["augment"] = {key: value for key, value in augment.items() if f"augment.{key}" not in EARLIER}
    resized = augment["crop"] == "resized"
    if not resized or tree["train_size"] is not None:
        yield kept
    if resized and tree["train_size"] == tree["img_size"]:
        yield {**kept, "train_size": None}


def _is_record(tree: dict[str, Any]) -> bool:
    return tree.keys() >= RECORDED and isinstance(tree["augment"], dict)


def _crops_fitted_images(tree: dict[str, Any]) -> bool:
    """Whether a version wrote it that knew no other crops: it knew no interpolation either."""
    return _is_record(tree) and "interpolation" not in tree
