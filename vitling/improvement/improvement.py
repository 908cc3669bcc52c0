"""improve(run, budget): try what could make it better on its own data, train the best in full, and prove it."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import torch

from vitling.callbacks import ImproveCallback
from vitling.data.pipeline.training_data import open_recipe_data
from vitling.data.sources.dataset import Dataset
from vitling.data.sources.images import Images
from vitling.diagnose.paged import write_trained
from vitling.diagnose.run_page import update_run_page
from vitling.diagnose.run_parts import PAGE, improvement_folder
from vitling.errors import UserError
from vitling.evaluation.predictions import open_own_data
from vitling.files import check_path, refuse_foreign
from vitling.improvement.bracket import Bracket, plan_bracket, survivors
from vitling.improvement.candidates import BASELINE, Candidate, Omitted, Situation, combine, propose, relative_cost
from vitling.improvement.confirmation import confirm
from vitling.improvement.holdout import Holdout, hold_out
from vitling.improvement.page import improvement_page
from vitling.improvement.record import PARTS, START, BeatingStudy, Clock, Improvement
from vitling.improvement.symptoms import Symptoms, read_symptoms
from vitling.planning.machine import this_machine
from vitling.planning.plan import plan
from vitling.planning.survey import survey_data
from vitling.recipes import Recipe, from_dict, override, save_recipe, scale_epochs, to_dict
from vitling.reports.page import Link, is_page, write_page
from vitling.runs.opening import find_kind
from vitling.runs.run import Run, load_run
from vitling.runs.surroundings import environment
from vitling.studies.engines import create_engine
from vitling.studies.study import Study, study
from vitling.training.beginning import train
from vitling.training.knowledge import find_knowledge, has_learnt_from
from vitling.training.settings import Settings
from vitling.validation.values import Range, check

START_SHARE = 0.15  # of the budget, for the first run where there is none
AGAIN_SHARE = 0.25  # of the budget, at most, for training the given run again without the images that confirm
SEARCH_SHARE = 0.5  # of what is left then, for trials; the rest is for training the best of them in full
LEAST_ROUND_SECONDS = 6.0
LEAST_ROUND_EPOCHS = 2
LEAST_FINAL_EPOCHS = 5  # of what is worth trying
OVERHEAD_SECONDS, CHILD_SECONDS = 0.5, 5.0  # of a trial, besides its training: here, and in a process of its own
END_SECONDS, END_SHARE = 4.0, 0.01  # for confirming and for the page
RUN_PAGES_SECONDS = 6.0  # for the pages of the runs that it is about
LONGER = 1.2  # times as long as the run
LONGER_NAME = "longer"
MEASURED_COST = 30  # a network so many times as expensive is not worth measuring
LEAST_BUDGET = 20.0


class TooLittleTime(UserError):
    """The budget has no room for any trial."""


@dataclass
class _Start:
    """What is to be improved: its recipe on the whole data, the data, its precision, and the run where there is one."""

    recipe: Recipe
    dataset: Dataset
    precision: str
    run: Run | None


def improve(
    source: str | Path,
    budget_seconds: float,
    out: str | Path | None = None,
    *,
    changes: Sequence[str] = (),
    seeds: int = 1,
    jobs: int = 1,
    engine: str = "local",
    gpus_per_trial: float | None = None,
    init: str = "",
    settings: Settings | None = None,
    callback: ImproveCallback | None = None,
) -> Improvement:
    """Find out on a run's own data what makes it better; train that in full into its own run; and prove it on images held back for that.

    `source` is a finished run, or data: then a first run is planned (`changes` are settings of its recipe) and trained. The budget is wall time for
    all of it. `seeds` is how many each trial is trained with, `jobs` how many are trained at a time, on which
    `engine` (as of `study`) and with how many GPUs each; `init` names pre-trained weights to try.
    The same call again goes on where it was interrupted.
    """
    settings, callback = settings or Settings(), callback or ImproveCallback()
    source = check_path(source) if isinstance(source, Path) else source
    is_run = (check_path(source) / "run.json").exists()
    if is_run:
        load_run(source).require_classes("an improvement is confirmed by")
    _check_arguments(source, is_run, budget_seconds, changes, seeds, jobs, init, settings)
    trials_on = create_engine(engine, gpus_per_trial)
    folder = Path(out) if out else _default_folder(source, is_run)
    if is_run and folder.resolve().is_relative_to(Path(source).resolve()):
        raise UserError(f"{folder} lies in the run that is improved, which stays as it is; choose another folder.")
    asked = {
        "source": str(Path(source).resolve()) if is_run else str(source),
        "budget_seconds": float(budget_seconds),
        "changes": list(changes),
        "seeds": seeds,
        "init": init,
    }
    place = Run(folder)
    with place.locked():
        state = Improvement(folder)
        state.claim(asked)
        refuse_foreign(folder / "improve.html", ours=is_page)
        if state.finished:
            callback.log(f"{folder} is finished already.")
            return state
        with trials_on as found:
            found.open(folder)  # before anything is trained: there may be no such cluster
        place.remove_leftovers()
        clock = Clock(folder, budget_seconds, settings.began)
        process = _Process(state, clock, is_run, str(source), seeds, jobs, init, list(changes), settings, callback)
        process.asked = asked
        process.engine = dict(engine=engine, gpus_per_trial=gpus_per_trial)
        process.in_children = jobs > 1 or not found.is_here
        if not found.is_here:  # what this machine has to share is none of theirs
            process.trial_settings = replace(process.trial_settings, threads=settings.threads or 1)
        try:
            process.run()
        except TooLittleTime:
            state.remove()  # a larger budget would be refused by what this one left
            raise
        finally:
            if (folder / "improve.json").exists():
                clock.beat(now=True)
    return state


class _Process:
    """The steps, each of which is found again in the record when the same call goes on."""

    asked: dict[str, Any]
    engine: dict[str, Any]  # where trials are trained
    in_children: bool  # rather than in this process

    def __init__(
        self,
        state: Improvement,
        clock: Clock,
        is_run: bool,
        source: str,
        seeds: int,
        jobs: int,
        init: str,
        changes: list[str],
        settings: Settings,
        callback: ImproveCallback,
    ):
        self.state, self.clock, self.is_run, self.source = state, clock, is_run, source
        self.seeds, self.jobs, self.init, self.changes = seeds, jobs, init, changes
        threads = settings.threads or (max(1, torch.get_num_threads() // jobs) if jobs > 1 else None)
        self.settings, self.trial_settings = settings, replace(settings, threads=threads, page=False)
        self.callback = callback
        self.beating = BeatingStudy(callback, clock)

    def run(self) -> None:
        start = self._open()
        if not self.settings.precision:
            self.settings, self.trial_settings = (
                replace(settings, precision=start.precision) for settings in (self.settings, self.trial_settings)
            )
        holdout, images = self._hold_out(start)
        run = self._start_run(start, holdout)
        self._choose_candidates(start, holdout, images, run)
        winner = self._run_rounds(holdout)
        if winner is None:
            tried = len({name for entry in self.state.rounds for name in entry["names"]}) - 1
            who = "the one candidate did not beat" if tried == 1 else f"none of {tried} candidates beat"
            sentence = f"nothing was better: {who} the run's own recipe on the images that choose"
        else:
            sentence = self._finish(start, holdout, images["confirm"], run, winner)
        self.clock.beat(now=True)
        self.state.record["spent_seconds"] = round(self.clock.spent, 1)
        self.state.record["sentence"] = sentence
        page = self.state.folder / "improve.html"
        write_page(improvement_page(self.state), page)
        self.state.save()
        self.callback.on_change(self.state)
        self._write_run_pages(start.run, page)
        self.clock.beat(now=True)
        self.state.save(spent_seconds=round(self.clock.spent, 1))
        write_page(improvement_page(self.state), page)  # now with the way to theirs

    def _write_run_pages(self, given: Run | None, page: Path) -> None:
        """The pages of the runs that this is about; the given one's again, with what came of it."""
        reading = self.settings.reading
        for run in (self.state.winner, Run(self.state.folder / "start")):
            if run is not None and self.settings.page:
                write_trained(run, reading=reading, callback=self.callback)
        if given is not None and (given.path / PAGE).exists():
            default = page.absolute().parent == improvement_folder(given)
            link = () if default else [Link.between("improvement", page, given.path / PAGE)]
            try:
                update_run_page(given, links=link, reading=reading, callback=self.callback)
            except UserError as error:
                self.callback.log(f"the page of {given.path.name} was not written again: {error}")

    # -- what there is ---------------------------------------------------------------------------------------------

    def _open(self) -> _Start:
        """The recipe and the data; where data was given, what is planned for a part of the budget."""
        reading, record = self.settings.reading, self.state.record
        if self.is_run:
            run = load_run(self.source)
            run.refuse_ensemble("an improvement begins with")
            if not run.finished:
                raise UserError(f"{run.path} is not finished; repeat the command that began it, then improve it.")
            run.class_names  # noqa: B018  (one without labels has none, and says so)
            dataset = open_own_data(run, reading)
            recipe = run.recipe
            if run.part > 1:  # trained further: as long as all of it
                recipe = scale_epochs(recipe, max(1, round(run.info["epochs_trained"])))
            _refuse_knowledge(recipe, dataset)
            return _Start(recipe, dataset, run.info.get("precision", "no"), run)
        if "recipe" in record:
            recipe = from_dict(record["recipe"])
            return _Start(recipe, open_recipe_data(recipe, reading), record.get("precision", "no"), None)
        seconds = START_SHARE * self.clock.budget
        planned = plan(
            self.source,
            self.changes,
            budget_seconds=seconds,
            brief=True,
            threads=self.settings.threads,
            precision=self.settings.precision,
            reading=reading,
            callback=self.callback,
        )
        self.callback.log(f"planned: {planned.recipe.model} for a first run of {seconds:.0f} s")
        dataset = open_recipe_data(planned.recipe, reading, opened=planned.dataset)
        _refuse_knowledge(planned.recipe, dataset)
        return _Start(planned.recipe, dataset, planned.precision, None)

    def _hold_out(self, start: _Start) -> tuple[Holdout, dict[str, Images]]:
        """Divide the images, the same way whenever it is asked."""
        record = self.state.record
        again = record["may_train_again"] if "may_train_again" in record else self._may_train_again(start)
        holdout, images = hold_out(start.dataset, start.recipe, self.state.folder / PARTS, may_train_again=again)
        if "may_train_again" not in record:
            division = holdout.division
            held = {"note": division.note, "again": division.again, **holdout.counts}
            self.state.save(
                vitling=environment()["vitling"],
                asked=self.asked,
                may_train_again=again,
                recipe=to_dict(start.recipe),
                precision=start.precision,
                holdout=held,
                environment=environment(),
            )
            self.callback.log(division.note)
        return holdout, images

    def _may_train_again(self, start: _Start) -> bool:
        """Whether there is time to train the given run again without the images that confirm; a first run is trained anyway."""
        return start.run is None or start.run.info["wall_seconds"] <= AGAIN_SHARE * self.clock.budget

    def _start_run(self, start: _Start, holdout: Holdout) -> Run:
        """The run to be compared with: the given one, or one that has not learnt from the images that confirm."""
        if start.run and not holdout.division.again:
            return start.run
        run = Run(self.state.folder / START)
        if run.finished:
            return run
        what = "the run's own recipe again, without the images that confirm" if start.run else "a first run"
        self.callback.log(f"training {what}")
        budget = None if start.run else round(START_SHARE * self.clock.budget, 1)
        label = "start"
        settings = replace(self.settings, budget_seconds=budget, began=time.monotonic())
        self.beating.on_study_start(1, 0)
        train(holdout.final(start.recipe), run.path, settings=settings, callback=self.beating.on_run_start(label))
        self.beating.on_run_end(label, f"{100 * run.info['best']['val_top1']:.2f} %")
        return run

    # -- what to try -----------------------------------------------------------------------------------------------

    def _choose_candidates(self, start: _Start, holdout: Holdout, images: dict[str, Images], run: Run) -> None:
        """The candidates that are possible and affordable, how many rounds they go through, and what is left out."""
        if "bracket" in self.state.record:
            return
        # What picks the epoch of the final training the given run may have learnt from; what confirms stays closed.
        unseen = images["validate"] if holdout.division.again or len(holdout.division.validate.val) else None
        symptoms = read_symptoms(run, images["learn"], unseen, reading=self.settings.reading, callback=self.callback)
        for line in symptoms.sentences():
            self.callback.log(line)
        recipe = override(start.recipe, {"img_size": run.preprocessing().size, "channels": start.dataset.channels})
        situation = Situation(
            recipe,
            run.preprocessing().size,
            symptoms,
            survey_data(start.dataset, brief=True),
            steps=int(run.info.get("steps_trained", 0)),
            init=self.init,
            init_reason=_why_not_from(self.init, start.dataset),
        )
        found, omitted = propose(situation)
        final = (1 - SEARCH_SHARE) * self._for_training()
        baseline, left_out = _baseline(symptoms, final)
        omitted += left_out
        found, unaffordable = self._affordable(found, situation, holdout.counts["final_train"], final)
        omitted += unaffordable
        bracket, found, no_room = self._plan(baseline, found)
        omitted += no_room
        self.state.save(
            recipe=to_dict(recipe),
            start={"run": str(run.path), "seconds": symptoms.seconds, "again": holdout.division.again},
            symptoms=asdict(symptoms),
            observations=symptoms.sentences(),
            candidates=[candidate.to_dict() for candidate in (baseline, *found)],
            omitted=[asdict(entry) for entry in omitted],
            bracket=asdict(bracket),
            images_per_second=round(self.rate, 1),
            rounds=[],
        )
        for candidate in (baseline, *found):
            self.callback.log(f"to try: {candidate.name}: {candidate.reason}")
        for entry in omitted:
            self.callback.log(f"left out: {entry.name}: {entry.reason}")

    def _for_training(self) -> float:
        """What is left of the budget for trials and the final training."""
        pages = RUN_PAGES_SECONDS if self.settings.page else 0.0
        return self.clock.left - pages - END_SECONDS - END_SHARE * self.clock.budget

    def _affordable(
        self, candidates: list[Candidate], situation: Situation, images: int, final: float
    ) -> tuple[list[Candidate], list[Omitted]]:
        """Those that see the training images often enough in the final training; another network is timed for a few steps."""
        machine = this_machine(self.trial_settings.threads, self.trial_settings.precision)
        shape = (situation.survey.channels, *situation.size)
        own = machine.images_per_second((situation.recipe, situation.model, shape))
        self.rate, self.images = own, images
        kept, omitted = [], []
        for candidate in candidates:
            recipe = candidate.apply(situation.recipe)
            cost = relative_cost(recipe, situation)
            rate = own / cost
            same_network = (recipe.model, recipe.model_args, recipe.img_size) == (
                situation.recipe.model,
                situation.recipe.model_args,
                situation.recipe.img_size,
            )
            if not same_network and recipe.method == situation.recipe.method and cost < MEASURED_COST:
                size = situation.size if recipe.img_size is None else recipe.img_size
                size = size if isinstance(size, tuple) else (size, size)
                network = situation.build(recipe, size)
                rate = machine.images_per_second((recipe, network, (situation.survey.channels, *size)))
            if images / rate * LEAST_FINAL_EPOCHS > final:
                reason = f"an epoch takes about {images / rate:.0f} s here, and the final training has {final:.0f} s"
                omitted.append(Omitted(candidate.name, reason))
            else:
                kept.append(candidate)
        return kept, omitted

    def _plan(self, baseline: Candidate, found: list[Candidate]) -> tuple[Bracket, list[Candidate], list[Omitted]]:
        """How many of the candidates the time allows: the first ones of the list."""
        seconds = SEARCH_SHARE * self._for_training()
        overhead = CHILD_SECONDS if self.in_children else OVERHEAD_SECONDS
        epochs = LEAST_ROUND_SECONDS / 2 + LEAST_ROUND_EPOCHS * self.images / self.rate
        bracket = None
        for least in (max(LEAST_ROUND_SECONDS, epochs), LEAST_ROUND_SECONDS):
            bracket = bracket or plan_bracket(
                1 + len(found), seconds, least_seconds=least, seeds=self.seeds, jobs=self.jobs, overhead=overhead
            )
        if not found:
            raise TooLittleTime(f"there is nothing to try in {self.clock.budget:.0f} s; raise the budget.")
        if bracket is None:
            raise TooLittleTime(
                f"a budget of {self.clock.budget:.0f} s leaves {max(seconds, 0):.0f} s for trials, and two of them need "
                f"{2 * self.seeds * (LEAST_ROUND_SECONDS + overhead) / min(self.jobs, 2 * self.seeds):.0f} s; raise the budget."
            )
        room = bracket.sizes[0] - 1
        reason = f"the budget has room for {room} candidate{'s' * (room != 1)}, and less is expected of this one"
        return bracket, found[:room], [Omitted(candidate.name, reason) for candidate in found[room:]]

    # -- trying ----------------------------------------------------------------------------------------------------

    def _run_rounds(self, holdout: Holdout) -> Candidate | None:
        """Halve the candidates until one is left; None where that is the run's own recipe, and it would be trained no longer."""
        record = self.state.record
        bracket = Bracket(**{**record["bracket"], "sizes": tuple(record["bracket"]["sizes"])})
        candidates = self.state.candidates
        baseline = next(iter(candidates))
        names = list(candidates)
        for number in range(len(bracket.sizes)):
            if number == len(self.state.rounds):
                overhead = CHILD_SECONDS if self.in_children else OVERHEAD_SECONDS
                if number == 0:
                    record["search_until"] = self.clock.spent + SEARCH_SHARE * self._for_training()
                left = record["search_until"] - self.clock.spent
                seconds = max(round(bracket.round_seconds(number, left, overhead), 1), LEAST_ROUND_SECONDS / 2)
                self.state.record["rounds"].append({"seconds": seconds, "names": names})
                self.state.save()
            entry = self.state.rounds[number]
            if "scores" not in entry:
                self.callback.on_change(self.state)
                entry |= self._run_round(number, entry, holdout)
                self.state.save()
                self.callback.on_change(self.state)
            if baseline not in entry["scores"]:
                raise UserError(f"{baseline}: {entry['failures'].get(baseline, 'it was not trained')}")
            size = bracket.sizes[number + 1] if number + 1 < len(bracket.sizes) else 2
            scores = {name: tuple(score) for name, score in entry["scores"].items()}
            names = survivors(scores, baseline, size)
            if number + 1 < len(bracket.sizes) and number + 1 == len(self.state.rounds):
                names = self._with_combination(names, scores, baseline, size)
            if len(names) < 2:
                break
        best = names[1] if len(names) > 1 and scores[names[1]] > scores[baseline] else baseline
        if best == baseline and baseline != LONGER_NAME:
            record["winner"] = None
            return None
        record["winner"] = best
        return self.state.candidates[best]

    def _with_combination(
        self, names: list[str], scores: dict[str, tuple[float, ...]], baseline: str, size: int
    ) -> list[str]:
        """The two best together take the last place of the next round, where both were better than the baseline."""
        better = [name for name in names[1:] if scores[name] > scores[baseline]]
        if size < 3 or len(better) < 2:
            return names
        candidates = self.state.candidates
        both = combine(candidates[better[0]], candidates[better[1]])
        if both is None:
            return names
        self.state.record["candidates"].append(both.to_dict())
        self.callback.log(f"to try: {both.name}: {both.reason}")
        return [*names[: size - 1], both.name]

    def _run_round(self, number: int, entry: dict[str, Any], holdout: Holdout) -> dict[str, Any]:
        """Train a round: a study of equal wall time, compared on the images that choose."""
        base, candidates = from_dict(self.state.record["recipe"]), self.state.candidates
        recipes = {name: holdout.trial(candidates[name].apply(base)) for name in entry["names"]}
        done = study(
            recipes,
            self.state.folder / f"round-{number + 1}",
            seeds=[base.seed + extra for extra in range(self.seeds)],
            budget_seconds=entry["seconds"],
            by_clock=True,
            split="val",
            jobs=self.jobs,
            **self.engine,
            settings=self.trial_settings,
            callback=self.beating,
        )
        failures: dict[str, str] = {}
        for (name, _, _), reason in done.failures.items():
            failures.setdefault(name, reason)
        scores = {name: score for name in done.names if name not in failures and (score := _score(done, name))}
        return {"scores": scores, "failures": failures}

    # -- the best, in full -----------------------------------------------------------------------------------------

    def _finish(self, start: _Start, holdout: Holdout, images: Images, run: Run, winner: Candidate) -> str:
        """Train the winner on all that may be learnt from, for the rest of the time; then look at the images that confirm."""
        record, folder = self.state.record, self.state.folder
        if "final_seconds" not in record:
            confirming = (
                len(images) / record["images_per_second"]
            )  # two forward passes, a third of a step each, and reading
            self.state.save(final_seconds=round(max(self._for_training() - confirming, LEAST_ROUND_SECONDS), 1))
        base = from_dict(record["recipe"])
        recipe, best = holdout.final(winner.apply(base)), Run(folder / "winner")
        label = f"winner: {winner.name}"
        self.callback.log(f"training {winner.name} in full, for {record['final_seconds']:.0f} s")
        settings = replace(self.settings, budget_seconds=record["final_seconds"], began=time.monotonic())
        self.beating.on_study_start(1, 0)
        train(recipe, best.path, settings=settings, callback=self.beating.on_run_start(label))
        self.beating.on_run_end(label, f"{100 * best.info['best']['val_top1']:.2f} %")
        found = confirm(best, run, images, reading=self.settings.reading, callback=self.callback)
        self.state.save(confirmation=asdict(found))
        own = to_dict(start.recipe)
        kept = ("data", "folds", "fold", "fraction", "fraction_rule", "test_split", "on_bad_image", "val_fraction")
        save_recipe(override(best.recipe, {key: own[key] for key in kept}), folder / "recipe.yaml")
        return found.sentence(winner.name)


