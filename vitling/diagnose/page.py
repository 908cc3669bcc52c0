"""The diagnosis as a page: what to do, then the three questions that it answers, with their numbers in folds."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitling.data.pipeline.decoding import decode
from vitling.diagnose.attention import attention_masks, fold_head_tokens, head_token_maps, resize_masks
from vitling.diagnose.attribution import relevance_map
from vitling.diagnose.cka import CkaMatrix
from vitling.diagnose.confusions import mixed_up
from vitling.diagnose.evidence import Evidence
from vitling.diagnose.features import conv_maps, token_maps
from vitling.diagnose.growth import LearningCurve
from vitling.diagnose.match import Match
from vitling.diagnose.measures import MEASURES
from vitling.diagnose.measures.channels import judge_channels
from vitling.diagnose.measures.measure import AttentionMeasure, BlockMeasure, ModelMeasure
from vitling.diagnose.result import Diagnosis
from vitling.diagnose.run_page import picture_parts
from vitling.diagnose.run_parts import learning_charts
from vitling.diagnose.verdict import advised, headline, indicators, references
from vitling.errors import UserError
from vitling.models.inspect import Captured, as_tokens, capture_batch, find_attention_layout, rollout_chain
from vitling.reports import plots
from vitling.reports.page import (
    Chart,
    Facts,
    Findings,
    Fold,
    Page,
    Picture,
    Section,
    Strip,
    Table,
    Text,
    as_picture,
    percent,
)

EXAMPLES = 4  # pictures over which attention is drawn
LAYERS = 12  # most layers drawn of a deep network
CHANNELS = 24  # channels drawn of a block
TILE = 72  # CSS pixels


def diagnosis_page(results: list[Diagnosis]) -> Page:
    """The page of one diagnosis, or of two side by side: what to do, then the three questions."""
    first, alone = results[0], len(results) == 1
    measured = [d for d in results if d.measurements.images]
    sections: list[Section | None] = [verdict_section(d, alone=alone) for d in results]
    sections += [training_section(d, alone=alone) for d in results]
    sections += [images_section(d, alone=alone) for d in measured]
    sections += [inside_section(measured)] if measured else []
    sections += [attention_section(measured), *(pictures_of_attention(d) for d in measured)]
    sections += [features_section(measured), *(feature_maps(d) for d in measured)]
    sections += [similarity_section(measured)] if measured else []
    sections += [left_out(results), about()]
    names = " and ".join(d.name for d in results)
    return Page(
        title=f"Diagnosis of {names}",
        subtitle=f"on {first.measurements.images:,} {first.pictures.split} images of {first.pictures.data}",
        sections=[section for section in sections if section is not None and section.parts],
    )


def _title(title: str, d: Diagnosis, alone: bool = False) -> str:
    return title if alone else f"{title}: {d.name}"


def _measured(kind: type, results: list[Diagnosis]) -> list:
    """What the measures of a kind show of themselves."""
    return [part for measure in MEASURES if issubclass(measure, kind) for part in measure.parts(results)]


# ---------------------------------------------------------------------------------------------------------------------
# Verdict and numbers


def verdict_section(d: Diagnosis, *, alone: bool) -> Section:
    shown = advised(d)
    rest = [finding for finding in d.findings if finding not in shown]
    parts: list = [Findings(shown)] if shown else [Text("Nothing to do.")] if d.evidence else []
    parts += [Fold("what else was noticed", [Findings(rest)])] if rest else []
    return Section(_title("What to do", d, alone), parts, headline(d))


def inside_section(results: list[Diagnosis]) -> Section:
    """Numbers without a judgement, but where one was measured."""
    parts: list = [overview(results)]
    known = [name for name in indicators(results[0]) if name != "accuracy"]
    values = [indicators(d) for d in results]
    rows = [
        (name, *("–" if (value := one[name]) is None or value != value else f"{value:.3f}" for one in values))
        for name in known
        if any(one[name] is not None for one in values)
    ]
    if rows:
        caption = "Numbers, not judgements: one is judged only by ranges of its own family and size that told good runs from bad ones on three datasets."
        parts.append(Fold("numbers of the inside", [Table(("", *(d.name for d in results)), rows, caption)]))
    judged = [f for d in results for f in d.findings if f.question == "inside"]
    parts += [Findings(judged)] if judged else []
    for d in results:
        parts += calibration_parts(d)
    return Section("3. What is unusual inside?", [*parts, *_measured(ModelMeasure, results)])


def calibration_parts(d: Diagnosis) -> list:
    if d.evaluation is None:
        return []
    caption = f"Reliability: {d.evaluation.ece:.3f} is the mean distance from the diagonal (ECE). Below it, the model is overconfident."
    return [Fold(f"calibration of {d.name}", [Chart(plots.reliability(d.reliability), caption)])]


def overview(results: list[Diagnosis]) -> Table:
    head = ("", *(d.name for d in results))

    def row(name: str, value: Callable[[Diagnosis], object]) -> tuple:
        return (name, *("–" if (cell := value(d)) is None else cell for d in results))

    def accuracy(d: Diagnosis) -> str | None:
        if d.evaluation is None:
            return None
        low, high = d.evaluation.top1_interval
        return f"{percent(d.evaluation.top1)} (95 % interval {100 * low:.1f} to {100 * high:.1f})"

    def gap(d: Diagnosis) -> str | None:
        return (
            None
            if d.gap is None
            else f"{d.gap.difference:+.3f} (95 % interval {d.gap.interval[0]:+.3f} to {d.gap.interval[1]:+.3f})"
        )

    rows = [
        row("network", lambda d: type(d.subject.model).__name__),
        row("parameters", lambda d: f"{d.subject.parameters:,}"),
        row(
            "sees images of",
            lambda d: f"{d.subject.preprocessing.channels} x {'{} x {}'.format(*d.subject.preprocessing.size)}",
        ),
        row("accuracy", accuracy),
        row("training less held-out accuracy", gap),
        row("calibration error (ECE)", lambda d: d.evaluation and f"{d.evaluation.ece:.3f}"),
        row("sharpness of the loss", lambda d: None if d.sharpness is None else f"{d.sharpness:.3f}"),
    ]
    return Table(head, rows)


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def attention_section(results: list[Diagnosis]) -> Section | None:
    seen = [d for d in results if d.has_attention]
    if not seen:
        return None
    lead = "Do early layers look near, and do heads divide the work?"
    return Section("Attention in numbers", _measured(AttentionMeasure, seen), lead)


def _example_numbers(d: Diagnosis, count: int = EXAMPLES) -> Tensor:
    """Examples of different classes where there are some."""
    labels = d.pixels.labels
    first = [int((labels == label).nonzero()[0]) for label in labels.unique()[:count]]
    rest = [i for i in range(len(labels)) if i not in first]
    return torch.tensor((first + rest)[: min(count, len(labels))])


def pictures_of_attention(d: Diagnosis, examples: int = EXAMPLES) -> Section | None:
    if not d.has_attention:
        return None
    index = _example_numbers(d, examples)
    images = d.normalized(index)
    seen = capture_batch(d.subject.model, images)
    parts = [*_masks(d, seen, images, index), *_relevance(d, images, index), *_head_tokens(d, seen, images, index)]
    return Section(f"Attention over pictures: {d.name}", parts, "What does it look at, layer by layer?")


def _masks(d: Diagnosis, seen: Captured, images: Tensor, index: Tensor) -> list[Strip]:
    chain = rollout_chain(seen.attention, len(images))
    layouts = {name: find_attention_layout(d.subject.model, name, x, images) for name, x in chain.items()}
    if not chain or not all(layouts.values()):
        return []
    first = next(iter(layouts.values()))
    assert first is not None
    layout = first.queries
    maps = [fold_head_tokens(x) if layout.extra else x for x in chain.values()]
    if len({x.shape[1] for x in maps}) > 1:  # networks whose layers differ in their number of heads
        maps = [x.mean(dim=1, keepdim=True) for x in maps]
    strips = []
    for rollout, caption in (
        (
            False,
            "Each layer by itself (heads averaged, the shortcut as identity), all layers on one scale: the paper's text.",
        ),
        (
            True,
            "Rolled out down to the pixels, each layer on its own scale: what the paper's code draws. It spreads with depth even in an untrained network.",
        ),
    ):
        scale = "own" if rollout else "common"
        masks = attention_masks(maps, layout.grid, rollout=rollout, scale=scale, prefix_tokens=layout.prefix_tokens)
        layers = _spread(len(masks), LAYERS)
        rows = [
            [_shown(d, number), *(_masked(d, number, masks[layer, column], f"layer {layer + 1}") for layer in layers)]
            for column, number in enumerate(index.tolist())
        ]
        strips.append(Strip(rows, caption))
    return strips


def _relevance(d: Diagnosis, images: Tensor, index: Tensor) -> list[Strip]:
    try:
        maps = relevance_map(d.subject.model, images).cpu()
    except UserError:
        return []  # `works` says why, under "What could not be measured"
    maps = maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    pictures = [
        picture
        for row, number in enumerate(index.tolist())
        for picture in (_shown(d, number), _masked(d, number, maps[row], "relevance"))
    ]
    caption = "Relevance of the patches for the predicted class: attention times its gradient, through all layers."
    return [Strip([pictures], caption)]


def head_token_section(d: Diagnosis, block: int) -> Section | None:
    """What DHVT's head tokens attend to in one of its blocks; None of a model that has none."""
    index = _example_numbers(d)
    images = d.normalized(index)
    strips = _head_tokens(d, capture_batch(d.subject.model, images), images, index, block)
    return Section(f"Head tokens: {d.name}", strips, "What does each head look at?") if strips else None


