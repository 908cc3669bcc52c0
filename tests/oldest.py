"""Constraints for pip that pin every dependency in pyproject.toml to its lower bound: `make test-oldest` installs those."""

import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
for group in [project["dependencies"], *project["optional-dependencies"].values()]:
    for requirement in group:
        bound = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement)
        if bound:
            print("{}=={}".format(*bound.groups()))
        elif not requirement.startswith("vitling["):
            raise SystemExit(f"{requirement!r} in pyproject.toml has no lower bound; write name>=version.")
