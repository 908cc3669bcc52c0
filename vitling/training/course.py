"""Course: the step at which a run ends, and how far through its schedule each step is.

A budget may move the end while a run is under way. The schedule then continues from where it stands, faster or slower, and is complete
when the run is.
"""

from dataclasses import dataclass


@dataclass
class Course:
    """`length` steps of a schedule, and the turns taken on the way: (from this step, at this position, towards this end)."""

    length: int
    turns: list[tuple[int, float, int]]

    @classmethod
    def straight(cls, length: int, start: int = 0) -> "Course":
        """As planned: one step of the schedule per step of the run."""
        return cls(length, [(start, 0.0, start + length)])

    @property
    def start(self) -> int:
        return self.turns[0][0]

    @property
    def end(self) -> int:
        """The number of the step after the last one."""
        return self.turns[-1][2]

    def position(self, step: int) -> float:
        """Where in the schedule a step lies, in steps as planned; a whole number where the end was never moved."""
        start, position, end = next(turn for turn in reversed(self.turns) if turn[0] <= step)
        return position + (step - start) * (self.length - position) / (end - start)

    def progress(self, step: int) -> float:
        """The same as a share of the whole."""
        return self.position(step) / self.length

    def move_end(self, step: int, end: int) -> None:
        """From this step on, head for another end."""
        assert end > step, "a run ends after its current step"
        self.turns.append((step, self.position(step), end))