def _head_tokens(d: Diagnosis, seen: Captured, images: Tensor, index: Tensor, block: int = -1) -> list[Strip]:
    layouts = {name: find_attention_layout(d.subject.model, name, x, images) for name, x in seen.attention.items()}
    names = [name for name, layout in layouts.items() if layout and layout.queries.extra]
    for name in names[block:][:1]:
        layout, weights = layouts[name], seen.attention[name]
        assert layout is not None  # of those names
        maps = head_token_maps(weights, layout.queries.grid, prefix_tokens=layout.queries.prefix_tokens).cpu()
        maps = maps / maps.amax(dim=(1, 2, 3), keepdim=True)
        rows = [
            [_shown(d, number), *(_masked(d, number, one, f"head token {k + 1}") for k, one in enumerate(maps[row]))]
            for row, number in enumerate(index.tolist())
        ]
        return [Strip(rows, f"What each head token sees in {name} (DHVT's figure 4), one scale per image.")]
    return []


def _masked(d: Diagnosis, number: int, mask: Tensor, label: str) -> Picture:
    """The picture times the mask, as in the paper; black is where it does not look."""
    pixels = d.pixels.images[number]
    mask = resize_masks(mask.float().cpu(), tuple(pixels.shape[-2:]))
    return as_picture((pixels * mask.clamp(0, 1)).to(torch.uint8), label, TILE)


