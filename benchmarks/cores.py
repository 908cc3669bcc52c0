"""Images per second of each size of the house family, on all cores against one, and the share of the machine's matmul rate.

    python benchmarks/cores.py [--turns 5] [--sizes nano tiny small] [--precision bf16] [--compile]

A step is forward, backward and optimiser on a batch of random images of 32 pixels (medium and base: of photographs, 8 at a time). Thread counts take
turns, so that both share the machine's noise. The matmul rate is that of a square product in the same precision with as many threads.
"""

import vitling  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import time
from dataclasses import replace
from statistics import median

import timm
import torch

from vitling.models.macs import count_macs
from vitling.planning.machine import measure_step

SIDE = {"nano": 32, "tiny": 32, "mini": 32, "small": 32, "medium": 160, "base": 192}


def matmul_rate(threads: int, precision: str, side: int = 1024) -> float:
    """FLOP/s of a square product."""
    torch.set_num_threads(threads)
    a, b = torch.randn(2, side, side, dtype=torch.bfloat16 if precision == "bf16" else torch.float32).unbind()
    seconds = []
    for _ in range(12):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * side**3 / median(seconds[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=SIDE, default=list(SIDE))
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument(
        "--compile", action="store_true", help="by torch.compile; the first, uncounted step waits for it"
    )
    args = parser.parse_args()
    cores = torch.get_num_threads()
    rates = {threads: matmul_rate(threads, args.precision) for threads in (1, cores)}
    print(f"matmul: {rates[1] / 1e9:.0f} GFLOP/s on one core, {rates[cores] / 1e9:.0f} on {cores}\n")
    print(f"| size | parameters | images/s, 1 core | images/s, {cores} cores | ratio | share of matmul, 1 | {cores} |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for size in args.sizes:
        recipe = vitling.load_recipe(f"vitling/{size}")
        side = SIDE[size]
        recipe = replace(recipe, batch_size=8 if side > 32 else recipe.batch_size)
        seconds: dict[int, list[float]] = {1: [], cores: []}
        for _ in range(args.turns):
            for threads, taken in seconds.items():
                model = timm.create_model(recipe.model, num_classes=100, img_size=side, **recipe.model_args)
                stepped = torch.compile(model) if args.compile else model
                taken.append(measure_step((recipe, stepped, (3, side, side)), threads, args.precision))
        macs, parameters = count_macs(model, (3, side, side)), sum(p.numel() for p in model.parameters())
        step = {threads: median(taken) for threads, taken in seconds.items()}
        share = {t: 6 * macs * recipe.batch_size / step[t] / rates[t] for t in step}
        print(
            f"| {size} | {parameters / 1e6:.2f} M | {recipe.batch_size / step[1]:,.0f} | {recipe.batch_size / step[cores]:,.0f} "
            f"| {step[1] / step[cores]:.2f} | {share[1]:.2f} | {share[cores]:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
