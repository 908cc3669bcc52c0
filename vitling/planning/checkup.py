"""A check-up of this installation and this machine: what is there, what is wrong, and what to do about it."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from packaging.requirements import Requirement

import vitling
from vitling.importing.operators import torchvision_mended
from vitling.models import build_model
from vitling.runs.device import default_device, device_name
from vitling.validation.memory import total_memory

LEAST_DISK, LEAST_MEMORY = 2e9, 2e9  # bytes: a run with its checkpoints; a small network with its images
MATMUL_SIDE, MATMUL_ROUNDS = 512, 8


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `state`: as it should be; something is missing that one may want; something will not work."""

    what: str
    found: str
    state: Literal["good", "note", "bad"] = "good"
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def examine(folder: str | Path = ".") -> list[Finding]:
    """Versions, devices, threads, memory, the disk of `folder`, torchvision's operators, extras, and a step of training."""
    return [
        Finding("vitling", f"{vitling.__version__}, Python {platform.python_version()}, {platform.platform()}"),
        *_packages(),
        _torchvision(),
        *_extras(),
        _device(),
        _threads(),
        _speed(),
        _memory(),
        *_disk(folder),
        _step(),
    ]


def _requirements() -> list[Requirement]:
    try:
        return [Requirement(text) for text in metadata.requires("vitling") or []]
    except metadata.PackageNotFoundError:  # run from a folder, without an installation
        return []


def _missing(requirements: list[Requirement]) -> tuple[list[str], list[str]]:
    """Names that are not installed, and installed ones of a wrong version."""
    absent, wrong = [], []
    for requirement in requirements:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            absent.append(requirement.name)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} (needed: {requirement.specifier})")
    return absent, wrong


def _packages() -> Iterator[Finding]:
    needed = [one for one in _requirements() if one.marker is None or one.marker.evaluate({"extra": ""})]
    if not needed:
        yield Finding(
            "packages", "vitling itself is not installed, so what it needs is unknown", "note", "pip install ."
        )
        return
    absent, wrong = _missing(needed)
    shown = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "timm") if name not in absent)
    if absent or wrong:
        problems = [f"missing: {', '.join(absent)}"] * bool(absent) + wrong
        yield Finding("packages", "; ".join(problems), "bad", "pip install -U vitling")
    else:
        yield Finding("packages", f"all {len(needed)} that are needed, with {shown}")


def _torchvision() -> Finding:
    if torchvision_mended():
        return Finding(
            "torchvision",
            "its compiled operators do not load beside this torch; vitling declares them, and training needs none",
            "note",
            "in programs of your own, import vitling before timm or torchvision",
        )
    return Finding("torchvision", "its operators load")


def _extras() -> Iterator[Finding]:
    """Of the optional parts, those that are not complete."""
    complete, lacking = [], []
    for extra in metadata.metadata("vitling").get_all("Provides-Extra") or [] if _requirements() else []:
        if extra in ("dev", "test"):
            continue
        own = [one for one in _requirements() if one.name != "vitling" and _belongs_to(one, extra)]
        absent, wrong = _missing(own)
        if absent or wrong:
            lacking.append(extra)
        else:
            complete.append(extra)
    if complete or lacking:
        found = f"installed: {', '.join(complete) or 'none'}" + (f"; not: {', '.join(lacking)}" if lacking else "")
        advice = f'pip install "vitling[{",".join(lacking)}]", or those of them that you want' if lacking else ""
        yield Finding("extras", found, "note" if lacking else "good", advice)


def _belongs_to(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _device() -> Finding:
    device = default_device()
    if device.type == "cpu":
        built = "this torch is a CPU build" if torch.version.cuda is None else "no GPU is seen"
        advice = "for a GPU, install torch as pytorch.org says for it" if torch.version.cuda is None else ""
        return Finding("device", f"the CPU ({device_name(device)}); {built}", "good", advice)
    return Finding("device", f"{device} ({device_name(device)})")


def _threads() -> Finding:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    used = torch.get_num_threads()
    found = f"torch uses {used} of {allowed} processors"
    limit = os.environ.get("OMP_NUM_THREADS")
    if limit and used < allowed:
        return Finding("threads", f"{found}, because OMP_NUM_THREADS={limit}", "note", "unset OMP_NUM_THREADS")
    return Finding("threads", found)


def _speed() -> Finding:
    a = torch.randn(MATMUL_SIDE, MATMUL_SIDE)
    a @ a  # warm
    began = time.perf_counter()
    for _ in range(MATMUL_ROUNDS):
        a @ a
    seconds = (time.perf_counter() - began) / MATMUL_ROUNDS
    return Finding("speed", f"{2 * MATMUL_SIDE**3 / seconds / 1e9:,.0f} GFLOP/s in a product of matrices, on the CPU")


def _memory() -> Finding:
    total = total_memory()
    found = f"{total / 1e9:.1f} GB for this process and all others"
    if total < LEAST_MEMORY:
        return Finding("memory", found, "bad", "stream images instead of keeping them: memory_gb=0.5")
    return Finding("memory", found)


def _disk(folder: str | Path) -> Iterator[Finding]:
    for what, place in (("disk", Path(folder)), ("temporary", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(place).free
        found = f"{free / 1e9:.1f} GB free in {place.resolve()}"
        if not os.access(place, os.W_OK):
            yield Finding(
                what, f"{place.resolve()} cannot be written", "bad", "choose another folder for runs, or TMPDIR"
            )
        elif free < LEAST_DISK:
            yield Finding(what, found, "bad", "free some space, or choose another folder for runs, or TMPDIR")
        else:
            yield Finding(what, found)


def _step() -> Finding:
    """Whether a network trains here at all."""
    device = default_device()
    try:
        model = build_model("hybrid_vit_test", num_classes=2, in_chans=3, img_size=(16, 16)).to(device)
        loss = model(torch.randn(4, 3, 16, 16, device=device)).logsumexp(1).mean()
        loss.backward()
        finite = all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        return Finding("training", f"a step fails on {device}: {reason}", "bad", "reinstall torch for this machine")
    if not finite:
        return Finding("training", f"a step on {device} gives no numbers", "bad", "reinstall torch for this machine")
    return Finding("training", f"a step works on {device}")
