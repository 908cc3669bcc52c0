"""The run directory: what it holds, how it is claimed, checkpointed, resumed and read back.

recipe.yaml        the resolved recipe; training from it repeats the run. recipe-2.yaml ...: of the parts that were trained further
run.json           class names, preprocessing, data fingerprint, environment, why it stopped, wall time
metrics.jsonl      a line per validation; equal in a resumed and an uninterrupted run
timing.jsonl       the same lines' speed and wall time, which never repeat exactly
gradients.jsonl    gradient norms per layer in the last step before each validation
budget.jsonl       each look at the clock of a run with a budget, and the step at which it was to end from then on
best/  last/       model.safetensors and config.json, which timm loads as "local-dir:RUN/best"
companions/NAME    the same of a network that was trained beside the model, such as an agent, as it was when the model was best
fold-1/ ...        of an ensemble: the runs that it was made of, each with an own part of the images held out
reconstructions.png, neighbours.png   of a run that learns without labels: what it has learnt, as a picture
unlabelled.json    of a run with unlabelled=: which images its first stage learns from
pretraining/       of a run with unlabelled=: the run of its first stage
calibration.json   the temperature of calibrated probabilities, once fitted
report.html        the page of the run
checkpoint/        what resuming needs: the two newest states and a manifest with their checksums
"""

import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

import vitling
from vitling.data.bins import Bins
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.targets import CLASSES, SCORES, Kind, Score, Target
from vitling.errors import UserError, did_you_mean, first_line
from vitling.files import append_text, check_path, remove_leftovers, what_else, write_bytes, write_text
from vitling.models.weights import save_for_timm
from vitling.plugins import changed_plugins, plugin_records, require_plugins
from vitling.recipes import Recipe, from_dict, read_recipe, save_recipe, to_dict
from vitling.recipes.earlier import complete
from vitling.reports.card import render_card
from vitling.runs.asked import difference, flat, is_digest_of, jsonable
from vitling.runs.metadata import ModelMetadata
from vitling.runs.records import (
    VALIDATIONS,
    BudgetRecord,
    CheckpointEntry,
    FirstBudgetRecord,
    GradientRecord,
    RunRecord,
    TimingRecord,
    UnlabelledRecord,
)
from vitling.runs.remote import as_url, open_mirror
from vitling.runs.timm_folder import PLUGINS, load_network, read_saved_metadata
from vitling.validation.documents import Record, damaged, read_document, read_json, read_json_lines
from vitling.validation.values import check, show

KEPT_CHECKPOINTS = 2
CHECKPOINT = re.compile(r"step-\d{9,}(-part-\d+)?\.pt")
LOCK = ".vitling.lock"  # a name that nobody else gives: whatever is called so is emptied, and removed in the end
LOGS = (
    "metrics.jsonl",
    "timing.jsonl",
    "gradients.jsonl",
    "budget.jsonl",
)  # budget.jsonl is cut only where a run begins anew
WEIGHTS = ("best", "last")
COMPANIONS = "companions"
FOLD = "fold-{}"  # counted from 1
FIRST_STAGE = "pretraining"
UNLABELLED = "unlabelled.json"  # which images a first stage without labels learns from


class Occupied(UserError):
    """Another process has locked the run."""


