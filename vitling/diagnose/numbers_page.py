"""The page of a run that predicts numbers: how far off it is, predicted against true, its worst errors, and how to use it."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from vitling.callbacks import Callback
from vitling.data.bins import COVERAGE, Values
from vitling.data.pipeline.reading import Reading
from vitling.diagnose.overlay import attention_map, draw_overlay
from vitling.diagnose.run_parts import (
    SHOWN,
    TILE,
    beginning_facts,
    data_notes,
    improvement_sections,
    quoted,
    repeat_section,
    run_links,
    speed_section,
)
from vitling.errors import UserError
from vitling.evaluation.numbers import NumbersEvaluation, measure_numbers
from vitling.evaluation.predictions import Predictions, predict_validation
from vitling.evaluation.temperature import calibrate
from vitling.reports import plots
from vitling.reports.page import (
    Chart,
    Code,
    Facts,
    Link,
    Page,
    Picture,
    Section,
    Strip,
    Tab,
    Table,
    Text,
    as_picture,
    counted,
    percent,
)
from vitling.runs.run import Run


def build_numbers_page(
    run: Run,
    *,
    predictions: Predictions | None = None,
    test: Predictions | None = None,
    kept: Mapping[str, Section] | None = None,
    links: Sequence[Link] = (),
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> Page:
    """As `run_page.build_run_page`, of a run that predicts numbers."""
    kept = dict(kept or {})
    if "Validation" not in kept:
        model = run.load_model("best")
        predictions = predictions or predict_validation(run, model, reading=reading, callback=callback)
        kept |= {section.title: section for section in _validation_sections(run, model, predictions)}
    if test is not None:
        kept |= {section.title: section for section in _image_sections(run, test, "test")}
    known = run.path / "evaluation-test.json"
    evaluation = NumbersEvaluation.read(known) if known.exists() else None
    if evaluation is not None:
        kept["Predicted and true"] = _scatter_section(evaluation)
    return Page(
        title=f"{run.recipe.model} on {run.info['data']['name']}",
        subtitle=f"Training run {run.path.name}",
        sections=[Section("Summary", [Facts(_summary_facts(run, evaluation)), *data_notes(run)])],
        tabs=[
            Tab("Training", [_course_section(run), *improvement_sections(run), speed_section(run)]),
            Tab("Test", [_test_section(run, evaluation), *_other_evaluations(run), kept["Validation"]]),
            Tab("Numbers", [kept["Predicted and true"]]),
            Tab("Images", [kept["Worst errors"], kept["Typical errors"]]),
            Tab("Inside", [kept["Attention"]]),
            Tab("How to use it", _use_sections(run)),
        ],
        links=[*run_links(run), *links],
        about=run.weights_digest("best"),
    )


def _validation_sections(run: Run, model: nn.Module, predictions: Predictions) -> list[Section]:
    """What is shown of the validation images, until others are looked at."""
    temperature = calibrate(run, "best", predictions=predictions).temperature
    values = Values.of(predictions.logits.double().numpy(), run.target.numbers, temperature)
    result = measure_numbers(
        values,
        predictions.targets,
        run.target.numbers,
        data=run.info["data"]["name"],
        split="val",
        groups=predictions.groups,
    )
    lead = "The images that chose the best epoch: expect a little less on new ones."
    calibrated = f"{temperature:.2f}, fitted on these images: the distribution is divided by it before its {100 * COVERAGE:.0f} % interval is taken"
    return [
        Section("Validation", [Facts({**result.facts(), "temperature": calibrated})], lead),
        _scatter_section(result),
        *_image_sections(run, predictions, "validation", values),
        Section("Attention", _attention_parts(model, predictions), "Where does it look?"),
    ]


def _scatter_section(result: NumbersEvaluation) -> Section:
    chart = plots.scatter(result.truth, result.predicted, x="true number", y="predicted")
    split = {"val": "validation"}.get(result.split, result.split)
    rows = []
    truth, error = np.asarray(result.truth), np.asarray(result.predicted) - np.asarray(result.truth)
    for part in np.array_split(np.argsort(truth, kind="stable"), min(5, len(truth))):
        rows.append(
            (
                f"{truth[part].min():.4g} to {truth[part].max():.4g}",
                f"{len(part):,}",
                f"{np.abs(error[part]).mean():.4g}",
                f"{error[part].mean():+.4g}",
            )
        )
    head = ("true number", "images", "mean absolute error", "mean error")
    return Section(
        "Predicted and true",
        [
            Chart(chart, "A dot per image: on the line it is exact, above it too high."),
            Table(head, rows, "From low to high numbers: where is it off, and to which side?"),
        ],
        f"How far off is it? Of {result.images:,} {split} images.",
    )


def _image_sections(run: Run, seen: Predictions, split: str, values: Values | None = None) -> list[Section]:
    """The worst errors and, as a contrast, some from the middle."""
    if values is None:
        temperature = calibrate(run, "best").temperature
        values = Values.of(seen.logits.double().numpy(), run.target.numbers, temperature)
    truth = seen.targets.double().numpy()
    order = np.argsort(-np.abs(values.number - truth), kind="stable")
    middle = order[len(order) // 2 :][:SHOWN]
    lead = f"What does it get wrong? Of {len(truth):,} {split} images."
    caption = "The largest errors first: look here for wrong numbers, odd images and missing views."
    return [
        Section("Worst errors", [Strip([_pictures(seen, order[:SHOWN], values, truth)], caption)], lead),
        Section("Typical errors", [Strip([_pictures(seen, middle, values, truth)], "From the median on.")]),
    ]


def _pictures(seen: Predictions, index: np.ndarray, values: Values, truth: np.ndarray) -> list[Picture]:
    chosen = torch.as_tensor(index)
    pixels = next(iter(seen.source.batches([chosen])))["image"] if len(index) else []
    return [
        as_picture(image, f"{truth[i]:.4g}, predicted {values.number[i]:.4g}")
        for i, image in zip(index.tolist(), pixels, strict=True)
    ]


def _attention_parts(model: nn.Module, seen: Predictions) -> list:
    """Pictures from low to high numbers, each beside where the model looks; a model that cannot show it says why."""
    truth = seen.targets
    order = truth.argsort()
    index = order[torch.linspace(0, len(order) - 1, min(SHOWN // 2, len(order))).long()]
    pixels = next(iter(seen.source.batches([index])))["image"]
    device = next(model.parameters()).device
    try:
        masks = attention_map(model, seen.preprocessing.normalize(pixels.to(device)))
    except UserError as error:
        return [Text(str(error)[:1].upper() + str(error)[1:])]
    pictures = [
        Picture(np.asarray(draw_overlay(image, mask)), f"{truth[i]:.4g}", width=2 * TILE)
        for i, image, mask in zip(index.tolist(), pixels, masks, strict=True)
    ]
    caption = "Bright is what the prediction draws on: attention of all layers, rolled out down to the patches. From low to high numbers."
    return [Strip([pictures], caption)]


def _course_section(run: Run) -> Section:
    lead = "Did it learn, and did it stop learning?"
    records = [record for record, _ in run.validations()]
    if len(records) == 1:  # a dot is no curve
        only = records[0]
        losses = (f"{only.get('train_loss', float('nan')):.3f}", f"{only['val_loss']:.3f}")
        columns = ("epoch", "training loss", "validation loss", "mean absolute error")
        return Section(
            "Learning curves",
            [Table(columns, [(only["epoch"], *losses, f"{only['val_mae']:.4g}")], "The only validation.")],
            lead,
        )
    epochs = [record["epoch"] for record in records]
    loss = {"training": [r["train_loss"] for r in records], "validation": [r["val_loss"] for r in records]}
    mae = {"validation": [r["val_mae"] for r in records]}
    baseline = {"always the training median": _baseline(records[-1])}
    charts = [
        Chart(plots.lines(epochs, loss, x="epoch", y="loss"), "Loss. Training includes augmentation and mixing."),
        Chart(
            plots.lines(epochs, mae, x="epoch", y="mean absolute error", dashed=baseline),
            "Mean absolute error on validation, in the unit of the numbers.",
        ),
    ]
    if len(gradients := run.gradients()) > 1:
        caption = (
            "Gradient norm per layer, at the last step before each validation. Fading or exploding layers stand out."
        )
        charts.append(Chart(plots.gradient_norms(gradients), caption))
    return Section("Learning curves", charts, lead)


def _baseline(record: Mapping) -> float:
    """The error of always saying the training median, out of a validation's error and skill."""
    skill = record["val_skill"]
    return record["val_mae"] / (1 - skill) if skill < 1 else 0.0