def _score(done: Study, name: str) -> tuple[float, float] | None:
    """Mean over the seeds: top-1 in percent, and the loss, which breaks a tie."""
    best = [done.runs[name, 1.0, seed].info["best"] for seed in done.seeds if done.runs[name, 1.0, seed].finished]
    if len(best) < len(done.seeds):
        return None
    return 100 * mean(one["val_top1"] for one in best), -mean(one["val_loss"] for one in best)


def _baseline(symptoms: Symptoms, final: float) -> tuple[Candidate, list[Omitted]]:
    """The run's own recipe, which every gain is measured against; where the time allows, it is what 'longer' means."""
    if final > LONGER * symptoms.seconds:
        falling = ", and its training loss was still falling" if symptoms.loss_falls else ""
        reason = f"the run's own recipe for about {final:.0f} s; it had {symptoms.seconds:.0f} s{falling}"
        return Candidate(LONGER_NAME, {}, reason), []
    reason = (
        f"the budget leaves about {max(final, 0):.0f} s for a full training, and the run had {symptoms.seconds:.0f} s"
    )
    return Candidate(BASELINE, {}, "the run's own recipe, to compare with"), [Omitted(LONGER_NAME, reason)]


def _refuse_knowledge(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse a recipe that learns from something which has seen the images that would be held out, and labels that are no classes."""
    dataset.target.require_classes("an improvement is confirmed by", dataset.name)
    if recipe.unlabelled:
        raise UserError(
            f"the run learns from the images in unlabelled={recipe.unlabelled} first, and those that would be held out may be among them; "
            "improve a run that learns without it."
        )
    if reason := find_knowledge(recipe, dataset):
        raise UserError(
            f"{reason}; improve a run that learns without it"
            + ", or with method_args.relabel=auto." * ("maps" in reason)
        )


def _why_not_from(source: str, dataset: Dataset) -> str:
    """Why weights cannot be begun with: a run on the same data has learnt from the images that would confirm."""
    same = bool(source) and has_learnt_from(source, dataset)
    return f"{source} has learnt from the same images, those that would be held out among them" if same else ""


def _default_folder(source: str | Path, is_run: bool) -> Path:
    path = Path(source)
    if is_run:
        return path.resolve().with_name(f"{path.resolve().name}-improved")
    return Path("runs") / f"{path.stem.replace(':', '-')}-improved"


def _check_arguments(
    source: str | Path,
    is_run: bool,
    budget_seconds: float,
    changes: Sequence[str],
    seeds: int,
    jobs: int,
    init: str,
    settings: Settings,
) -> None:
    check(budget_seconds, Annotated[float, Range(LEAST_BUDGET, 1e9)], "budget_seconds")
    check(seeds, Annotated[int, Range(1, 100)], "seeds")
    check(jobs, Annotated[int, Range(1, 512)], "jobs")
    if settings.budget_seconds:
        raise UserError("an improvement's budget is its own budget_seconds; leave that of the settings out.")
    if is_run and changes:
        raise UserError(f"{source} is a run, whose recipe is given; settings ({changes[0]}) are for data.")
    if init:
        find_kind(init)