def _shown(d: Diagnosis, number: int) -> Picture:
    return as_picture(d.pixels.images[number], _class_name(d, number), TILE)


def _class_name(d: Diagnosis, number: int) -> str:
    return d.pictures.class_names[d.pixels.labels[number]]


def _spread(total: int, most: int) -> list[int]:
    return np.linspace(0, total - 1, min(total, most)).round().astype(int).tolist()


# ---------------------------------------------------------------------------------------------------------------------
# Features


def features_section(results: list[Diagnosis]) -> Section | None:
    seen = [d for d in results if d.measurements.blocks]
    if not seen:
        return None
    lead = "Is the width used, do tokens stay apart, where does the class appear?"
    return Section("Features in numbers", _measured(BlockMeasure, seen), lead)


def feature_maps(d: Diagnosis, *, bare_chain: bool = False) -> Section | None:
    """Token maps of three blocks (T2T's figure 2), and the mean map of each convolution of a CNN (the paper's figure 5).

    `bare_chain` adds what the release of the diagnosis paper draws of a CNN in its place, where its convolutions form a chain.
    """
    number = _example_numbers(d)[:1]
    images = d.normalized(number)
    source = _shown(d, int(number[0]))
    seen = capture_batch(d.subject.model, images)
    parts: list = []
    names = list(seen.blocks)
    for i in _spread(len(names), 3) if names else []:
        try:
            tokens, layout = as_tokens(d.subject.model, seen.blocks[names[i]], tuple(images.shape[-2:]))
        except UserError:
            continue
        maps = token_maps(tokens, layout)[0].cpu()
        health = judge_channels(maps.abs().flatten(1).amax(dim=1))
        pictures = [source] + [
            Picture(
                _grey(maps[c]),
                f"{c}" + (" dead" if c in health.dead else " exploding" if c in health.exploding else ""),
                48,
            )
            for c in _spread(len(maps), CHANNELS)
        ]
        parts.append(Strip([pictures], f"Channels after {names[i]}, each on its own scale."))
    if not d.has_attention:
        caption = "Each convolution, averaged over its channels, in a real forward pass (the paper's figure 5)."
        parts.append(_conv_strip(source, conv_maps(d.subject.model, images), caption))
        if bare_chain:
            parts += _bare_chain(d, images, source)
    return Section(f"Feature maps: {d.name}", parts, "What do its channels hold for one picture?")