class Run:
    """One run directory."""

    # The evaluation's Predictions of the best weights on the validation split, right after training in the same process: the
    # page and the calibration then open nothing again. Never written to disk, nor pickled.
    validation: Any = None
    held = False  # whether this object has locked it

    def __init__(self, path: str | Path):
        url = as_url(path)
        self.mirror = open_mirror(url) if url else None
        self.path = self.mirror.folder if self.mirror else check_path(path)

    def __getstate__(self) -> dict:
        return {"path": self.path, "mirror": None}

    @property
    def place(self) -> str | Path:
        """What it is called: on other storage, `path` is only where it is worked on."""
        return self.mirror.url if self.mirror else self.path

    def fetch(self, *, checkpoints: bool = True) -> None:
        """Bring a run on other storage here, without its checkpoints where nobody trains it further. Of a run here, nothing."""
        if self.mirror is None:
            return
        if self.held:
            self.mirror.fetch(checkpoints=checkpoints)
            return
        with (
            suppress(Occupied),
            self.locked(publishing=False),
        ):  # else it is trained on this machine, and newer here than there
            self.mirror.fetch(checkpoints=checkpoints)

    def publish(self) -> None:
        """Bring what was written here to the storage where the run is. Of a run here, nothing.

        While a run is trained, whoever trains it alone publishes it.
        """
        if self.mirror and (self.held or self.finished):
            self.mirror.publish()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: what it is, how far it got, and its curve."""
        try:
            info, records = self.info, self.metrics() if (self.path / "metrics.jsonl").exists() else []
            recipe = self.recipe if (self.path / "recipe.yaml").exists() else None
        except UserError as error:  # a damaged run is worth a look as well
            return render_card(repr(self), notes=[str(error)])
        title = f"{recipe.model} on {info.get('data', {}).get('name', recipe.data)}" if recipe else repr(self)
        facts: dict[str, object] = {
            "folder": self.path,
            "status": info.get("stopped") or info.get("status", "not begun"),
        }
        if "parameters" in info:
            facts["parameters"] = f"{info['parameters']:,}"
        if not records:
            return render_card(title, facts)
        if self.unlabelled:
            facts["validation loss"] = f"{records[-1]['val_loss']:.3f} in epoch {records[-1]['epoch']}, without labels"
            return render_card(title, facts)
        score = self.score
        best = max(records, key=lambda record: (record[score.recorded], -record["val_loss"]))
        facts[f"best validation {score.name}"] = f"{score.show(best[score.recorded])} in epoch {best['epoch']}"
        if len(records) == 1:  # a dot is no curve
            return render_card(title, facts)
        from vitling.reports import plots  # matplotlib takes a while to import

        epochs = [record["epoch"] for record in records]
        named = f"validation {score.name}"
        curve = {named: [record[score.recorded] for record in records]}
        svg = plots.lines(epochs, curve, x="epoch", y=named, unit=min(curve[named]) >= 0)  # a skill may be below 0
        return render_card(title, facts, svg=svg, caption=f"{named.capitalize()} over the epochs.")

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        return self.part_recipe(1)

    @property
    def info(self) -> Record:
        """What run.json says; a key that should be there and is not is an error with a reason."""
        path = self.path / "run.json"
        info = read_json(path, RunRecord) if path.exists() else Record()
        info.source = str(path)
        return info

    @property
    def asked(self) -> dict | None:
        """What the command asked for that began it, as `asked_for` or `asked_plan` say it today."""
        asked = self.info.get("asked")
        return {**asked, "recipe": complete(asked["recipe"])} if asked and "recipe" in asked else asked

    @property
    def unlabelled(self) -> bool:
        """Whether it learns without labels: its model has no classifier."""
        return self.info.get("unlabelled", False)

    @property
    def first_stage(self) -> "Run | None":
        """The run inside it that learns without labels first, where there is one."""
        return Run(self.path / FIRST_STAGE) if (self.path / FIRST_STAGE / "run.json").exists() else None

    @property
    def uses_test_images(self) -> bool:
        """Whether it learns, without labels, from images of a test split."""
        return self.unlabelled and self.info["data"].get("with_test", False)

    @property
    def validation_note(self) -> str:
        """What is to be said of its validation number, where what it learnt from knows those images; else nothing."""
        known = self.info["data"].get("val_known")
        reason = (
            "has learnt from the validation images, so their number is too good; a test split compares it with others"
        )
        return f"{known} {reason}" if known else ""

    @property
    def class_names(self) -> list[str]:
        if self.unlabelled:
            raise UserError(
                f"{self.path} was trained without labels, so its model knows no classes; train a classifier from it first: "
                f"vitling train DATA init={self.path}"
            )
        names = self.info["class_names"]
        if not names or len(set(names)) < len(names):
            raise damaged(str(self.path / "run.json"), "class_names must be one or more names that differ")
        return names

    @property
    def kind(self) -> Kind:
        """What the labels are that it learnt from; in files of classes that is not written."""
        return self.info.get("labels", "classes")

    @property
    def score(self) -> Score:
        """The number by which its best weights were chosen."""
        return SCORES[self.kind]

    @property
    def target(self) -> Target:
        """What its model gives for an image."""
        if self.unlabelled:
            return CLASSES
        bins = Bins.from_dict(self.info["bins"], str(self.path / "run.json")) if self.kind == "numbers" else None
        return Target(self.kind, tuple(self.class_names), bins)

    def require_classes(self, what: str) -> None:
        """For what knows images of one class each; `what` begins the sentence."""
        if self.kind not in ("classes", "grades"):
            self.target.require_classes(what, str(self.path))

    @property
    def finished(self) -> bool:
        return self.info.get("status") == "finished"

    @property
    def members(self) -> list["Run"]:
        """Of an ensemble, the runs that it was made of; empty for any other run."""
        return [Run(self.path / FOLD.format(number + 1)) for number in range(self.info.get("members", 0))]

    def refuse_ensemble(self, what: str) -> None:
        """For what needs one network and its course; `what` begins the sentence."""
        if members := self.members:
            raise UserError(
                f"{what} one network, and {self.path} is an ensemble of {len(members)}; give {members[0].path}."
            )

    @property
    def data_fingerprint(self) -> str | None:
        """Of the data that it was trained on, where that is recorded."""
        return self.info.get("data", {}).get("fingerprint")

    @property
    def image_fingerprint(self) -> str | None:
        """The same without the groups, which earlier versions did not record."""
        return self.info.get("data", {}).get("image_fingerprint")

    def weights_digest(self, which: str = "best") -> str:
        """SHA-256 of a file of weights; empty where there is none yet."""
        path = self.path / which / "model.safetensors"
        return _sha256(path) if path.exists() else ""

    def preprocessing(self) -> Preprocessing:
        try:
            return Preprocessing.from_dict(self.info["preprocessing"])
        except UserError as error:
            raise damaged(str(self.path / "run.json"), str(error).rstrip(".")) from None

    def metrics(self) -> list[dict]:
        """The records of metrics.jsonl; a last line that a crash cut short is left out."""
        kind = UnlabelledRecord if self.unlabelled else VALIDATIONS[self.kind]
        return read_json_lines(self.path / "metrics.jsonl", kind)

    def timing(self) -> list[dict]:
        """The records of timing.jsonl: speed and wall time of each validation."""
        return read_json_lines(self.path / "timing.jsonl", TimingRecord)

    def validations(self) -> list[tuple[dict, dict]]:
        """What each validation measured, with its timing. One that has validated has both."""
        metrics, timing = self.metrics(), self.timing()
        if not metrics or [record["epoch"] for record in metrics] != [record["epoch"] for record in timing]:
            raise UserError(
                f"metrics.jsonl and timing.jsonl of {self.path} are not of the same validations ({len(metrics)} and {len(timing)} "
                "lines); restore them from a copy."
            )
        return list(zip(metrics, timing, strict=True))

    def gradients(self) -> list[dict]:
        """The records of gradients.jsonl: the step, and a norm per layer, which a loss scaler can make infinite."""
        return read_json_lines(self.path / "gradients.jsonl", GradientRecord, finite=False)

    @property
    def part(self) -> int:
        """1, and one more for each time that the finished run was trained further."""
        return 1 + len(self.info.get("more_seconds", []))

    def part_recipe(self, part: int) -> Recipe:
        """The resolved recipe of a part, as it was written; what is lost of it would fall back to defaults, and is refused."""
        path = self.path / _recipe_file(part)
        recipe, tree = read_recipe(path)
        lost = set(flat(to_dict(recipe))) - set(flat(tree))
        if self.info.get("environment", {}).get("vitling") != vitling.__version__:
            lost &= {fields(Recipe)[-1].name}  # another version may not have known them all
        if lost or not read_document(path).endswith("\n"):
            raise damaged(str(path), f"it lacks {min(lost)}" if lost else "it is cut short")
        return recipe

    def begun_recipe(self) -> Recipe | None:
        """The recipe that the run was resolved to when it began; None where it has not come so far, for it is written last."""
        path = self.path / "recipe.yaml"
        if not path.exists():
            if self.last_checkpoint():
                raise UserError(f"{path} is missing; restore it, or train into another folder.")
            preparing = self.info.get("preparing")
            return from_dict(preparing) if preparing else None
        recipe = self.recipe
        digest = self.info.get("recipe_digest")
        if digest is not None and not is_digest_of(digest, recipe):
            raise UserError(
                f"{path} is of another recipe than the run was begun with; restore that file, or train into another folder."
            )
        return recipe

    def budget_looks(self, part: int) -> list[dict]:
        """The records of budget.jsonl about one part, the first with what a resumed run needs to know."""
        path = self.path / "budget.jsonl"
        looks = read_json_lines(path, BudgetRecord)
        begins = [number for number, look in enumerate(looks) if look.get("part") == part]
        if not begins:
            raise UserError(f"{path} does not say what the budget was; restore it, or train into another folder.")
        try:
            check(looks[begins[-1]], FirstBudgetRecord, "")
        except UserError as error:
            raise damaged(str(path), str(error).rstrip(".")) from None
        return looks[begins[-1] :]

    def load_model(self, which: str = "best") -> nn.Module:
        """The trained model, in eval mode, on the CPU. `vitling.open_model` puts it on the device, with its preprocessing."""
        check_weights(which)
        self.require("model")
        folder = self.path / which
        if not (folder / "model.safetensors").exists():
            raise UserError(f"{self.path} has no {which} weights yet; train it further with the command that began it.")
        network = load_network(folder, str(folder))
        if "class_names" in self.info:
            self._check_model(network, folder)
        return network

    def _check_model(self, network: nn.Module, folder: Path) -> None:
        """Refuse weights that are not those of this run.json: their answers would be given wrong names."""
        if self.unlabelled:
            if network.num_classes:
                raise UserError(
                    f"{self.path} was trained without labels, but the model in {folder} has classes; restore it from a copy."
                )
            return
        names, outputs = self.class_names, network.num_classes
        if len(names) != outputs:
            raise UserError(
                f"{self.path / 'run.json'} names {len(names)} classes, but the model in {folder} has {outputs}; restore it from a copy."
            )
        saved = read_saved_metadata(folder)
        if saved is None:
            return
        if self.recipe.model != saved.architecture:
            raise UserError(
                f"{self.path / 'recipe.yaml'} names model={show(self.recipe.model)}, but {folder / 'config.json'} is of {saved.architecture}; "
                "restore them from a copy."
            )
        for what, here, there in (
            ("class names", names, saved.class_names),
            ("kind of labels", self.kind, saved.labels),
            ("the name of the data", self.info.get("data", {}).get("name", ""), saved.data),
            ("preprocessing", self.preprocessing(), saved.preprocessing),
        ):
            if here != there:
                raise UserError(
                    f"{self.path / 'run.json'} and {folder / 'config.json'} differ in {what}; restore them from a copy."
                )

    def load_companions(self) -> dict[str, nn.Module]:
        """The networks that were trained beside the model, by name, as they were when it was best."""
        folders = sorted((self.path / COMPANIONS).iterdir()) if (self.path / COMPANIONS).exists() else []
        return {folder.name: load_network(folder, str(folder)) for folder in folders}

    def require(self, *kinds: str) -> None:
        """Refuse where the model, the method or the data that its recipe names is of a plug-in that is not imported."""
        if plugins := self.info.get("plugins"):
            require_plugins(plugins, self._names(kinds), str(self.path))

    def plugin_changes(self, *kinds: str) -> list[str]:
        """A line for each plug-in that is another one than when the run was trained."""
        plugins = self.info.get("plugins")
        return changed_plugins(plugins, self._names(kinds)) if plugins else []

    def _names(self, kinds: Sequence[str]) -> dict[str, str]:
        recipe = self.recipe if (self.path / "recipe.yaml").exists() else from_dict(self.info["asked"]["recipe"])
        names = {"model": recipe.model, "method": recipe.method, "data": recipe.data.partition(":")[0]}
        return {kind: names[kind] for kind in kinds}

    # -- claiming --------------------------------------------------------------------------------------------------

    def claim(self, asked: dict) -> bool:
        """Check that this directory may hold the run that `asked` describes: True where it already does, so that it resumes."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; choose another folder.")
        known = self.asked
        if known is None:
            left = (
                sorted(p.name for p in self.path.iterdir() if not p.name.startswith(".")) if self.path.exists() else []
            )
            if left:
                raise UserError(
                    f"{self.path} already holds other files ({', '.join(left[:3])} ...); choose an empty folder."
                )
            return False
        if known != asked:
            raise UserError(
                f"{self.path} holds another run ({difference(known, asked)}); "
                "choose another folder, or repeat that run's own command to resume it."
            )
        return True

    def give_back(self) -> None:
        """Take the claim back where nothing has come of it yet: the same folder is free for another command."""
        if not self.path.is_dir():  # removed by another program
            return
        there = [path.name for path in self.path.iterdir() if not path.name.startswith(".")]
        if set(there) <= {"run.json", UNLABELLED} and self.info.get("status") in (None, "preparing"):
            for name in there:
                (self.path / name).unlink()

    def claim_more(self, seconds: float) -> None:
        """Open a finished run for a further part of so many seconds, unless that part has begun already."""
        info = self.info
        more = info.get("more_seconds", [])
        if not self.finished:
            if more and more[-1] == seconds:
                return
            what = f"was to be trained for {more[-1]:g} s more" if more else "is not finished"
            raise UserError(f"{self.path} {what}; repeat the command that began this, then train it further.")
        self.begun_recipe()
        state, _ = self.load_checkpoint()
        if state is None:
            raise self.no_checkpoint()
        self.check_whole(state)  # before it counts as unfinished
        kept = ("stopped", "wall_seconds", "best", "epochs_trained", "steps_trained")
        part = {name: info[name] for name in kept if name in info} | {"weights": self.weights_digest("best")}
        self.update(status="preparing", more_seconds=[*more, seconds], parts=[*info.get("parts", []), part])

    def set_evaluations_aside(self) -> None:
        """Numbers of weights that a further part has replaced are kept, under names that nobody takes for those of this run."""
        parts = self.info.get("parts", [])
        if not parts or not self.finished or parts[-1].get("weights") in (None, self.weights_digest("best")):
            return
        for path in self.path.glob("evaluation-*.json"):
            path.replace(path.with_name(f"part-{len(parts)}-{path.name}"))

    def give_back_more(self) -> None:
        """Finished as before, where the further part could not begin: it has no checkpoint of its own."""
        state, _ = self.load_checkpoint()
        if state is None or state.get("part", 1) == self.part:
            return
        info = self.info
        self.update(status="finished", more_seconds=info["more_seconds"][:-1], parts=info["parts"][:-1])

    @contextmanager
    def locked(self, *, publishing: bool = True) -> Iterator[None]:
        """Nobody else may train into this directory meanwhile; what was written is published in the end."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; choose another folder.")
        ours = list(itertools.takewhile(lambda folder: not folder.exists(), (self.path, *self.path.parents)))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / LOCK, timeout=0)
            lock.acquire()
        except Timeout:
            raise Occupied(
                f"another process is training into {self.path}; wait for it, or choose another folder."
            ) from None
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror or error}.") from None
        self.held = True
        try:
            try:
                yield
            finally:
                if publishing:
                    self.publish()
        finally:
            self.held = False
            if os.name != "nt":  # while it is held: nobody else's is removed. Windows cannot, and keeps it
                (self.path / LOCK).unlink(missing_ok=True)
            lock.release()
            for folder in ours:  # nothing came of it: leave no trace
                with suppress(OSError):  # it holds something, or somebody else has removed it
                    folder.rmdir()

    def remove_leftovers(self) -> None:
        """Remove what killed processes left half written. For whoever has locked it and knows that it is theirs."""
        for folder, inner, files in os.walk(self.path):
            nested = Run(folder)
            if LOCK not in files or nested.path == self.path:
                remove_leftovers(nested.path)
                continue
            inner.clear()
            with suppress(UserError), nested.locked():  # else somebody trains into it
                nested.remove_leftovers()

    # -- writing ---------------------------------------------------------------------------------------------------

    def _place(self, name: str) -> Path:
        """Where to write. A folder that was removed meanwhile is not made again: the run in it would lack its beginning."""
        if self.held and not (self.path / LOCK).exists():
            raise UserError(f"{self.path} was removed or moved while it was written to; the same command begins anew.")
        return self.path / name

    def update(self, **changes: Any) -> None:
        write_text(
            self._place("run.json"), json.dumps({**self.info, **jsonable(changes)}, indent=1, ensure_ascii=False)
        )

    def save_recipe(self, recipe: Recipe) -> None:
        """The resolved recipe of the current part."""
        save_recipe(recipe, self._place(_recipe_file(self.part)))

    def append(self, file: str, record: dict) -> None:
        """Add a line to one of the logs, in one write."""
        append_text(self._place(file), json.dumps(record) + "\n")

    def sizes(self) -> dict[str, int]:
        """Bytes in the logs now; a checkpoint remembers them."""
        return {f: _size(self.path / f) for f in LOGS[:3]}

    def no_checkpoint(self) -> UserError:
        return UserError(
            f"{self.path / 'checkpoint'} holds no whole state to train further from; restore it, or train into another folder."
        )

    def log_digests(self, sizes: dict[str, int]) -> dict[str, str]:
        """SHA-256 of the first so many bytes of each log."""
        return {file: _sha256(self.path / file, size) for file, size in sizes.items()}

    def check_whole(self, checkpoint: dict) -> None:
        """Refuse to go on from a state where the run lacks what was there then: that would come out only when it ends."""
        sizes, remedy = checkpoint["logs"], "restore it, or train into another folder"
        if short := [file for file, size in sizes.items() if _size(self.path / file) < size]:
            raise UserError(f"{self.path / short[0]} is missing or shorter than when the run was saved; {remedy}.")
        known = checkpoint["log_digests"]
        if changed := [file for file, found in self.log_digests(sizes).items() if known.get(file, found) != found]:
            raise UserError(f"{self.path / changed[0]} has changed since the run was saved; {remedy}.")
        if checkpoint["best"]:  # written in every validation that was the best so far
            try:
                self.load_model("best")
            except UserError as error:
                raise UserError(f"the best weights so far are lost ({error}); {remedy}.") from None

    def cut_logs(self, sizes: dict[str, int]) -> None:
        """Forget what was logged after the checkpoint: it will be logged again."""
        for file, size in sizes.items():
            path = self.path / file
            if file not in LOGS or path.is_symlink():  # a stranger's checkpoint could name any file of ours
                raise UserError(
                    f"{path} is not a log of this run, so it is not cut; remove it, or train into another folder."
                )
            if _size(path) > size:
                os.truncate(path, size)

    def save_model(
        self,
        which: str,
        model: nn.Module,
        class_names: list[str],
        model_args: dict,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Weights as safetensors and a config.json in timm's format, under best/ or last/; `state` as in `save_weights`."""
        # With what the run knows, so that the folder can predict even where it is copied without the run.
        known: dict[str, Any] = {}
        if "preprocessing" in self.info and not self.unlabelled:
            known["vitling"] = ModelMetadata.of_run(self).to_dict()
        # Of a plug-in's file only its name: a folder that is sent on says nothing of this machine.
        if own := [record for record in plugin_records() if record["provides"].get("model")]:
            known[PLUGINS] = [{**record, "source": Path(record["source"]).name} for record in own]
        save_for_timm(
            model, self._place(which), model_args=model_args, label_names=class_names, entries=known, state=state
        )

    def save_picture(self, name: str, png: bytes) -> None:
        """What a run without labels has to show, as NAME.png."""
        write_bytes(self._place(f"{name}.png"), png)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def write_checkpoint(self, state: dict, step: int, part: int = 1) -> None:
        """Write a state. It counts from `confirm_checkpoint` on."""
        buffer = io.BytesIO()  # torch reports a full disk as something else when it writes the file itself
        torch.save(state, buffer)
        data = buffer.getvalue()
        self.unconfirmed: dict[str, Any] = {
            # A part begins at the step at which the one before it ended: that state stays until this one counts.
            "file": f"step-{step:09d}.pt" if part == 1 else f"step-{step:09d}-part-{part}.pt",
            "step": step,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        write_bytes(self._place("checkpoint") / self.unconfirmed["file"], data)

    def confirm_checkpoint(self) -> None:
        """Let the state that was written last count; older ones than the last two go."""
        folder, entry = self._place("checkpoint"), self.unconfirmed
        entries = [*(known for known in self._manifest() if known["step"] < entry["step"]), entry][-KEPT_CHECKPOINTS:]
        write_text(folder / "manifest.json", json.dumps(entries, indent=1))
        for old in folder.iterdir():  # only what we name so: a user may keep copies of their own here
            if CHECKPOINT.fullmatch(old.name) and old.name not in {known["file"] for known in entries}:
                old.unlink()
        self.publish()

    def last_checkpoint(self) -> Path | None:
        """The newest state that counts."""
        entries = self._manifest()
        return self.path / "checkpoint" / entries[-1]["file"] if entries else None

    def load_checkpoint(self) -> tuple[dict | None, list[str]]:
        """The newest state that is whole, and a line for each one that is not."""
        corrupted: list[str] = []
        for entry in reversed(self._manifest()):
            path = self.path / "checkpoint" / entry["file"]
            if path.exists() and not what_else(path) and _sha256(path) == entry["sha256"]:
                return _load_state(path), corrupted
            corrupted.append(
                f"checkpoint {path} is corrupted or missing; going back to the one before it, or to the start"
            )
        return None, corrupted

    def _manifest(self) -> list[dict]:
        path = self.path / "checkpoint" / "manifest.json"
        entries = read_json(path, list[CheckpointEntry]) if path.exists() else []
        for entry in entries:
            if not re.fullmatch(r"step-[0-9]+(-part-[0-9]+)?\.pt", entry["file"]):
                raise damaged(str(path), f"{show(entry['file'])} is not the name of a checkpoint")
        return entries


def load_run(path: str | Path) -> Run:
    """A run that exists; anything else is refused with a reason."""
    if as_url(path):
        run = Run(path)
        run.fetch(checkpoints=False)
        if not (run.path / "run.json").exists():
            raise UserError(f"no run at {run.place}; train one into that place first.")
        return run
    path = check_path(path)
    if not path.exists():
        raise UserError(f"no run at {path}; train one into that folder first.")
    if not (path / "run.json").exists():
        raise UserError(f"{path} is not a run directory (it has no run.json); give the folder that was trained into.")
    return Run(path)


def check_weights(which: str) -> None:
    if which not in WEIGHTS:
        raise UserError(f"unknown weights '{which}'. {did_you_mean(which, WEIGHTS)}")


def free_directory(base: Path, asked: dict) -> Path:
    """The first of base, base-2, base-3 ... that is free, or already is the run that is asked for."""
    candidates = itertools.chain([base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2)))
    return next(path for path in candidates if not path.exists() or Run(path).asked == asked)


def _recipe_file(part: int) -> str:
    return "recipe.yaml" if part == 1 else f"recipe-{part}.yaml"


def _load_state(path: Path) -> dict:
    """What a checkpoint holds, as plain data and tensors: it may be a stranger's, with a checksum of his own."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive makes torch raise many kinds
        raise damaged(str(path), f"it cannot be read, {first_line(error)[:-1]}") from None
    if not isinstance(state, dict):
        raise damaged(str(path), f"it holds a {type(state).__name__}, not the state of a run")
    return state


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path, size: int | None = None) -> str:
    """Of a file, or of its first so many bytes; of none where that is nothing."""
    digest = hashlib.sha256()
    if size == 0:
        return digest.hexdigest()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20 if size is None else min(size, 1 << 20)):
            digest.update(block)
            size = None if size is None else size - len(block)
    return digest.hexdigest()
