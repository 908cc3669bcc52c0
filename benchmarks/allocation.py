"""What it brings that a training process keeps the memory that it frees: processor time and page faults of a step, one thread.

    python benchmarks/allocation.py [--models hybrid_vit_tiny hybrid_vit_mini] [--precision bf16]

Each measurement is a process of its own, in turns, since the allocator cannot be set back.
"""

import argparse
import resource
import subprocess
import sys

STEPS, BATCH = 25, 128


def measure(name: str, precision: str, keep: bool) -> tuple[float, float]:
    """Milliseconds and page faults of a step."""
    import timm
    import torch
    import torch.nn.functional as F

    import vitling
    from vitling.training.allocation import keep_freed_memory
    from vitling.training.half_precision import keep_attention_whole

    vitling.register_models()
    torch.set_num_threads(1)
    keep_attention_whole()
    if keep:
        keep_freed_memory()
    model = timm.create_model(name, num_classes=100, img_size=32).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.long)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(STEPS):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * seconds / STEPS, (after.ru_minflt - before.ru_minflt) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["hybrid_vit_tiny", "hybrid_vit_mini"])
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=("keep", "return"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(*measure(args.models[0], args.precision, args.one == "keep"))
        return
    print("| model | memory | ms per step | page faults per step |\n|---|---|---:|---:|")
    for name in args.models:
        found: dict[str, list[tuple[float, ...]]] = {"return": [], "keep": []}
        for _ in range(args.rounds):
            for how, rows in found.items():
                command = [sys.executable, __file__, "--models", name, "--precision", args.precision, "--one", how]
                rows.append(
                    tuple(
                        map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
                    )
                )
        for how, rows in found.items():
            milliseconds, faults = (min(row[i] for row in rows) for i in range(2))
            print(f"| {name} | {'kept' if how == 'keep' else 'returned'} | {milliseconds:.1f} | {faults:.0f} |")


if __name__ == "__main__":
    main()
