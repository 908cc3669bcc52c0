"""The verdict: findings about a run and its data, and about the inside of a network where measurements allow one.

A number of the inside is judged only by ranges that were measured on networks of the same family and about the same size, on at least three
datasets, and that told good runs from bad ones on each of them. references.json holds our runs with their provenance, as written by
benchmarks/reference_ranges.py. Where it holds no such ranges, and that is so for most, the number stands without a judgement.
"""

import json
from dataclasses import replace
from functools import cache
from importlib import resources
from math import log10

from vitling.diagnose.causes import MOST, find_causes, order
from vitling.diagnose.indicator import Finding, Indicator
from vitling.diagnose.measures import MEASURES
from vitling.diagnose.result import Diagnosis

DATASETS = 3  # on which a number must have told good from bad
SAME_SIZE = 4.0  # times as many parameters, at most
GOOD, BAD = (
    0.02,
    0.1,
)  # of accuracy below the best run of the family on the same data: up to here good, from here on bad


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
)
OF_TRAINING = [
    Indicator(
        "generalisation gap",
        lambda d: d.gap.difference if d.gap else None,
        "It is better on training images than on held-out ones by {value:.3f} in accuracy.",
        "high",
    ),
    Indicator(
        "calibration error",
        lambda d: d.evaluation.ece if d.evaluation else None,
        "Its confidence misses its accuracy by {value:.3f} on average (ECE).",
        "high",
    ),
    Indicator(
        "sharpness",
        lambda d: d.sharpness,
        "The loss rises by {value:.3f} within a step of 0.05 uphill.",
        "high",
    ),
    Indicator(
        "gradient spread",
        gradient_spread,
        "Gradient norms of its layers lie {value:.1f} orders of magnitude apart at the end of training.",
        "high",
        blocks=2,
    ),
]


def known_indicators() -> list[Indicator]:
    """Accuracy, what the measures bring, and what comes from training, in the order of the page."""
    return [ACCURACY, *(indicator for measure in MEASURES for indicator in measure.indicators), *OF_TRAINING]


def indicators(d: Diagnosis) -> dict[str, float | None]:
    """The numbers of the inside; None where one could not be measured, or says nothing of a network with so few blocks."""
    if not d.measurements.images:
        return {}
    blocks = len(d.measurements.blocks)
    return {
        indicator.name: indicator.value(d) if blocks >= indicator.blocks or indicator.blocks == 1 else None
        for indicator in known_indicators()
    }


def judge(d: Diagnosis, other: Diagnosis | None = None) -> list[Finding]:
    """The findings: problems first, each group by what its advice is expected to bring."""
    found = find_causes(d.evidence) if d.evidence else []
    if d.measurements.images:
        values = indicators(d)
        found += [f for i in known_indicators() if (f := judge_indicator(i, values[i.name], d)) is not None]
        found += [replace(f, question="inside") for measure in MEASURES for f in measure.findings(d)]
    return order(found)


# ---------------------------------------------------------------------------------------------------------------------
# References


@cache
def references() -> dict:
    """Our own runs, as benchmarks/reference_ranges.py recorded them."""
    return json.loads(resources.files("vitling.diagnose").joinpath("references.json").read_text(encoding="utf-8"))


def family_of(model: str) -> str:
    """The family of a network, by the name that timm builds it with."""
    return model.rpartition(".")[2].split("_")[0]


def measured_ranges(name: str, model: str, parameters: int, bad: str, known: dict | None = None) -> list[tuple] | None:
    """Of each dataset (good values, bad values) of a number for such networks; None unless three of them are told apart."""
    found = []
    for dataset in (known or references())["datasets"]:
        runs = [
            run
            for run in dataset["runs"]
            if family_of(run["model"]) == family_of(model)
            and abs(log10(run["parameters"] / max(parameters, 1))) <= log10(SAME_SIZE)
            and run["indicators"].get(name) is not None
        ]
        best = max((run["accuracy"] for run in runs), default=0.0)
        good = [run["indicators"][name] for run in runs if run["accuracy"] >= best - GOOD]
        poor = [run["indicators"][name] for run in runs if run["accuracy"] <= best - BAD]
        if not good or not poor:
            continue
        if not (min(poor) > max(good) if bad == "high" else max(poor) < min(good)):
            return None  # it does not tell them apart there, so it is no sign
        found.append((good, poor))
    return found if len(found) >= DATASETS else None


def judge_indicator(
    indicator: Indicator, value: float | None, d: Diagnosis, known: dict | None = None
) -> Finding | None:
    """A finding where the number lies among those of bad runs; None where it does not, or where nobody knows."""
    if value is None or value != value or d.subject.run is None:
        return None
    ranges = measured_ranges(indicator.name, d.subject.run.recipe.model, d.subject.parameters, indicator.bad, known)
    if ranges is None:
        return None
    sign = 1 if indicator.bad == "high" else -1
    good = max(sign * x for values, _ in ranges for x in values)
    poor = min(sign * x for _, values in ranges for x in values)
    if (
        poor <= good or sign * value < poor
    ):  # ranges that hold on each dataset, but not across them, say nothing of a new one
        return None
    return Finding(
        name=indicator.name,
        state="watch",
        value=value,
        sentence=indicator.sentence.format(value=value),
        reference=f"Like runs of this family and size that learned badly: on {len(ranges)} datasets they lie beyond {sign * poor:.3g}, good ones "
        f"within {sign * good:.3g}.",
        question="inside",
        confidence=0.5,
    )


# ---------------------------------------------------------------------------------------------------------------------
# In a sentence


def headline(d: Diagnosis) -> str:
    """The verdict in one sentence."""
    problems = [finding for finding in d.findings if finding.state == "problem"]
    if problems:
        more = f" ({len(problems) - 1} more below)" if len(problems) > 1 else ""
        return f"{problems[0].sentence}{more}"
    if d.evidence is None:
        return "Its numbers are below; what limits it can only be said of a run on its own data."
    limits = [finding for finding in d.findings if finding.state == "watch" and finding.question == "training"]
    return f"Nothing is wrong with it. {limits[0].sentence}" if limits else "Nothing is wrong with it."


def advised(d: Diagnosis) -> list[Finding]:
    """The findings to act upon, at most five, each with a command where there is one."""
    return [finding for finding in d.findings if finding.advice and finding.state != "ok"][:MOST]