def _conv_strip(source: Picture, maps: dict[str, Tensor], caption: str) -> Strip:
    shown = list(maps.items())[: LAYERS * 2]
    return Strip([[source, *(Picture(_grey(one[0].cpu()), name, TILE) for name, one in shown)]], caption)


def _bare_chain(d: Diagnosis, images: Tensor, source: Picture) -> list:
    try:
        maps = conv_maps(d.subject.model, images, bare_chain=True)
    except UserError as error:
        return [Text(f"What the release draws, the convolutions alone, cannot be drawn of this network: {error}")]
    caption = "What the release draws: the convolutions alone, one after another, without normalisation, activation or shortcut."
    return [_conv_strip(source, maps, caption)]


def _grey(one: Tensor) -> np.ndarray:
    one = one.float()
    low, high = one.min(), one.max()
    return ((one - low) / (high - low).clamp(min=1e-12) * 255).to(torch.uint8).numpy()


# ---------------------------------------------------------------------------------------------------------------------
# Similarity


def similarity_section(results: list[Diagnosis]) -> Section | None:
    first, last = results[0], results[-1]
    if first.cka is None or max(first.cka.matrix.shape) < 2:  # one layer resembles itself
        return None
    parts = similarity_parts(first.cka, first.match, first.name, last.name)
    return Section("Similarity of layers", parts, "Which layers compute the same thing?")


