"""Kills: a command is ended at random operations on its files, several times, and repeated until it is done."""

from torture.bench import Tally
from torture.commands import CASES, Case, StagedPart
from torture.injection import Disturbance, Outcome
from torture.material import chance, empty_folder

MOST_KILLS = 4  # of one command
KINDS = ("kill", "kill", "half written", "half written", "interrupt", "terminate")
CODES = {"kill": -9, "half written": -9, "interrupt": 130, "terminate": 143}


class Kills(StagedPart):
    name = "kills"
    about = "commands that were ended at random operations on files, up to four times each, and repeated: equal files"
    share = 3.0

    def disturb(self, number: int, tally: Tally) -> None:
        case, draw = CASES[number % len(CASES)], chance(self.seed, self.name, number)
        whole = self.stage.undisturbed(case)
        folder = empty_folder(self.folder / "disturbed")
        happened, problem = [], f"{whole.unsynced[0]} took its name before it was on the disk" if whole.unsynced else ""
        for _ in range(0 if problem else draw.randint(1, MOST_KILLS)):
            disturbance = Disturbance(draw.choice(KINDS), draw.randint(1, whole.operations))
            outcome = self.stage.run(case, folder, disturbance)
            if outcome.happened:
                happened.append(str(disturbance))
                tally.counts[disturbance.kind] += 1
            if problem := judge(case, disturbance, outcome):
                break
            if outcome.code == 0:
                break
        problem = problem or self.stage.repeat(case, folder)
        tally.count(number, problem and f"{case.name}, {', '.join(happened) or 'never ended'}: {problem}")


def judge(case: Case, disturbance: Disturbance, outcome: Outcome) -> str:
    """What is wrong with how a command took its end."""
    if not outcome.happened or disturbance.kind == "kill":
        wanted = (0, -9) if outcome.happened else (0,)
    else:
        # A signal that comes when all is done, or that a finished run answers, changes nothing.
        wanted = (CODES[disturbance.kind], 0)
    if outcome.code not in wanted:
        return f"{disturbance}: {outcome.describe()}"
    return f"{disturbance}: {outcome.describe()}" if "Traceback" in outcome.err else ""