def _test_section(run: Run, evaluation: NumbersEvaluation | None) -> Section:
    lead = "Images that neither trained it nor chose anything: the number to report."
    if evaluation is None:
        text = "Not looked at yet: a test split is worth most when it is looked at once, when everything is decided."
        return Section("Test images", [Text(text), Code(f"vitling evaluate {quoted(run)}")], lead)
    looks = run.info.get("test_looks", 1)
    looked = "once" if looks == 1 else f"{looks} times; each look makes the number a little less trustworthy"
    return Section("Test images", [Facts({**evaluation.facts(), "looked at": looked})], lead)


def _other_evaluations(run: Run) -> list[Section]:
    """What `evaluate` measured on other data, other weights or other sizes."""
    rows = []
    for path in sorted(run.path.glob("evaluation-*.json")):
        if path.name == "evaluation-test.json":
            continue
        one = NumbersEvaluation.read(path)
        size = "{} x {}".format(*one.img_size) if one.img_size else "as trained"
        size += ", more views" if one.tta else ""
        rows.append(
            (one.data, one.split, one.weights, size, f"{one.images:,}", f"{one.mae:.4g}", f"{one.baseline_mae:.4g}")
        )
    head = ("data", "split", "weights", "size", "images", "mean absolute error", "of the training median")
    return [Section("Other evaluations", [Table(head, rows)])] if rows else []


