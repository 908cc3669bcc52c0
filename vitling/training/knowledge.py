"""Knowledge: what a recipe begins from or learns from that may have seen the images that are to judge it."""

from vitling.data.sources.dataset import Dataset
from vitling.recipes import Recipe
from vitling.runs.opening import run_behind


def find_knowledge(recipe: Recipe, dataset: Dataset) -> str:
    """Which setting brings knowledge of this data's labels, and why, as the beginning of a sentence; empty where none does."""
    args = recipe.method_args
    if args.get("labels", "truth") != "truth":
        return f"method_args.labels={args['labels']} are label maps, whose annotator may have seen the images that are to be held out"
    for key, source in (
        ("init", recipe.init),
        ("method_args.teacher", args.get("teacher")),
        ("method_args.annotator", args.get("annotator")),
    ):
        if source and source != "auto" and has_learnt_from(str(source), dataset):
            return f"{key}={source} has learnt from the same images, those that are to be held out among them"
    return ""


def has_learnt_from(source: str, dataset: Dataset) -> bool:
    """Whether these are weights of a run that was trained on these very images, whatever they were grouped by."""
    run = run_behind(source)
    if run is None:
        return False
    known = run.image_fingerprint or run.data_fingerprint  # earlier versions recorded the one with groups alone
    return known in (dataset.image_fingerprint, dataset.fingerprint)
