"""Bracket: successive halving at equal wall time.

In each round every trial gets the same seconds. The better half goes on to the next round, with twice as many, and the run's own recipe always
goes with them, because a gain is a gain over that. Every trial is trained from scratch, with a schedule that ends when its seconds do.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

MOST_TRIALS = 12  # of the first round


@dataclass(frozen=True)
class Bracket:
    """How many trials each round has, the run's own recipe among them."""

    sizes: tuple[int, ...]
    seeds: int
    jobs: int

    def units(self, first: int = 0) -> int:
        """The wall time of the rounds from `first` on, in trials of the first round."""
        return sum(2**number * self.waves(number) for number in range(first, len(self.sizes)))

    def waves(self, number: int) -> int:
        """So many runs of a round follow one another, where `jobs` of them are trained at a time."""
        return math.ceil(self.sizes[number] * self.seeds / self.jobs)

    def round_seconds(self, number: int, left: float, overhead: float) -> float:
        """Of a trial of a round, where `left` is for this round and those after it; `overhead` is what a run takes besides."""
        rounds = range(number, len(self.sizes))
        training = left - overhead * sum(self.waves(each) for each in rounds)
        return 2**number * training / self.units(number)


def plan_bracket(
    candidates: int, seconds: float, *, least_seconds: float, seeds: int, jobs: int, overhead: float
) -> Bracket | None:
    """As many of the candidates as the time allows, the first round of each at least so long; None where not even two fit."""
    for size in range(min(candidates, MOST_TRIALS), 1, -1):
        sizes = [size]
        while sizes[-1] > 2:
            sizes.append(math.ceil(sizes[-1] / 2))
        bracket = Bracket(tuple(sizes), seeds, jobs)
        if bracket.round_seconds(0, seconds, overhead) >= least_seconds:
            return bracket
    return None


def survivors(scores: Mapping[str, tuple[float, ...]], baseline: str, size: int) -> list[str]:
    """The baseline, and the best of the others; a score is a tuple, of which the first number decides and the next ones break a tie."""
    others = sorted((name for name in scores if name != baseline), key=lambda name: scores[name], reverse=True)
    return [baseline, *others[: size - 1]]
