"""python -m torture [PART ...]: hurt vitling in many ways, and say what held."""

import argparse
import os
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: forked processes must not wait for threads that they do not have

from benchmarks.results_page import fill
from torture.bench import Part, Tally, all_held, markdown, run_bench, summary

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


def parts() -> dict[str, type[Part]]:
    from torture.endpoints import Endpoints
    from torture.faults import Faults
    from torture.inputs import Inputs
    from torture.kills import Kills
    from torture.soak import Soak

    return {kind.name: kind for kind in (Kills, Faults, Inputs, Endpoints, Soak)}


def write_figures(page: Path, tallies: list[Tally], kinds: dict[str, type[Part]], *, seed: int, minutes: float) -> None:
    """Fill in what was tried and, by itself, the soak, which takes hours where the rest takes minutes; what was not asked for stays."""
    names = " ".join(tally.part for tally in tallies)
    command = f"python -m torture {names} --minutes {minutes:g} --seed {seed}"
    versions = f"Python {platform.python_version()} and torch {metadata.version('torch')}"
    for section, chosen in (
        ("torture", [tally for tally in tallies if tally.part != "soak"]),
        ("soak", [tally for tally in tallies if tally.part == "soak"]),
    ):
        if chosen:
            fill(section, markdown(chosen, kinds, f"`{command}` on {os.cpu_count()} CPU cores, {versions}"), page)


def main(arguments: list[str] | None = None) -> int:
    kinds = parts()
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(kinds)}; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn; default: 0")
    parser.add_argument("--minutes", type=float, default=4.0, help="about so long, over all parts; default: 4")
    parser.add_argument("--trials", type=int, help="so many of each part, however long they take")
    parser.add_argument("--trial", type=int, help="the one of this number alone, to repeat what did not hold")
    parser.add_argument("--examples", type=int, help="inputs or requests of one trial; default: 10 and 80")
    parser.add_argument(
        "--folder", type=Path, help="for what is made on the way, and kept then; default: a temporary one"
    )
    parser.add_argument("--page", type=Path, nargs="?", const=PAGE, help="write the figures into docs/reliability.md")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(kinds):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(kinds)}")
    chosen = [kind for name, kind in kinds.items() if not given.parts or name in given.parts]
    with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as temporary:
        tallies = run_bench(
            chosen,
            (given.folder or Path(temporary)).resolve(),
            seed=given.seed,
            seconds=60 * given.minutes,
            trials=given.trials,
            only=given.trial,
            examples=given.examples,
        )
    print(summary(tallies, given.seed, *([f"--examples {given.examples}"] if given.examples else [])))
    if given.page:
        write_figures(given.page, tallies, kinds, seed=given.seed, minutes=given.minutes)
    return 0 if all_held(tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
