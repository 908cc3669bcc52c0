"""Machine: how fast candidates train, measured on this one or worked out for a device that is elsewhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from os import environ
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

from vitling.errors import UserError, did_you_mean
from vitling.models.macs import count_macs, count_saved_bytes
from vitling.optim import create_optimizer, parameter_groups, peak_lr
from vitling.recipes import Recipe
from vitling.runs.device import default_device, synchronize
from vitling.training.allocation import keep_freed_memory
from vitling.training.half_precision import bf16_pays, keep_attention_whole
from vitling.training.random_state import callers_state_kept

TIMED_STEPS = 3  # after one that warms up; one is enough where it is long
LONG_STEP_SECONDS = 0.5
REACHED = 0.3  # of a GPU's dense rate, by networks of this kind in training
FILLED = 0.9  # of a GPU's memory, by a training step
HALF = 0.6  # of what float32 keeps for the backward pass, in half precision: norms stay whole
LEAST_STEP_SECONDS = 0.012  # of a GPU: so long it takes to start the kernels of a small network

Candidate = tuple[
    Recipe, nn.Module, tuple[int, int, int]
]  # what would be trained, on images of (channels, height, width)


@dataclass(frozen=True)
class Device:
    """A kind of device: its dense rate at its usual training precision, in TFLOP/s, and its memory."""

    title: str
    tflops: float
    memory_gb: int
    precision: str = "bf16"


# The makers' data sheets: dense matrix products with 32-bit accumulation, no sparsity. Apple's are of the shaders, in float32.
DEVICES = {
    "t4": Device("NVIDIA T4", 65, 16, "fp16"),
    "v100": Device("NVIDIA V100", 125, 32, "fp16"),
    "a10": Device("NVIDIA A10", 125, 24),
    "l4": Device("NVIDIA L4", 121, 24),
    "l40s": Device("NVIDIA L40S", 362, 48),
    "a100": Device("NVIDIA A100", 312, 80),
    "h100": Device("NVIDIA H100 SXM", 989, 80),
    "rtx3060": Device("GeForce RTX 3060", 25, 12),
    "rtx3090": Device("GeForce RTX 3090", 71, 24),
    "rtx4060": Device("GeForce RTX 4060", 30, 8),
    "rtx4090": Device("GeForce RTX 4090", 165, 24),
    "rtx5090": Device("GeForce RTX 5090", 210, 32),
    "m1": Device("Apple M1, 8 cores", 2.6, 8, "no"),
    "m2": Device("Apple M2, 10 cores", 3.6, 8, "no"),
    "m3max": Device("Apple M3 Max, 40 cores", 14.2, 36, "no"),
}


@dataclass
class Machine:
    """Seconds of a training step of any candidate, each found once. `kind` is cpu or gpu."""

    title: str
    kind: str
    precision: str
    find_step: Callable[[Candidate], float]
    measured: dict[str, float] = field(default_factory=dict)  # by the candidate's description

    def images_per_second(self, candidate: Candidate) -> float:
        recipe, model, (_, height, width) = candidate
        what = f"{recipe.model}, {parameters(model):,} parameters, {height} x {width} pixels, batches of {recipe.batch_size}"
        if what not in self.measured:
            try:
                self.measured[what] = round(self.find_step(candidate), 8)
            except torch.OutOfMemoryError:  # a size that does not fit is as good as one that never ends
                return 0.0
        return recipe.batch_size / self.measured[what]


def this_machine(threads: int | None = None, precision: str = "") -> Machine:
    """Where this process runs; steps are measured, in this precision or in the one that is faster here."""
    device = default_device()
    kind = "cpu" if device.type == "cpu" else "gpu"
    if not precision:
        precision = _half_precision(device) or "no"
    return Machine(device.type, kind, precision, lambda candidate: measure_step(candidate, threads, precision))


def _half_precision(device: torch.device) -> str:
    """The half precision that pays there; empty where none does. Cards without bf16 emulate it, slowly."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if device.type == "cpu" and bf16_pays() else ""


def find_machine(text: str) -> Machine:
    """A device by its name, such as "cuda:a100"; steps are worked out from multiply-adds."""
    name = text.rpartition(":")[2].lower()
    if name not in DEVICES:
        near = did_you_mean(name, DEVICES, show=0)
        raise UserError(f"unknown device '{text}'. {f'{near} ' if near else ''}Known are {', '.join(DEVICES)}.")
    device = DEVICES[name]

    def step(candidate: Candidate) -> float:
        recipe, model, size = candidate
        if (needed := memory_needed(candidate, device.precision)) > FILLED * device.memory_gb * 2**30:
            raise torch.OutOfMemoryError(f"{needed / 2**30:.0f} GB are needed")
        flops = 3 * 2 * count_macs(model, size) * recipe.batch_size  # the backward pass takes twice the forward one
        return max(flops / (REACHED * device.tflops * 1e12), LEAST_STEP_SECONDS)

    return Machine(device.title, "gpu", device.precision, step)


def memory_needed(candidate: Candidate, precision: str) -> float:
    """Bytes of a training step: weights, their gradients and what the optimiser keeps, and what waits for the backward pass."""
    recipe, model, size = candidate
    images = recipe.batch_size / recipe.accumulate
    return 16 * parameters(model) + images * count_saved_bytes(model, size) * (1 if precision == "no" else HALF)


def measure_step(candidate: Candidate, threads: int | None = None, precision: str = "no") -> float:
    """The time of a step on random images: forward, backward, optimiser. No data is read."""
    recipe, model, size = candidate
    device, seconds = default_device(), []
    half = torch.float16 if precision == "fp16" else torch.bfloat16
    if device.type == "cpu":
        keep_freed_memory()
        if precision == "bf16":
            keep_attention_whole()
    with callers_state_kept():
        torch.set_num_threads(threads or torch.get_num_threads())
        model = model.to(device).train()
        lr = peak_lr(recipe)
        optimizer = create_optimizer(parameter_groups(model, recipe.optim, lr), recipe.optim, lr)
        share = max(2, recipe.batch_size // int(environ.get("WORLD_SIZE", "1")))  # of a batch, for each process
        images = torch.randn(share, *size, device=device)
        labels = torch.zeros(share, dtype=torch.long, device=device)
        for _ in range(1 + TIMED_STEPS):
            began = time.perf_counter()
            with torch.autocast(device.type, half, enabled=precision != "no"):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            synchronize(device)
            seconds.append(time.perf_counter() - began)
            if len(seconds) > 1 and seconds[-1] > LONG_STEP_SECONDS:
                break
    return median(seconds[1:])


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
