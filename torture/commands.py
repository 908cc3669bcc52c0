"""The commands that are disturbed, and the files that have to be the same afterwards, to the last bit."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torture import injection
from torture.bench import Part, Tally
from torture.injection import Disturbance, Outcome
from torture.material import FRAGILE, Material, empty_folder

# Times differ from run to run, and pages show them; what a checkpoint folder holds depends on when it was interrupted.
INCOMPARABLE = """
    timing.jsonl budget.jsonl clock.json report.html study.html diagnosis.html diagnosis.json study.json table.csv table.md
""".split()  # noqa: SIM905
TIMES = ("wall_seconds", "environment", "test_looks")
TOO_SHORT = "raise the budget"  # what a command with one says on a machine that has too much else to do
UNLOCKED = ("evaluate", "export", "learning curve", "label errors")
IMPROVED_SECONDS = 40  # for an improvement, kills and all
MOST_REPEATS = 8  # of a command that was disturbed, until it ends well

Build = Callable[[Material, Path], list]


@dataclass(frozen=True)
class Case:
    """A command, made of the material for a folder that it is started in."""

    name: str
    build: Build
    exact: bool = True  # the same files every time; a budget looks at the clock
    reads: bool = False  # has processes that read images
    trains: bool = True  # into the folder run
    ranks: int = 1  # processes that train together
    environment: tuple[tuple[str, str], ...] = ()  # variables, of which {folder} is where it is started
    constants: tuple[tuple[str, float], ...] = ()  # other values for that process, see `injection.start`


def _train(*settings: str, data: str = "arrays", flags: tuple[str, ...] = ()) -> Build:
    def build(material: Material, folder: Path) -> list:
        name = "-".join(["recipe", *(word.replace("/", ".").replace("=", "-") for word in settings)])
        filled = [word.replace("{teacher}", str(material.teacher())) for word in settings]
        recipe = material.recipe(name, *filled)
        source = getattr(material, data)
        words = [word.replace("{plugin}", str(material.plugin)) for word in flags]
        return ["train", source, "--recipe", recipe, "--out", "run", "--threads", "1", *words, "--quiet"]

    return build


def _more(material: Material, folder: Path) -> list:
    if not (folder / "run").exists():
        shutil.copytree(material.run("finished"), folder / "run")
    return ["train", material.arrays, "--out", "run", "--more", "9s", *OFTEN, "--threads", "1", "--quiet"]


def _budget(material: Material, folder: Path) -> list:
    recipe = material.recipe("budget")
    return ["train", material.arrays, "--recipe", recipe, "--out", "run", "--budget", "9s", *OFTEN, "--threads", "1"]


def _study(material: Material, folder: Path) -> list:
    recipe = material.recipe("study", "epochs=2")
    return ["study", f"one: {recipe}", "--seeds", "2", "--out", "run", "--threads", "1", "--quiet"]


def _remote(material: Material, folder: Path) -> list:
    train = ["train", material.arrays, "--recipe", material.recipe("recipe"), "--out", f"file://{folder / 'run'}"]
    return [*train, *OFTEN, "--threads", "1", "--quiet"]


def _improve(material: Material, folder: Path) -> list:
    return [
        "improve",
        material.run("improved", data=material.more_arrays),
        "--budget",
        f"{IMPROVED_SECONDS}s",
        "--out",
        "run",
        *QUICKLY,
    ]


def _diagnose(trained: str) -> Build:
    def build(material: Material, folder: Path) -> list:
        if not (folder / "run").exists():
            shutil.copytree(material.run("diagnosed", "epochs=2", data=material.more_arrays), folder / "run")
        return ["diagnose", "run", trained, "--images", "16", "--quiet"]

    return build


def _relabel(material: Material, folder: Path) -> list:
    return ["relabel", material.teacher(), material.arrays, "--out", "run", "--quiet"]


def _evaluate(material: Material, folder: Path) -> list:
    if not (folder / "run").exists():
        shutil.copytree(material.run("finished"), folder / "run")
    return ["evaluate", "run", "--quiet"]


def _export(material: Material, folder: Path) -> list:
    return ["export", material.run("finished"), "--to", "timm", "--out", "run", "--quiet"]


OFTEN = ("--checkpoint-seconds", "0")  # a state before every step
QUICKLY = (*OFTEN, "--threads", "1", "--quiet")
# An improvement of seconds: rounds that are shorter, and a final training that need not see its images often.
HURRY = tuple(
    (f"vitling.improvement.improvement.{name}", value)
    for name, value in {
        "LEAST_ROUND_SECONDS": 4.0,
        "LEAST_FINAL_EPOCHS": 0,
        "LEAST_ROUND_EPOCHS": 0,
        "END_SECONDS": 1.0,
    }.items()
)
STREAMED = ("--memory-gb", "0", "--workers", "1")
BOOTSTRAP = ("model=boot_vit_test", "method=bootstrap", "method_args.label_smoothing=0")
LABELS = ("method_args.relabel=auto", "method_args.annotator_epochs=1", "method_args.mixup=0")
CASES = [
    Case("supervised", _train(FRAGILE, flags=OFTEN)),
    Case("supervised, a state per minute", _train(FRAGILE)),
    Case("bootstrap, joint", _train(*BOOTSTRAP, flags=OFTEN)),
    Case("bootstrap, shared", _train(*BOOTSTRAP, "method_args.share=true", flags=OFTEN)),
    Case("distillation", _train("method=distillation", "method_args.teacher={teacher}", flags=OFTEN)),
    Case("token labeling", _train("model=lvvit_test", "method=token_labeling", *LABELS, flags=OFTEN)),
    Case(
        "token bootstrap",
        _train("model=dhvt_test", "method=token_bootstrap", "model_args.drop_path_rate=0", *LABELS, flags=OFTEN),
    ),
    Case("streamed", _train(data="photos", flags=(*STREAMED, *OFTEN)), reads=True),
    Case("study", _study, trains=False),
    Case("shards, streamed", _train(data="shard", flags=(*STREAMED, *OFTEN)), reads=True),
    Case("plug-in", _train(flags=("--import", "{plugin}", *OFTEN, "method=gentle"))),
    Case("object storage", _remote, trains=False, environment=(("VITLING_DATA", "{folder}/home"),)),
    Case("more", _more, exact=False),
    Case("SAM, in parts", _train("optim.sam_rho=0.05", "accumulate=2", flags=OFTEN)),
    Case("Muon, compiled never", _train("optim.name=muon", FRAGILE, flags=OFTEN)),
    Case("budget", _budget, exact=False),
    Case("relabel", _relabel, trains=False),
    Case("evaluate", _evaluate, trains=False),
    Case("export", _export, trains=False),
    Case("learning curve", _diagnose("--learning-curve"), trains=False),
    Case("label errors", _diagnose("--label-errors"), trains=False),
    Case("improve", _improve, exact=False, trains=False, constants=HURRY),
]


class TooSlow(Exception):
    """A budget of seconds cannot be kept here and now: nothing was tried."""


class Stage:
    """Runs commands with and without disturbances; undisturbed ones once."""

    def __init__(self, material: Material, folder: Path):
        self.material, self.folder = material, folder
        self.known: dict[str, Outcome] = {}

    def undisturbed(self, case: Case) -> Outcome:
        """How the command ends when nothing happens; its files are in `whole`."""
        if case.name not in self.known:
            folder = empty_folder(self.whole(case).parent)
            outcome = self.run(case, folder)
            if outcome.code != 0:
                raise RuntimeError(f"{case.name} failed undisturbed: {outcome.describe()}")
            self.known[case.name] = outcome
        return self.known[case.name]

    def whole(self, case: Case) -> Path:
        return self.folder / "whole" / case.name / "run"

    def run(self, case: Case, folder: Path, disturbance: Disturbance | None = None) -> Outcome:
        environment = {name: value.replace("{folder}", str(folder)) for name, value in case.environment}
        command = case.build(self.material, folder)
        how = dict(environment=environment, constants=dict(case.constants))
        outcome = injection.run(command, folder, disturbance, **how)  # type: ignore[arg-type]
        if not case.exact and outcome.failed_well and TOO_SHORT in outcome.err:
            raise TooSlow
        return outcome

    def repeat(self, case: Case, folder: Path) -> str:
        """Give the same command until it ends well, and compare: the reason where something is wrong."""
        for _ in range(MOST_REPEATS):
            if self._is_done(case, folder):
                break
            outcome = self.run(case, folder)
            if outcome.code == 0:
                break
            if outcome.code is None or not outcome.failed_well:
                return f"the same command again: {outcome.describe()}"
        else:
            return f"the same command does not resume: {outcome.describe()}"
        return self.compare(case, folder / "run")

    def _is_done(self, case: Case, folder: Path) -> bool:
        """Whether a repetition would do more than was asked for: train a third part, or export what is there."""
        if case.name == "more":
            info = read_info(folder / "run")
            return info.get("status") == "finished" and len(info.get("more_seconds", [])) == 1
        return case.name == "export" and (folder / "run").exists()

    def compare(self, case: Case, run: Path) -> str:
        self.undisturbed(case)
        if case.name == "improve":
            problem = check_improved(run)
        else:
            problem = compare_folders(self.whole(case), run) if case.exact else check_budgeted(run)
        # What is written without a lock might be another process's, and stays.
        return problem or ("" if case.name in UNLOCKED else find_litter(run.parent))


def compare_folders(wanted: Path, found: Path) -> str:
    """What differs first between two results; nothing where they are equal."""
    ours, theirs = _comparable(wanted), _comparable(found)
    if ours.keys() != theirs.keys():
        lost, new = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
        return f"files differ: {lost or 'none'} lost, {new or 'none'} new"
    for name, path in ours.items():
        if Path(name).name == "run.json":
            known, now = json.loads(path.read_text()), json.loads(theirs[name].read_text())
            differing = [key for key in known if key not in TIMES and known[key] != now.get(key)]
            if differing:
                return f"{name} differs in {', '.join(differing)}"
        elif path.read_bytes() != theirs[name].read_bytes():
            return f"{name} differs from that of the undisturbed command"
    return ""


def check_budgeted(run: Path) -> str:
    """A run whose length depends on the clock cannot repeat another one; it can be finished, whole and in itself correct."""
    info = read_info(run)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    looks = [json.loads(line) for line in (run / "budget.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in metrics]
    best = max((line["val_top1"], -line["val_loss"]) for line in metrics)
    for wrong, what in (
        (info.get("status") != "finished", f"run.json says {info.get('status')}"),
        (steps != sorted(set(steps)), f"metrics.jsonl has the steps {steps}"),
        (steps[-1] != info.get("steps_trained"), f"metrics.jsonl ends at {steps[-1]}, run.json at another step"),
        (looks[-1]["end"] != steps[-1], f"budget.jsonl ends at {looks[-1]['end']}, the run at {steps[-1]}"),
        (best[0] != info.get("best", {}).get("val_top1"), "run.json's best is not that of metrics.jsonl"),
        (not (run / "best" / "model.safetensors").exists(), "there are no best weights"),
    ):
        if wrong:
            return what
    return ""


def check_improved(folder: Path) -> str:
    """What an improvement tries depends on the clock; it is finished, every run in it is, and what it says is what its files say."""
    record = json.loads((folder / "improve.json").read_text())
    runs = [path.parent for path in folder.rglob("run.json")]
    unfinished = [str(run.relative_to(folder)) for run in runs if read_info(run)["status"] != "finished"]
    confirmed = record.get("winner") is not None
    for wrong, what in (
        (not record.get("sentence"), "improve.json has no result"),
        (any("scores" not in entry for entry in record.get("rounds", [{}])), "a round has no scores"),
        (bool(unfinished), f"not finished: {', '.join(unfinished)}"),
        (confirmed and "confirmation" not in record, "the winner is not confirmed"),
        (confirmed and not (folder / "recipe.yaml").exists(), "the winner has no recipe.yaml"),
        (not (folder / "improve.html").exists(), "there is no page"),
        (record["asked"]["budget_seconds"] != IMPROVED_SECONDS, "improve.json has another budget"),
    ):
        if wrong:
            return what
    return check_budgeted(folder / "winner") if confirmed else ""


def find_litter(folder: Path) -> str:
    """Locks, parts of files and temporary folders that nobody removed."""
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))
    return f"left behind: {', '.join(left)}" if left else ""


def _comparable(folder: Path) -> dict[str, Path]:
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    if (folder / "manifest.json").exists():  # of object storage: it says what the run consists of
        named = json.loads((folder / "manifest.json").read_text())["files"]
        files = {name: folder / "files" / name / entry["sha256"] for name, entry in named.items()}
    compared = {}
    for name, path in files.items():
        plain = Path(name)
        if plain.name not in INCOMPARABLE and plain.parent.name != "checkpoint" and not plain.name.startswith("."):
            compared[name] = path
    return compared


def read_info(run: Path) -> dict:
    path = run / "run.json"
    return json.loads(path.read_text()) if path.exists() else {}


class StagedPart(Part):
    """A part whose trials disturb commands; what this machine is too slow for is no trial."""

    def __init__(self, folder: Path, seed: int, seconds: float):
        super().__init__(folder, seed, seconds)
        self.stage = Stage(Material(folder / "material"), folder)

    def try_one(self, number: int, tally: Tally) -> None:
        with suppress(TooSlow):
            self.disturb(number, tally)

    def disturb(self, number: int, tally: Tally) -> None:
        raise NotImplementedError