def similarity_parts(cka: CkaMatrix, match: Match | None, first: str, last: str) -> list:
    """The CKA of two networks as a picture, and what it says of their layers."""
    svg = plots.cka_heat_map(cka.matrix.cpu(), cka.rows, cka.columns, row_title=first, column_title=last)
    caption = f"CKA of every pair of layers, unbiased, over {cka.images:,} images in {cka.batches} batches. 1: the same up to rotation and scale."
    parts: list = [Chart(svg, caption)]
    if match is not None:
        svg = plots.best_match(match, rows=first, columns=last)
        parts.append(
            Chart(
                svg,
                f"Which depth of {last} each layer of {first} resembles most; larger dots are more similar.",
            )
        )
        quarters = [
            (f"quarter {q + 1} of {first}", *(f"{x:.2f}" for x in row))
            for q, row in enumerate(match.block_means.tolist())
        ]
        head = ("mean CKA with", f"lower half of {last}", f"upper half of {last}")
        parts.append(
            Table(
                head,
                quarters,
                "Against a CNN, a ViT that trains well is like the lower half first, like the upper half next, like neither at its top.",
            )
        )
        needed = "never" if match.depth_needed is None else f"{match.depth_needed:.2f}"
        parts.append(
            Facts(
                {
                    "monotonicity": f"{match.monotonicity:.2f} (rank correlation of a layer's depth and its match's; 1: it follows layer by layer)",
                    "unmatched top quarter": f"{match.unmatched_top_quarter:.2f} (1 less the mean best CKA of its top layers)",
                    "depth needed": f"{needed} (the depth at which its match reaches the middle of {last})",
                }
            )
        )
    return parts


# ---------------------------------------------------------------------------------------------------------------------
# Predictions and training


def training_section(d: Diagnosis, *, alone: bool) -> Section | None:
    """Question 1, from the course of the run, and from training on parts where that was asked for."""
    run, e = d.subject.run, d.evidence
    if run is None or not (run.metrics() or e):
        return None
    parts: list = learning_charts(run) if run.metrics() else []
    if e is not None:
        rows = [
            ("training images", percent(e.train.accuracy if e.train else None)),
            ("validation images", percent(e.val.accuracy if e.val else None)),
            ("a linear classifier on fixed features", percent(e.probe.accuracy if e.probe else None)),
            ("always the largest class", percent(e.chance)),
        ]
        parts.insert(0, Table(("accuracy of", ""), rows))
        if e.rates:
            tried = [(f"{factor:g}", f"{loss:.3f}") for factor, loss in sorted(e.rates.losses.items())]
            caption = f"Loss after {e.rates.steps} steps from the first weights, by the factor on the run's rate; guessing: {e.rates.chance:.2f}."
            parts.append(Fold("learning rates that were tried", [Table(("factor", "loss"), tried, caption)]))
    if d.learning_curve is not None:
        parts += growth_parts(d.learning_curve)
    title = "1. Too short, too small, overfitting, or too little data?"
    return Section(_title(title, d, alone), parts)


def growth_parts(curve: LearningCurve) -> list:
    accuracy = {"validation": [part.accuracy for part in curve.parts]}
    svg = plots.lines([part.images for part in curve.parts], accuracy, x="training images", y="accuracy", unit=True)
    low, high = (100 * end for end in curve.interval)
    text = f"{curve.sentence} (95 % interval {low:.1f} to {high:.1f} points, at the run's number of epochs.)"
    return [Text(text), Chart(svg, "Accuracy by the number of training images.")]


def images_section(d: Diagnosis, *, alone: bool) -> Section | None:
    """Question 2: classes with their intervals, pairs with examples, labels, copies."""
    if d.evaluation is None:
        return None
    parts: list = [
        Chart(
            plots.class_accuracy(d.evaluation.per_class),
            "Accuracy per class with 95 % intervals, the worst classes first.",
        ),
        Chart(
            plots.confusion(np.asarray(d.evaluation.confusion), d.evaluation.class_names),
            "Confusion: truth in rows, prediction in columns, as shares of a row.",
        ),
        *pair_strips(d),
        *suspect_parts(d),
        *(copy_tables(d.evidence) if d.evidence else []),
        Fold("most confident mistakes", picture_parts(d.measurements.logits, d.pixels, d.pictures.class_names)),
    ]
    if d.evidence is not None:
        counts = sorted(zip(d.evidence.counts.tolist(), d.evidence.class_names, strict=True))
        rows = [(name, count) for count, name in counts[:20]]
        parts.append(Fold("training images of each class, the fewest first", [Table(("class", "images"), rows)]))
    return Section(_title("2. Which classes and images?", d, alone), parts)


