"""Bytes per second between processes, seconds of a step, and the speed-up that these two allow on more devices.

    python benchmarks/devices.py [--model lvvit_t] [--batch 16] [--processes 2]

Starts the processes on this machine's CPUs (gloo), one thread each. An all-reduce of b bytes over n processes moves 2 (n - 1) / n x b bytes per
process, whatever the algorithm; from its seconds follow the bytes per second. A step is forward, backward and AdamW on random images, without
communication. What follows for n devices is computed: t(n) = step + bytes moved / bandwidth, nothing overlapped, each device with the same
batch. DDP moves one all-reduce of the gradients; shards move three times (n - 1) / n of the weights. So it is a lower bound; the table for GPUs
takes the seconds of a step from operations at an assumed rate, and its bandwidths are assumptions too.
"""

import vitling  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import subprocess
import sys
import time
from statistics import median

import timm
import torch
from torch import distributed

from vitling.models.macs import count_macs

GPU_RATE = 0.4 * 312e12  # operations per second: an A100's bf16, of which 40 % are reached
LINKS = {"300 GB/s (NVLink)": 300e9, "25 GB/s (200 Gbit/s network)": 25e9, "1.25 GB/s (10 Gbit/s network)": 1.25e9}


def measure_step(name: str, batch: int, repeats: int = 3) -> tuple[float, int]:
    """Median seconds of a step, and bytes of the gradients."""
    model = timm.create_model(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.randn(batch, *model.pretrained_cfg["input_size"])
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        model(images).logsumexp(1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:]), sum(4 * p.numel() for p in model.parameters())


def measure_bandwidth(size: int, repeats: int = 5) -> float:
    """Bytes per second that a process sends in an all-reduce of so many bytes."""
    values, world, seconds = torch.zeros(size // 4), distributed.get_world_size(), []
    for _ in range(repeats + 1):
        distributed.barrier()
        began = time.perf_counter()
        distributed.all_reduce(values)
        seconds.append(time.perf_counter() - began)
    return 2 * (world - 1) / world * size / median(seconds[1:])


def efficiency(step: float, size: int, bandwidth: float, devices: int, sharded: bool = False) -> float:
    """Share of the devices' time that is spent computing."""
    moved = (3 if sharded else 2) * (devices - 1) / devices * size
    return step / (step + moved / bandwidth)


def report(name: str, batch: int) -> None:
    step, size = measure_step(name, batch)
    bandwidth = measure_bandwidth(size)
    if distributed.get_rank():
        return
    world = distributed.get_world_size()
    print(f"{name}, {batch} images per process: a step of {step:.3f} s, gradients of {size / 1e6:.0f} MB")
    print(f"all-reduce over {world} processes: {bandwidth / 1e9:.2f} GB/s")
    for devices in (2, 4, 8):
        ddp, shards = (efficiency(step, size, bandwidth, devices, kind) for kind in (False, True))
        print(f"  {devices} such processes on cores of their own: DDP {ddp:.2f}, shards {shards:.2f} of the ideal")
    model = timm.create_model(name)
    operations = 3 * 2 * count_macs(model, model.pretrained_cfg["input_size"])  # forward, and twice as much backward
    per_image = operations / GPU_RATE
    print(f"on paper, {GPU_RATE / 1e12:.0f} TFLOP/s, 128 images per device: a step of {1000 * 128 * per_image:.0f} ms")
    for link, rate in LINKS.items():
        shares = [
            (efficiency(128 * per_image, size, rate, n), efficiency(128 * per_image, size, rate, n, True))
            for n in (2, 8, 64)
        ]
        print(
            f"  {link}: "
            + ", ".join(f"{n} devices DDP {a:.2f} shards {b:.2f}" for n, (a, b) in zip((2, 8, 64), shares, strict=True))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="lvvit_t")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--started", action="store_true", help="this is one of the processes")
    asked = parser.parse_args()
    vitling.register_models()
    if not asked.started:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(asked.processes)]
        subprocess.run([sys.executable, *launcher, *sys.argv, "--started"], check=True)
        return
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    report(asked.model, asked.batch)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
