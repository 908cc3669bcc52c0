"""The folder of an improvement: what was asked for, what was found so far, and what came out.

improve.json          everything, written after each step, so that the same command goes on where it stopped
clock.json            seconds used so far
parts.json            which images choose and confirm, see `vitling.data.sources.parts`
start/                the run to be improved, where it had to be trained (again)
round-N/              a study per round of trials
winner/               the best recipe, trained in full
recipe.yaml           the same recipe for all of the data
improve.html          the page
"""

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from vitling.callbacks import Callback, StudyCallback
from vitling.errors import UserError
from vitling.files import json_with, write_text
from vitling.improvement.candidates import Candidate
from vitling.runs.run import Run
from vitling.validation.documents import Record, damaged, read_json
from vitling.validation.values import Count, CountOrNone, Range, Seconds, Share

FILE, CLOCK, PARTS, START = "improve.json", "clock.json", "parts.json", "start"
BEAT_SECONDS = 5.0
is_improvement = json_with("asked", "vitling")
is_clock = json_with("spent_seconds")


class Filled:
    """Not empty."""

    def __contains__(self, value: Any) -> bool:
        return bool(value)

    def __str__(self) -> str:
        return "something, not nothing"


class AskedRecord(TypedDict):
    source: str
    budget_seconds: Seconds


class HoldoutRecord(TypedDict):
    note: str
    again: bool
    trial_train: CountOrNone
    choose: CountOrNone
    final_train: CountOrNone
    validate: CountOrNone
    confirm: CountOrNone


class CandidateRecord(TypedDict):
    name: str
    changes: dict[str, Any]
    reason: str
    evidence: str
    weight: float
    parents: list[str]


class BracketRecord(TypedDict):
    sizes: Annotated[list[Count], Filled()]
    seeds: Count
    jobs: Count


class _Round(TypedDict):
    seconds: Seconds
    names: list[str]


class RoundRecord(_Round, total=False):
    scores: dict[str, tuple[float, float]]
    failures: dict[str, str]


class _Environment(TypedDict):
    command: str


class OmittedRecord(TypedDict):
    name: str
    reason: str


class ConfirmationRecord(TypedDict):
    images: CountOrNone
    only_winner: CountOrNone
    only_start: CountOrNone
    difference: float
    low: float
    high: float
    winner_top1: Share
    start_top1: Share
    p_value: float


class _Improvement(TypedDict):
    asked: AskedRecord


class ImprovementRecord(_Improvement, total=False):
    """improve.json: what is known after each step. Further keys may stand beside these."""

    may_train_again: bool
    recipe: dict[str, Any]
    precision: Literal["no", "bf16", "fp16"]
    holdout: HoldoutRecord
    environment: _Environment
    observations: list[str]
    candidates: Annotated[list[CandidateRecord], Filled()]
    omitted: list[OmittedRecord]
    bracket: BracketRecord
    images_per_second: Annotated[float, Range(above=0, high=1e12)]
    rounds: list[RoundRecord]
    search_until: float
    final_seconds: Annotated[float, Range(above=0, high=1e9)]
    spent_seconds: Seconds
    winner: str | None
    confirmation: ConfirmationRecord
    sentence: Annotated[str, Filled()]


class ClockRecord(TypedDict):
    spent_seconds: Seconds


