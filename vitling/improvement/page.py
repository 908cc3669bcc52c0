"""The page of an improvement: the sentence first, then the tree of trials, what was tried and why, and what was not."""

import itertools
from pathlib import Path
from typing import Any

from vitling.diagnose.run_parts import PAGE
from vitling.improvement.record import Improvement
from vitling.recipes import from_dict, to_yaml
from vitling.reports import plots
from vitling.reports.page import Chart, Code, Facts, Link, Page, Section, Table, Text

FINAL = "in full"


def improvement_page(state: Improvement) -> Page:
    """The page of an improvement that has come to its end."""
    record = state.record
    sections = [result_section(state), trial_section(state), candidate_section(state), omitted_section(record)]
    sections.append(repeat_section(state))
    return Page(
        title=f"Improving {record['asked']['source']}",
        subtitle=f"{record['asked']['budget_seconds'] / 60:.4g} minutes, {record['spent_seconds'] / 60:.4g} of them used",
        sections=[section for section in sections if section.parts],
        links=run_links(state),
    )


def run_links(state: Improvement) -> list[Link]:
    """The pages of the runs that it is about, as far as they are written."""
    here, source = state.folder / "improve.html", Path(state.record["asked"]["source"])
    runs = {
        "the run": source,
        "the run's recipe again": state.folder / "start",
        "the better run": state.folder / "winner",
    }
    return [Link.between(title, run / PAGE, here) for title, run in runs.items() if (run / PAGE).exists()]


def result_section(state: Improvement) -> Section:
    record, held = state.record, state.record["holdout"]
    parts: list[Any] = [Text(f"{state.sentence[0].upper()}{state.sentence[1:]}.")]
    confirmation = record.get("confirmation")
    compared = (
        "the run's own recipe, trained again without the images that confirm" if held["again"] else "the run as it is"
    )
    if confirmation:
        value = (record["winner"], confirmation["difference"], (confirmation["high"] - confirmation["low"]) / 2)
        parts.append(
            Facts(
                {
                    "candidate": record["winner"],
                    "its accuracy": f"{100 * confirmation['winner_top1']:.1f} %",
                    "compared with": f"{compared}, {100 * confirmation['start_top1']:.1f} %",
                    "correct only in one": f"{confirmation['only_winner']} and {confirmation['only_start']} of {confirmation['images']:,} images",
                    "95 % interval": f"{confirmation['low']:+.2f} to {confirmation['high']:+.2f} points (Bonett and Price, paired by image)",
                    "exact McNemar test": f"p = {confirmation['p_value']:.3g}",
                    "run": str(state.folder / "winner"),
                }
            )
        )
        parts.append(
            Chart(
                plots.intervals([value], x="points more than the start", zero=True),
                "The difference on the images that confirm, and its 95 % interval.",
            )
        )
    images = {
        "choosing": f"{held['choose']:,} images, held out of every trial",
        "confirming": f"{held['confirm']:,} images, looked at once, when everything was decided",
        "trials learn from": f"{held['trial_train']:,} images",
        "the final training": f"{held['final_train']:,} images, and {held['validate']:,} to pick its epoch by",
        "the test split": "was not opened",
        "why so": held["note"],
    }
    parts.append(Facts(images))
    return Section("Result", parts, "Is there something better, and how sure is that?")


def trial_section(state: Improvement) -> Section:
    rounds = [entry for entry in state.rounds if "scores" in entry]
    if not rounds:
        return Section("Trials")
    columns = [
        (
            f"round {number + 1}, {entry['seconds']:.0f} s each",
            [
                (name, score[0])
                for name, score in sorted(entry["scores"].items(), key=lambda item: item[1], reverse=True)
            ],
        )
        for number, entry in enumerate(rounds)
    ]
    known, branches = state.candidates, []
    for number, (before, after) in enumerate(itertools.pairwise(rounds)):
        for name in after["scores"]:
            origins = [name] if name in before["scores"] else [p for p in known[name].parents if p in before["scores"]]
            branches += [(number, origin, name) for origin in origins]
    winner = state.record.get("winner")
    if winner and state.record.get("confirmation"):
        columns.append((f"{FINAL}, {state.record['final_seconds']:.0f} s", [(winner, None)]))
        if winner in rounds[-1]["scores"]:
            branches.append((len(rounds) - 1, winner, winner))
    caption = (
        "Every trial of a round has the same wall time, is trained from scratch, and is compared by its accuracy on the images that choose, in "
        "percent. The better half goes on with twice the time; the run's own recipe always does."
    )
    return Section(
        "Trials",
        [Chart(plots.tree(columns, branches), caption, wide=True), Table(*state.table())],
        "What was tried, and what fell out when?",
    )


def candidate_section(state: Improvement) -> Section:
    rows = [
        [candidate.name, candidate.reason, candidate.evidence, changed(candidate.changes)]
        for candidate in state.candidates.values()
    ]
    observations = [Text(f"The run: {'; '.join(state.record['observations'])}.")]
    return Section(
        "Candidates", [*observations, Table(["candidate", "why", "found before", "changes"], rows)], "Why these?"
    )


def omitted_section(record: dict[str, Any]) -> Section:
    rows = [[entry["name"], entry["reason"]] for entry in record["omitted"]]
    return Section("Left out", [Table(["what", "why"], rows)] if rows else [], "What was not tried?")


def repeat_section(state: Improvement) -> Section:
    record = state.record
    origin = {name: value for name, value in record["environment"].items() if name != "command"}
    recipes = [Code(to_yaml(from_dict(record["recipe"])), "the recipe that was improved")]
    if winner := state.winner:
        recipes.append(Code(to_yaml(winner.recipe), "the winner's recipe"))
    return Section("To repeat it", [Code(record["environment"]["command"]), Facts(origin), *recipes])


def changed(changes: dict[str, Any]) -> str:
    """Changes as settings; a group that is replaced as a whole is only named."""
    return ", ".join(
        f"{key}={value}" if not isinstance(value, dict) or len(value) < 6 else f"{key} of its own"
        for key, value in changes.items()
    )
