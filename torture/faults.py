"""Faults: full, broken and read-only disks, a deleted folder, dead processes, and clocks that jump."""

import os
import random
import shutil
import signal
import socket
import time
from pathlib import Path

from torture import injection
from torture.bench import Tally
from torture.commands import CASES, Case, StagedPart, check_budgeted, compare_folders, read_info
from torture.injection import CLOCKS, ERRORS, Disturbance, Outcome
from torture.material import chance, empty_folder

PLAN = [*ERRORS, "delete", "reader", *CLOCKS, "dead rank", *(f"{clock}, with a budget" for clock in CLOCKS)]
EXACT = [case for case in CASES if case.exact]
LAUNCHER_SECONDS = 30.0  # that torchrun leaves the others after it has told them to end


class Faults(StagedPart):
    name = "faults"
    about = (
        "faults under a command: one line and exit code 2 or none at all, and the same command ends with equal files"
    )
    share = 2.0

    def disturb(self, number: int, tally: Tally) -> None:
        kind, draw = PLAN[number % len(PLAN)], chance(self.seed, self.name, number)
        folder = empty_folder(self.folder / "disturbed")
        if kind == "dead rank":
            case, problem = self._lose_rank(folder, draw)
        elif kind.endswith(", with a budget"):
            case, problem = self._keep_budget(folder, Disturbance(kind.partition(",")[0], draw.randint(2, 60)))
        else:
            case, problem = self._disturb(folder, kind, draw)
        tally.count(number, problem and f"{case}: {problem}", kind)

    def _disturb(self, folder: Path, kind: str, draw: random.Random) -> tuple[str, str]:
        suits = {"reader": lambda case: case.reads, "delete": lambda case: case.trains}.get(kind, lambda case: True)
        case = draw.choice([case for case in EXACT if suits(case)])
        operations = self.stage.undisturbed(case).operations
        disturbance = Disturbance(kind, draw.randint(1, operations), target="run")
        outcome = self.stage.run(case, folder, disturbance)
        problem = judge(case, kind, outcome, folder / "run")
        if not problem and outcome.code == 0 and (kind in CLOCKS or kind == "delete"):
            problem = self.stage.compare(case, folder / "run")
        elif not problem:
            if kind == "delete" and not (folder / "run" / "run.json").exists():
                shutil.rmtree(
                    folder / "run", ignore_errors=True
                )  # whoever deletes a folder that is written to, does it once more
            problem = self.stage.repeat(case, folder)
        return case.name, problem and f"{disturbance}: {problem}"

    def _keep_budget(self, folder: Path, disturbance: Disturbance) -> tuple[str, str]:
        case = next(case for case in CASES if case.name == "budget")
        outcome = self.stage.run(case, folder, disturbance)
        problem = outcome.describe() if outcome.code != 0 else check_budgeted(folder / "run")
        return case.name, problem and f"{disturbance}: {problem}"

    # -- two processes ---------------------------------------------------------------------------------------------

    def _lose_rank(self, folder: Path, draw: random.Random) -> tuple[str, str]:
        """One of two processes is killed; the launcher ends the other, and the same command resumes both."""
        name, lost = "two processes", draw.choice([0, 1])
        whole = self.stage.folder / "whole" / name
        if not whole.exists():
            outcomes = self._launch(empty_folder(whole))
            if any(outcome.code for outcome in outcomes):
                raise RuntimeError(f"{name} failed undisturbed: {[outcome.describe() for outcome in outcomes]}")
            (whole / "operations").write_text(str(outcomes[0].operations))
        at = draw.randint(1, int((whole / "operations").read_text()))
        outcomes = self._launch(folder, lost, at)
        told = f"process {lost} of 2 killed at operation {at}"
        survivor = outcomes[1 - lost]
        # Waiting for the other one to begin, it hears no signal: the launcher kills it then, which loses nothing.
        if not survivor.failed_well and (survivor.code not in (0, 143, None) or "Traceback" in survivor.err):
            return name, f"{told}: the other one: {survivor.describe()}"
        outcomes = self._launch(folder)
        if any(outcome.code for outcome in outcomes):
            return name, f"{told}: resumed: {' and '.join(outcome.describe() for outcome in outcomes)}"
        problem = compare_folders(whole / "run", folder / "run")
        return name, problem and f"{told}: {problem}"

    def _launch(self, folder: Path, lost: int | None = None, at: int = 0) -> list[Outcome]:
        """What torchrun does: two processes that know of each other; when one fails, the other is told to end."""
        build = next(case for case in CASES if case.name == "supervised").build
        command, port = build(self.stage.material, folder), _free_port()
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        disturbances = [Disturbance(), Disturbance()]
        processes = {}
        for rank in (1, 0):  # the first one writes: it is started last, and knows the other's number
            if rank == 0 and lost is not None:
                target = "" if lost == 0 else str(processes[1].pid)
                disturbances[0] = Disturbance("kill" if lost == 0 else "other", at, target)
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes[rank] = injection.start(command, folder, disturbances[rank], environment=common | own)
        waiting, told = dict(processes), None
        codes: dict[int, Outcome] = {}
        while waiting:
            for rank, process in list(waiting.items()):
                if (outcome := process.poll(LAUNCHER_SECONDS if told else 300.0, told)) is not None:
                    codes[rank] = outcome
                    del waiting[rank]
            if told is None and any(outcome.code for outcome in codes.values()):
                told = time.monotonic()
                for process in waiting.values():
                    os.kill(process.pid, signal.SIGTERM)
            time.sleep(0.02)
        return [codes[0], codes[1]]


def judge(case: Case, kind: str, outcome: Outcome, run: Path) -> str:
    """What is wrong with how a command took a fault."""
    if outcome.code == 0 and "Traceback" not in outcome.err:
        unfinished = case.trains and read_info(run).get("status") != "finished"
        return "exit code 0, but the run is not finished" if unfinished and kind != "delete" else ""
    if outcome.happened and kind not in CLOCKS and outcome.failed_well:
        return ""
    if case.name == "study" and outcome.code == 1 and "Traceback" not in outcome.err:
        return ""  # some runs failed, and its table says why
    return outcome.describe()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
