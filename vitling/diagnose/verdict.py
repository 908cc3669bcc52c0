"""The verdict: plain sentences, each with its number, the range to hold it against, and what to try.

Every range is measured: references.json holds the numbers of small runs of ours with their provenance, as written by
benchmarks/reference_ranges.py. "Healthy" are the kinds of network all of whose runs reached more than every run of the plain ViT on
the same data. A number within their range is fine. Outside it, on the bad side, it is a problem when it lies nearer to the plain
ViT's range than to theirs, and else something to watch. Where the two ranges meet, the number does not separate good from bad on
that data: it is never a problem, and to be watched only beyond both by more than they are wide.
"""

import json
from functools import cache
from importlib import resources
from math import log10

import torch

from vitling.diagnose.indicator import LOCALITY, Finding, Indicator
from vitling.diagnose.measures import MEASURES
from vitling.diagnose.result import Diagnosis
from vitling.evaluation.intervals import Z95

PLAIN = "plain ViT"
WITHOUT_ATTENTION = "CNN"


def _calibration_advice(d: Diagnosis) -> str:
    confidence = d.measurements.logits.float().softmax(dim=1).amax(dim=1).mean().item()
    if d.evaluation and confidence < d.evaluation.top1:
        return "it is underconfident; train longer, or lower method_args.label_smoothing."
    return "it is overconfident; try method_args.label_smoothing=0.1 or fewer epochs."


def gradient_spread(d: Diagnosis) -> float | None:
    """Orders of magnitude between the largest and the smallest gradient norm of a layer, in the last record."""
    records = d.subject.run.gradients() if d.subject.run else []
    norms = [norm for norm in records[-1]["norms"].values() if norm > 0] if records else []
    return log10(max(norms) / min(norms)) if norms else None


ACCURACY = Indicator(
    "accuracy",
    lambda d: d.evaluation.top1 if d.evaluation else None,
    "Its accuracy on held-out images is {value:.0%}.",
    "low",
    "read on: the other numbers say where it is lost.",
    interval=lambda d: d.evaluation.top1_interval if d.evaluation else None,
    of_the_data=True,
)
OF_TRAINING = [
    Indicator(
        "generalisation gap",
        lambda d: d.gap.difference if d.gap else None,
        "It is better on training images than on held-out ones by {value:.3f} in accuracy.",
        "high",
        "it overfits: try augment.randaugment=rand-m9-mstd0.5-inc1, method_args.mixup=0.8 or a smaller network.",
        interval=lambda d: d.gap.interval if d.gap else None,
        tokens=False,
    ),
    Indicator(
        "calibration error",
        lambda d: d.evaluation.ece if d.evaluation else None,
        "Its confidence misses its accuracy by {value:.3f} on average (ECE).",
        "high",
        _calibration_advice,
        tokens=False,
    ),
    Indicator(
        "sharpness",
        lambda d: d.sharpness,
        "The loss rises by {value:.3f} within a step of 0.05 uphill.",
        "high",
        "a sharp minimum seldom generalises; try optim.sam_rho=0.05 or a larger optim.weight_decay.",
    ),
    Indicator(
        "gradient spread",
        gradient_spread,
        "Gradient norms of its layers lie {value:.1f} orders of magnitude apart at the end of training.",
        "high",
        "some layers hardly learn; lengthen optim.warmup_epochs, or lower optim.lr.",
    ),
]


def known_indicators() -> list[Indicator]:
    """Accuracy, what the measures bring, and what comes from training, in the order of the verdict."""
    return [ACCURACY, *(indicator for measure in MEASURES for indicator in measure.indicators), *OF_TRAINING]


def indicators(d: Diagnosis) -> dict[str, float | None]:
    """The numbers that the verdict looks at; None where one could not be measured."""
    return {indicator.name: indicator.value(d) for indicator in known_indicators()}


# ---------------------------------------------------------------------------------------------------------------------
# References