class Improvement:
    """What was found so far, as improve.json holds it."""

    def __init__(self, folder: Path):
        self.folder = folder
        path = folder / FILE
        self.record: dict[str, Any] = read_json(path, ImprovementRecord) if path.exists() else Record()
        self._check_names()

    def _check_names(self) -> None:
        """Refuse rounds and a winner that are no candidates, and a step that lacks the one before it."""
        record, source = self.record, str(self.folder / FILE)
        known = {tree["name"] for tree in record.get("candidates", [])}
        named = {name for entry in self.rounds for name in (*entry["names"], *entry.get("scores", {}))}
        winner = record.get("winner")
        if unknown := {*named, *([winner] if winner is not None else [])} - known:
            raise damaged(source, f"it has no candidate {min(unknown)!r:.80}")
        missing = {"candidates", "rounds", "symptoms", "observations", "omitted"} - set(record)
        if "bracket" in record and missing:
            raise damaged(source, f"it lacks '{min(missing)}'")
        if len(self.rounds) > len(record.get("bracket", {"sizes": []})["sizes"]):
            raise damaged(source, "it has more rounds than there are")

    def claim(self, asked: dict[str, Any]) -> None:
        """Take up the folder for this; one that holds something else is refused."""
        known = self.record.get("asked")
        if known is None:
            left = (
                sorted(p.name for p in self.folder.iterdir() if not p.name.startswith(".") and p.name != PARTS)
                if self.folder.exists()
                else []
            )
            if left:
                raise UserError(
                    f"{self.folder} already holds other files ({', '.join(left[:3])} ...); choose another folder."
                )
            return
        asked = json.loads(json.dumps(asked))
        if known != asked:
            key = next(key for key in {**known, **asked} if known.get(key) != asked.get(key))
            raise UserError(
                f"{self.folder} holds another improvement (its {key} is {known.get(key)!r}, not {asked.get(key)!r}); "
                "choose another folder, or repeat that one's own command."
            )

    def save(self, **entries: Any) -> None:
        self.record.update(entries)
        write_text(self.folder / FILE, json.dumps(self.record, indent=1, ensure_ascii=False), ours=is_improvement)

    def remove(self) -> None:
        """Take back what was written before the first trial."""
        shutil.rmtree(self.folder / START, ignore_errors=True)
        for name in (FILE, CLOCK, PARTS):
            (self.folder / name).unlink(missing_ok=True)

    # -- what came out ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return "sentence" in self.record

    @property
    def sentence(self) -> str:
        """The last line: what is better, by how much, and on which images; or that nothing was."""
        return self.record["sentence"]

    @property
    def better(self) -> bool:
        confirmation = self.record.get("confirmation")
        return confirmation is not None and confirmation["low"] > 0

    @property
    def winner(self) -> Run | None:
        """The run of the best candidate, trained in full; None where none was better in the trials."""
        return Run(self.folder / "winner") if self.record.get("confirmation") else None

    @property
    def candidates(self) -> dict[str, Candidate]:
        try:
            found = [Candidate.from_dict(tree) for tree in self.record.get("candidates", [])]
        except (TypeError, KeyError) as error:
            raise damaged(str(self.folder / FILE), f"its candidates cannot be read ({error})") from None
        return {candidate.name: candidate for candidate in found}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return self.record.get("rounds", [])

    def score(self, name: str, number: int) -> float | None:
        """Top-1 of a candidate in a round, in percent; None where it was not in it."""
        scores = self.rounds[number].get("scores", {}) if number < len(self.rounds) else {}
        return scores[name][0] if name in scores else None

    def outcome(self, name: str) -> str:
        """What became of a candidate."""
        if name == self.record.get("winner") and self.record.get("confirmation"):
            return "trained in full"
        last = max((number for number, entry in enumerate(self.rounds) if name in entry["names"]), default=None)
        if last is None:
            return "waits"
        if reason := self.rounds[last].get("failures", {}).get(name):
            return f"failed: {reason}"
        if "scores" not in self.rounds[last]:
            return "is trained"
        return f"round {last + 1}"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells: a row per candidate, the furthest first."""
        head = ["candidate", *(f"{entry['seconds']:.0f} s" for entry in self.rounds), "outcome"]
        names = list(self.candidates)
        reached = {name: [self.score(name, number) for number in range(len(self.rounds))] for name in names}

        def order(name: str) -> tuple:
            known = [score for score in reached[name] if score is not None]
            return (-len(known), -known[-1] if known else 0.0)

        cells = [
            [name, *("" if score is None else f"{score:.2f}" for score in reached[name]), self.outcome(name)]
            for name in sorted(names, key=order)
        ]
        return head, cells

    def to_json(self) -> str:
        """Everything, with where the results lie."""
        winner = self.winner
        places = {
            "folder": str(self.folder),
            "winner_run": str(winner.path) if winner else None,
            "recipe": str(self.folder / "recipe.yaml") if winner else None,
            "page": str(self.folder / "improve.html"),
        }
        return json.dumps({"better": self.better, **places, **self.record}, indent=1, ensure_ascii=False)


class Clock:
    """What is left of the whole budget, over all processes that worked on it. What a killed one did since its last beat is not counted."""

    def __init__(self, folder: Path, budget_seconds: float, began: float):
        self.path, self.budget, self.began = folder / CLOCK, budget_seconds, began
        self.before = read_json(self.path, ClockRecord)["spent_seconds"] if self.path.exists() else 0.0
        self.lock, self.beaten = threading.Lock(), began

    @property
    def spent(self) -> float:
        return self.before + time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.budget - self.spent

    def beat(self, *, now: bool = False) -> None:
        """Write the time down, every few seconds; runs that are trained at the same time all come here."""
        with self.lock:
            if not now and time.monotonic() - self.beaten < BEAT_SECONDS:
                return
            self.beaten = time.monotonic()
            write_text(self.path, json.dumps({"spent_seconds": round(self.spent, 3)}), ours=is_clock)


class Beating(Callback):
    """Passes everything on, and lets the clock beat in every step."""

    def __init__(self, inner: Callback, clock: Clock):
        self.inner, self.clock = inner, clock

    def log(self, message: str) -> None:
        self.inner.log(message)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self.inner.on_progress(task, done, total)

    def on_start(self, facts: dict) -> None:
        self.inner.on_start(facts)

    def on_step(self, epoch: int, step: int, steps: int, loss: float, images_per_second: float) -> None:
        self.clock.beat()
        self.inner.on_step(epoch, step, steps, loss, images_per_second)

    def on_length(self, epochs: float) -> None:
        self.inner.on_length(epochs)

    def on_validation(self, record: dict, timing: dict) -> None:
        self.inner.on_validation(record, timing)

    def on_end(self, run: Any) -> None:
        self.inner.on_end(run)


class BeatingStudy(Beating, StudyCallback):
    """The same for a study."""

    inner: StudyCallback

    def on_study_start(self, runs: int, finished: int) -> None:
        self.inner.on_study_start(runs, finished)

    def on_run_start(self, label: str) -> Callback:
        return Beating(self.inner.on_run_start(label), self.clock)

    def on_run_end(self, label: str, outcome: str) -> None:
        self.clock.beat(now=True)
        self.inner.on_run_end(label, outcome)