def pair_strips(d: Diagnosis, pairs: int = 4, shown: int = 6) -> list:
    """The pairs that are mixed up most, each with pictures of one that was taken for the other."""
    assert d.evaluation is not None  # asked by the section
    names, labels = d.pictures.class_names, d.pixels.labels
    guesses = d.measurements.logits.argmax(dim=1)
    strips = []
    for pair in mixed_up(d.evaluation, pairs):
        a, b = names.index(pair["first"]), names.index(pair["second"])
        wrong = (((labels == a) & (guesses == b)) | ((labels == b) & (guesses == a))).nonzero().flatten()[:shown]
        row = [
            as_picture(d.pixels.images[i], f"{names[labels[i]]}, taken for {names[guesses[i]]}", TILE)
            for i in wrong.tolist()
        ]
        strips.append(Strip([row], f"'{pair['first']}' and '{pair['second']}' are mixed up {pair['images']} times."))
    return strips


def suspect_parts(d: Diagnosis, shown: int = 16) -> list:
    """Pictures whose label is probably wrong, the surest first, and the names of all."""
    suspects = d.label_errors
    if suspects is None or not len(suspects.errors.index):
        return []
    names, labels = d.pictures.class_names, suspects.images.labels
    found = list(zip(suspects.errors.index.tolist(), suspects.errors.suggested.tolist(), strict=True))
    some = suspects.images.subset(np.array([i for i, _ in found[:shown]]))
    pixels = decode(some, **d.subject.preprocessing.fit_args())
    row = [
        as_picture(pixels[k], f"labelled {names[labels[i]]}, probably {names[guess]}", TILE)
        for k, (i, guess) in enumerate(found[:shown])
    ]
    by = (
        "found by runs that did not learn from them (cross-validation)"
        if suspects.how == "cross-validation"
        else "among the validation images; label_errors looks at all training images"
    )
    caption = f"Labels that are probably wrong, {by}: {len(found):,} of {suspects.errors.images:,} images. Hard images are among them: look before you change one."
    rows = [(suspects.images.names[i], names[labels[i]], names[guess]) for i, guess in found[:200]]
    return [Strip([row], caption), Fold("their names", [Table(("image", "label", "probably"), rows)])]


def copy_tables(e: Evidence) -> list:
    named = {
        "train": "Copies among the training images",
        "val": "Validation images in train",
        "test": "Test images in train",
    }
    return [
        Fold(f"{named[split]}: {len(copies.pairs):,}", [Table((split, "train"), copies.pairs[:50])])
        for split, copies in e.copies.items()
        if copies.pairs
    ]


def left_out(results: list[Diagnosis]) -> Section | None:
    parts: list = []
    for d in results:
        reasons = {part: reason for part, reason in d.works.items() if reason and part != "head tokens"}
        if reasons:
            parts.append(Table((d.name, "why not"), list(reasons.items())))
        parts += [Text(f"{d.name}: {note}") for note in d.notes]
    return Section("What could not be measured", parts)


def about() -> Section:
    made = references()["provenance"]
    text = (
        "Findings about a run and its data compare it with itself; docs/diagnosis.md says how often they are right. Numbers of the inside were measured "
        f"on our own small runs too ({made['command']}, {made['date']}, torch {made['torch']}, timm {made['timm']}). "
        "All numbers of this page lie beside it as .json and .npz."
    )
    datasets = [
        (dataset["title"], run["kind"], run["seed"], run["epochs"], percent(run["accuracy"]), f"{run['parameters']:,}")
        for dataset in references()["datasets"]
        for run in dataset["runs"]
    ]
    table = Table(("data", "network", "seed", "epochs", "accuracy", "parameters"), datasets)
    return Section("Where this comes from", [Text(text), Fold("our reference runs", [table])])