@cache
def references() -> dict:
    """Our own runs, as benchmarks/reference_ranges.py recorded them."""
    return json.loads(resources.files("vitling.diagnose").joinpath("references.json").read_text(encoding="utf-8"))


def nearest_reference(d: Diagnosis) -> tuple[dict, bool]:
    """The reference dataset to compare with: the very same data, or else the one with images of the nearest size."""
    datasets = references()["datasets"]
    for dataset in datasets:
        if dataset["name"] == d.pictures.data:
            return dataset, True
    side = max(d.subject.preprocessing.size)
    return min(datasets, key=lambda dataset: abs(log10(dataset["image_size"] / side))), False


def healthy_kinds(dataset: dict) -> list[str]:
    """Kinds of token networks all of whose runs reached more than every plain ViT on the same data."""
    best_plain = max(run["accuracy"] for run in dataset["runs"] if run["kind"] == PLAIN)
    kinds = dict.fromkeys(run["kind"] for run in dataset["runs"] if run["kind"] not in (PLAIN, WITHOUT_ATTENTION))
    return [kind for kind in kinds if min(r["accuracy"] for r in dataset["runs"] if r["kind"] == kind) > best_plain]


def _values(dataset: dict, kinds: list[str], name: str) -> list[float]:
    found = [run["indicators"].get(name) for run in dataset["runs"] if run["kind"] in kinds]
    return [value for value in found if value is not None]


# ---------------------------------------------------------------------------------------------------------------------
# Judging


def judge(d: Diagnosis, other: Diagnosis | None = None) -> list[Finding]:
    """The findings, problems first."""
    dataset, same_data = nearest_reference(d)
    findings = [
        finding for indicator in known_indicators() if (finding := _judge(indicator, d, dataset, same_data)) is not None
    ]
    findings += [finding for measure in MEASURES for finding in measure.findings(d)]
    findings += [finding for finding in (still_rising(d), resemblance(d, other)) if finding is not None]
    order = ("problem", "watch", "ok")
    return sorted(findings, key=lambda finding: order.index(finding.state))


def _judge(indicator: Indicator, d: Diagnosis, dataset: dict, same_data: bool) -> Finding | None:
    value = indicator.value(d)
    if value is None or value != value or (indicator.of_the_data and not same_data):
        return None
    healthy = healthy_kinds(dataset) if d.has_attention else [WITHOUT_ATTENTION]
    if not indicator.tokens:
        healthy = [*healthy, WITHOUT_ATTENTION] if d.has_attention else healthy
    good, plain = _values(dataset, healthy, indicator.name), _values(dataset, [PLAIN], indicator.name)
    if not good:
        return None
    plain = plain if d.has_attention else []
    interval = indicator.interval(d) if indicator.interval else None
    low, high = interval or (value, value)
    state = classify(low if indicator.bad == "high" else high, good, plain, indicator.bad)
    sentence = indicator.sentence.format(value=value)
    if interval:
        sentence = f"{sentence[:-1]} (95 % interval {low:.2f} to {high:.2f})."
    advice = indicator.advice if isinstance(indicator.advice, str) else indicator.advice(d)
    return Finding(
        name=indicator.name,
        state=state,
        value=value,
        sentence=sentence,
        reference=_reference(indicator, good, plain, healthy, dataset, same_data),
        advice=advice if state != "ok" else "",
    )


def classify(value: float, good: list[float], plain: list[float], bad: str) -> str:
    """problem, watch or ok, by the ranges of the good and of the plain runs; `bad` is the side where numbers are bad."""
    sign = 1 if bad == "high" else -1
    value, good, plain = sign * value, [sign * x for x in good], [sign * x for x in plain]
    apart = _apart(good, plain, "high")
    known = good if apart else good + plain
    edge = max(known) if apart else 2 * max(known) - min(known)
    if value <= edge:
        return "ok"
    return "problem" if apart and value > (edge + min(plain)) / 2 else "watch"