def _summary_facts(run: Run, test: NumbersEvaluation | None) -> dict[str, str]:
    info, recipe = run.info, run.recipe
    best, data, bins = info["best"], info["data"], run.target.numbers
    facts = {
        "validation error": f"{best['val_mae']:.4g} on average, of {data['val_images']:,} images; {percent(best['val_skill'])} less than by always saying "
        "the training median"
    }
    if test is not None:
        looks = info.get("test_looks", 1)
        facts["test error"] = (
            f"{test.facts()['mean absolute error']}, of {test.images:,} images, looked at {'once' if looks == 1 else f'{looks} times'}"
        )
    return {
        **facts,
        "best epoch": f"{best['epoch']} of {info['epochs_trained']}; it was chosen by validation error, so expect a little more on new images",
        "model": f"{recipe.model}, {info['parameters'] / 1e6:.2f} M parameters, {recipe.method} training",
        **beginning_facts(info),
        "numbers": f"{bins.in_words}, learnt as a distribution over them",
        "data": f"{data['name']}: {data['train_images']:,} training and {data['val_images']:,} validation images",
        "stopped": f"{info['stopped']}, after {info['wall_seconds']:.0f} s",
    }


def _use_sections(run: Run) -> list[Section]:
    recipe, place, seen = run.recipe, quoted(run), run.preprocessing()
    commands = {
        "numbers with prediction intervals, for images or folders": f"vitling predict {place} IMAGE ...",
        "answers over HTTP": f"vitling serve {place}",
        "one file for other programs, compared with this model first": f"vitling export {place} --to onnx",
        "train it further": f"vitling train {recipe.data} --out {place} --more 30m",
    }
    lines = "\n\n".join(f"# {what}\n{command}" for what, command in commands.items())
    python = f'import vitling\n\nfor prediction in vitling.predict({str(run.place)!r}, ["image.png"]):\n    print(prediction.value, prediction.interval)'
    takes = {
        "images": f"of any size; it sees {'{} x {}'.format(*seen.size)} pixels, {counted(seen.channels, 'channel')}",
        "gives": "a number, and the interval that holds the true one nine times out of ten",
    }
    return [
        Section("Commands", [Facts(takes), Code(lines)]),
        Section("From Python", [Code(python)]),
        repeat_section(run),
    ]
