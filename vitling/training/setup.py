"""From a recipe and its data to what the loop needs: the model with its starting weights, the augmentation, class weights."""

from fnmatch import fnmatch
from pathlib import Path

from torch import Tensor, nn

from vitling.data.augment.augment import Augment
from vitling.data.pipeline.training_data import TrainingData
from vitling.errors import UserError
from vitling.models import build_model
from vitling.optim import check_patterns
from vitling.recipes import Recipe, to_dict


def create_model(recipe: Recipe, data: TrainingData, with_init: bool = True) -> tuple[nn.Module, str]:
    """The recipe's model for these images, and a line about the weights it starts from where `init` names some."""
    model = build_model(
        recipe.model,
        num_classes=len(data.class_names),
        in_chans=data.preprocessing.channels,
        img_size=data.preprocessing.size,
        **recipe.model_args,
    )
    model.pretrained_cfg = {**model.pretrained_cfg, **saved_config(data)}
    what_was_loaded = load_init(model, recipe.init) if recipe.init and with_init else ""
    freeze(model, recipe.freeze)
    check_patterns(model, recipe.optim.lr_factors, "optim.lr_factors")
    return model, what_was_loaded


def create_augment(recipe: Recipe, data: TrainingData) -> Augment:
    spec = {name: value for name, value in to_dict(recipe)["augment"].items() if name != "repeats"}
    side = min(data.preprocessing.size)
    spec["crop_padding"] = round(spec["crop_padding"] * side)
    spec["randaugment"] = spec["randaugment"] or None
    return Augment(data.preprocessing.size, mean=data.preprocessing.mean, std=data.preprocessing.std, **spec)


def saved_config(data: TrainingData) -> dict:
    """What timm's config of the saved model says about its input, in place of the published weights' values."""
    seen = data.preprocessing
    return {
        "input_size": (seen.channels, *seen.size),
        "mean": seen.mean,
        "std": seen.std,
        "crop_pct": 1.0,
        "crop_mode": {"resize": "squash", "pad": "border", "crop": "center"}[seen.fit],
        "num_classes": len(data.class_names),
    }


def class_weights(labels: Tensor, num_classes: int) -> Tensor:
    """Loss weights inverse to class frequency, with mean 1 over the training images."""
    counts = labels.bincount(minlength=num_classes).clamp(min=1)
    return len(labels) / (num_classes * counts.float())


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Leave the named parameters as they are; "backbone" names all but the classifier."""
    check_patterns(model, [pattern for pattern in patterns if pattern != "backbone"], "freeze")
    head = {id(p) for p in model.get_classifier().parameters()} if "backbone" in patterns else set()
    for name, parameter in model.named_parameters():
        if any(fnmatch(name, pattern) for pattern in patterns) or (
            "backbone" in patterns and id(parameter) not in head
        ):
            parameter.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"freeze={','.join(patterns)} leaves nothing to train; freeze less.")


def load_init(model: nn.Module, source: str) -> str:
    """Start from the weights of a run, a file or a hub name; what was done, in one line."""
    from vitling.models.weights import load_weights

    if Path(source).exists():
        return f"init={source}: {load_weights(model, source)}"
    if "/" in source or source.startswith("hf-hub:"):
        from timm.models import load_state_dict_from_hf

        try:
            state = load_state_dict_from_hf(source.removeprefix("hf-hub:"))
        except Exception as error:  # the hub client raises many kinds: no network, no such name, no access
            raise UserError(
                f"init={source} is no file here and could not be had from the hub: {str(error).splitlines()[0]}"
            ) from None
        return f"init={source}: {load_weights(model, state)}"
    raise UserError(
        f"init={source} is neither a run, nor a weights file, nor a hub name such as timm/vit_tiny_patch16_224.augreg_in21k."
    )