def _apart(good: list[float], plain: list[float], bad: str) -> bool:
    """Whether every plain run lies on the bad side of every good one."""
    return bool(plain) and (min(plain) > max(good) if bad == "high" else max(plain) < min(good))


def _reference(
    indicator: Indicator, good: list[float], plain: list[float], healthy: list[str], dataset: dict, same_data: bool
) -> str:
    def span(values: list[float]) -> str:
        low, high = min(values), max(values)
        return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"

    text = f"{' and '.join(healthy)}: {span(good)}"
    text += f"; {PLAIN}: {span(plain)}" if plain else ""
    hint = "" if same_data else "; other data than yours, so take it as a hint"
    overlap = ", which does not separate good from bad here" if plain and not _apart(good, plain, indicator.bad) else ""
    return f"Measured: {text}{overlap} ({len(good) + len(plain)} runs of ours on {dataset['title']}{hint})."


def still_rising(d: Diagnosis) -> Finding | None:
    """Whether validation accuracy rose in the last quarter of training by more than its uncertainty."""
    run = d.subject.run
    records = run.metrics() if run else []
    if run is None or len(records) < 8 or run.info.get("data") is None:
        return None
    images = run.info["data"]["val_images"]
    accuracy = torch.tensor([record["val_top1"] for record in records], dtype=torch.float64)
    quarter = len(records) // 4
    before, after = accuracy[-2 * quarter : -quarter].mean().item(), accuracy[-quarter:].mean().item()
    uncertainty = Z95 * (max(after * (1 - after), 1 / images) / images) ** 0.5
    rises = after - before > uncertainty
    return Finding(
        name="still rising",
        state="watch" if rises else "ok",
        value=after - before,
        sentence=f"From the third to the last quarter of training, validation accuracy changed by {after - before:+.3f}.",
        reference=f"Within ±{uncertainty:.3f} it would be chance (95 %, {images} validation images of this run).",
        advice=f"it was still learning; train longer (epochs={2 * records[-1]['epoch']})." if rises else "",
    )


def resemblance(d: Diagnosis, other: Diagnosis | None) -> Finding | None:
    """How a ViT's layers follow those of a CNN: the paper's sign of a ViT that trains well."""
    if other is None or d.match is None or not d.has_attention or other.has_attention:
        return None
    dataset, same_data = nearest_reference(d)
    healthy = healthy_kinds(dataset)
    value = 1 - d.match.unmatched_top_quarter
    good, plain = _values(dataset, healthy, "peak with CNN"), _values(dataset, [PLAIN], "peak with CNN")
    if not good:
        return None
    advice = f"its top layers see what no layer of the CNN sees; try {LOCALITY}."
    indicator = Indicator("peak with CNN", lambda d: value, "", "low", advice)
    state = classify(value, good, plain, "low")
    return Finding(
        name=indicator.name,
        state=state,
        value=value,
        sentence=f"The top quarter of its layers resembles its best match in {other.name} by {value:.2f} (CKA).",
        reference=_reference(indicator, good, plain, healthy, dataset, same_data),
        advice=advice if state != "ok" else "",
    )


def headline(d: Diagnosis) -> str:
    """The verdict in one sentence."""
    if not d.findings:
        return "Nothing could be compared with a reference; the numbers are below."
    problems = [finding for finding in d.findings if finding.state == "problem"]
    watched = [finding for finding in d.findings if finding.state == "watch"]
    if problems:
        what = ", ".join(finding.name for finding in problems[:4])
        return f"{len(problems)} of {len(d.findings)} numbers are like those of a plain ViT that learned badly: {what}."
    if watched:
        what = ", ".join(finding.name for finding in watched[:4])
        return (
            f"Sound, but for {len(watched)} of {len(d.findings)} numbers outside the range of our healthy runs: {what}."
        )
    return f"Sound: all {len(d.findings)} numbers lie in the range of our healthy runs."
