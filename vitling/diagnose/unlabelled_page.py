"""The page of a run that learns without labels: how its loss fell, what it sees, and how a training begins from it."""

from pathlib import Path

import numpy as np
from PIL import Image

from vitling.diagnose.run_parts import PAGE, quoted, speed_section
from vitling.recipes import to_yaml
from vitling.reports import plots
from vitling.reports.page import (
    Chart,
    Code,
    Facts,
    Page,
    Picture,
    Section,
    Strip,
    Tab,
    Table,
    Text,
    percent,
    write_page,
)
from vitling.runs.run import Run

PICTURES = {
    "reconstructions": (
        "Reconstructions",
        "Held-out images, what was hidden of them, and what the network paints there. Only hidden parts are painted.",
    ),
    "neighbours": (
        "Neighbours",
        "Held-out images, each with the training images whose features are nearest to its own, the nearest first.",
    ),
}


def write_unlabelled_page(run: Run) -> Path:
    """Write RUN/report.html."""
    written = write_page(build_unlabelled_page(run), run.path / PAGE)
    run.publish()
    return written


def build_unlabelled_page(run: Run) -> Page:
    info, recipe = run.info, run.recipe
    use = "The weights are where a training with labels begins; its classifier is new. Model and image size follow from this run."
    return Page(
        title=f"{recipe.model} on {info['data']['name']}, without labels",
        subtitle=f"Pre-training run {run.path.name}",
        sections=[Section("Summary", [Facts(summary_facts(run))])],
        tabs=[
            Tab("Training", [Section("Learning curves", charts(run), "Did it learn?"), speed_section(run)]),
            Tab("Images", picture_sections(run)),
            Tab(
                "How to use it",
                [
                    Section("A classifier from it", [Text(use), Code(f"vitling train DATA init={quoted(run)}")]),
                    Section("Recipe", [Code(to_yaml(recipe))]),
                ],
            ),
        ],
        about=run.weights_digest("best"),
    )


def summary_facts(run: Run) -> dict[str, str]:
    info, recipe, data = run.info, run.recipe, run.info["data"]
    last = run.metrics()[-1]
    facts = {"loss on held-out images": f"{last['val_loss']:.3f}, with the same draws in every validation"}
    if "val_neighbours_top1" in last:
        facts["nearest neighbours"] = f"{percent(last['val_neighbours_top1'])} correct, though no label was learnt from"
    return {
        **facts,
        "weights": f"of the last epoch, number {last['epoch']}: without labels nothing says that an earlier one is better",
        "model": f"{recipe.model}, {info['parameters'] / 1e6:.2f} M parameters, no classifier, method {recipe.method}",
        "data": f"{data['name']}: {data['train_images']:,} images, and {data['val_images']:,} held out",
        "test images": test_images(run),
        "stopped": f"{info['stopped']}, after {info['wall_seconds']:.0f} s",
    }


def test_images(run: Run) -> str:
    """Whether a test split was among the images."""
    if run.uses_test_images:
        return "the test split was among the images (unlabelled_test=true): a test number afterwards is of images that it has seen"
    return "no test split of these images was among them"


def picture_sections(run: Run) -> list[Section]:
    sections = []
    for name, (title, lead) in PICTURES.items():
        path = run.path / f"{name}.png"
        if path.exists():
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            strip = Strip(
                [[Picture(pixels, title.lower(), width=pixels.shape[1])]], f"Also in the run's folder, {name}.png."
            )
            sections.append(Section(title, [strip], lead))
    return sections or [Section("Images", [Text("Images of a stream are not shown.")])]


def charts(run: Run) -> list:
    records = [record for record, _ in run.validations()]
    measured = [record for record in records if "val_neighbours_top1" in record]
    if len(records) == 1:  # a dot is no curve
        only = records[0]
        row = (only["epoch"], f"{only.get('train_loss', float('nan')):.3f}", f"{only['val_loss']:.3f}")
        return [Table(("epoch", "training loss", "held-out loss"), [row], "The only validation.")]
    epochs = [record["epoch"] for record in records]
    loss = {"training": [r["train_loss"] for r in records], "held out": [r["val_loss"] for r in records]}
    found = [Chart(plots.lines(epochs, loss, x="epoch", y="loss"), "The method's own loss.")]
    if len(measured) > 1:
        accuracy = {"nearest neighbours": [r["val_neighbours_top1"] for r in measured]}
        drawn = plots.lines([r["epoch"] for r in measured], accuracy, x="epoch", y="accuracy", unit=True)
        found.append(Chart(drawn, "How often the nearest training images say what a held-out image is."))
    if len(gradients := run.gradients()) > 1:
        found.append(
            Chart(plots.gradient_norms(gradients), "Gradient norm per layer, at the last step before each validation.")
        )
    return found
