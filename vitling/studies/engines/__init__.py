"""Where the runs of a study are trained: processes on this machine, a Ray cluster, or SLURM."""

from vitling.errors import UserError, did_you_mean
from vitling.studies.engines.base import Engine

__all__ = ["Engine", "create_engine"]

ENGINES = ("local", "ray", "slurm")


def create_engine(on: str = "local", gpus_per_trial: float | None = None) -> Engine:
    """The engine that `on` names: local, ray (the cluster that this machine is part of), ray://HOST:PORT, slurm[:KEY=VALUE,...].

    Nothing is connected yet. `gpus_per_trial` is how many GPUs each run gets: a part of one, one, or several.
    """
    name, _, rest = on.partition(":")
    if name == "local" and not rest:
        from vitling.studies.engines.local import LocalEngine  # only the engine that is asked for

        return LocalEngine(gpus_per_trial)
    if name == "ray":
        from vitling.studies.engines.ray import RayEngine  # an extra

        return RayEngine(on, gpus_per_trial)
    if name == "slurm":
        from vitling.studies.engines.slurm import SlurmEngine  # an extra

        return SlurmEngine(rest, gpus_per_trial)
    raise UserError(
        f"unknown engine '{on}'. {did_you_mean(name, ENGINES)} Write local, ray, ray://HOST:10001 or slurm."
    )
