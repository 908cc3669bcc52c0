"""Joining: finished folds become an ensemble, with the number that their held-out images give."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.evaluation.evaluation import keep_evaluation
from vitling.evaluation.metrics import measure
from vitling.evaluation.predictions import predict_out_of_fold
from vitling.models import build_model
from vitling.models.ensemble import NAME
from vitling.recipes import Recipe
from vitling.runs.run import Run
from vitling.runs.surroundings import environment

KEPT = ("name", "fingerprint", "image_fingerprint", "skipped", "splits")  # of the data of each member


def join(run: Run, members: Sequence[Run], *, wall_seconds: float, reading: Reading, callback: Callback) -> None:
    """Write the ensemble into `run`: its recipe, its weights, and what its members reached on the images that each held out."""
    first, seen = members[0], members[0].preprocessing()
    recipe = ensemble_recipe(first.recipe, len(members))
    model = build_model(
        recipe.model,
        num_classes=len(first.class_names),
        in_chans=seen.channels,
        img_size=seen.size,
        **recipe.model_args,
    )
    for network, member in zip(model.members, members, strict=True):
        network.load_state_dict(member.load_model("best").state_dict())
    infos = [member.info for member in members]
    data = infos[0]["data"]
    run.save_recipe(recipe)
    held = sum(info["data"]["val_images"] for info in infos)
    counts = {"train_images": held, "val_images": held}  # each image is both, in turn
    run.update(
        class_names=first.class_names,
        **({} if first.kind == "classes" else {"labels": first.kind}),
        **{name: infos[0][name] for name in ("first_stage", "seen_tests") if name in infos[0]},
        preprocessing=seen,
        data={**{name: data[name] for name in KEPT if name in data}, **counts},
        parameters=sum(p.numel() for p in model.parameters()),
        environment=environment(),
        precision=infos[0]["precision"],
        processes=infos[0]["processes"],
        sharded=False,
        members=len(members),
    )
    args: dict[str, Any] = {**recipe.model_args, "in_chans": seen.channels, "img_size": list(seen.size)}
    run.save_model("best", model, first.class_names, args)
    judged = run.validation = predict_out_of_fold(run, members, reading=reading, callback=callback)
    held_out = measure(
        judged.logits,
        judged.labels,
        first.class_names,
        data=data["name"],
        split="val",
        groups=judged.groups,
        grades=first.kind == "grades",
    )
    keep_evaluation(run, held_out)
    if judged.groups is not None:
        counts |= dict.fromkeys(("train_groups", "val_groups"), len(set(judged.groups.tolist())))
        run.update(data={**run.info["data"], **counts})
    run.update(
        status="finished",
        stopped=f"{len(members)} folds are trained and joined",
        wall_seconds=round(wall_seconds, 3),
        best={"val_top1": held_out.top1, "val_loss": held_out.loss, "epoch": max(i["best"]["epoch"] for i in infos)},
        epochs_trained=round(mean(i["epochs_trained"] for i in infos), 3),
        steps_trained=sum(i["steps_trained"] for i in infos),
    )


def ensemble_recipe(recipe: Recipe, members: int) -> Recipe:
    """What an ensemble of networks of a recipe is called by, so that it is built again."""
    args = {"architecture": recipe.model, "members": members, "architecture_args": recipe.model_args}
    return replace(recipe, model=NAME, model_args=args)
