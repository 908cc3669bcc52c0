"""What does bootstrapping cost, and what does it bring?

    python benchmarks/bootstrap.py cost        a step of the pair beside a step of each network alone
    python benchmarks/bootstrap.py accuracy    the nano ViT alone, joint and shared, three seeds -> docs/results.md

`cost` runs in this one process on one CPU thread, in turns, and counts the process's own CPU time, so that other work on the
machine disturbs little and all equally; the median over turns counts. The goal: joint training costs at most 5 % more than the two networks alone together. `accuracy` needs --data, an
.npz or folder as `vitling train` takes it, and may take a long time; its test split is looked at once per run.
"""

import vitling  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import timm
import torch
from results_page import fill
from scipy.stats import t
from torch import nn

from vitling.methods import create_method
from vitling.models.agent import create_agent
from vitling.optim import create_optimizer
from vitling.recipes import Optim, override
from vitling.recipes.named import bootstrapping


class Step:
    """One optimiser step of a method on fixed images, to be timed."""

    def __init__(self, method: nn.Module, batch: dict):
        self.method, self.batch = method.train(), batch
        self.optimizer = create_optimizer(method.parameter_groups(Optim(), 1e-3), Optim(), 1e-3)

    def __call__(self) -> float:
        begin = time.process_time()
        self.method(self.batch, 0.5)["loss"].backward()
        self.method.finish_gradients(lambda tensors: tensors)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - begin


def cost(model: str, size: int, batch_size: int, turns: int) -> None:
    torch.set_num_threads(1)

    def vit() -> nn.Module:
        return timm.create_model(model, num_classes=100, img_size=size)

    batch = {"image": torch.randn(batch_size, 3, size, size), "label": torch.randint(100, (batch_size,))}
    methods = {
        "vit": create_method("supervised", vit(), num_classes=100),
        "agent": create_method("supervised", create_agent(vit()), num_classes=100),
        "joint": create_method("bootstrap", vit(), num_classes=100),
        "shared": create_method("bootstrap", vit(), num_classes=100, share=True),
    }
    parameters = {name: sum(p.numel() for p in method.parameters()) for name, method in methods.items()}
    steps = {name: Step(method, batch) for name, method in methods.items()}
    for step in steps.values():
        step()
    seconds = [{name: step() for name, step in steps.items()} for _ in range(turns)]
    print(f"{model}, {size} px, batch {batch_size}, one thread, median of {turns} turns")
    print(f"{'':8} {'CPU ms':>8} {'parameters':>11} {'of both alone':>14}")
    for name in steps:
        share = statistics.median(turn[name] / (turn["vit"] + turn["agent"]) for turn in seconds)
        middle = 1000 * statistics.median(turn[name] for turn in seconds)
        missed = "  missed (goal 1.05)" if name == "joint" and share > 1.05 else ""
        print(f"{name:8} {middle:8.1f} {parameters[name]:11,} {share:14.3f}{missed}")


def accuracy(data: str, seeds: int, settings: list[str], method_settings: list[str]) -> None:
    rows = {
        "ViT alone": bootstrapping.vit_nano(),
        "ViT, joint with its agent": bootstrapping.vit_nano_joint(),
        "ViT, sharing with its agent": bootstrapping.vit_nano_shared(),
    }
    lines = []
    for name, recipe in rows.items():
        tops, agents, walls = [], [], []
        extra = method_settings if recipe.method == "bootstrap" else []
        for seed in range(seeds):
            chosen = override(recipe, [f"data={data}", f"seed={seed}", *settings, *extra])
            with tempfile.TemporaryDirectory() as folder:
                run = vitling.train(chosen, Path(folder) / "run")
                tops.append(100 * vitling.evaluate(run).top1)
                agents.append(100 * run.metrics()[-1].get("val_agent_top1", float("nan")))
                walls.append(run.info["wall_seconds"])
            print(f"{name}, seed {seed}: test {tops[-1]:.2f}, validation of the agent {agents[-1]:.2f}", flush=True)
        agent = f"{statistics.mean(agents):.2f}" if recipe.method == "bootstrap" else ""
        lines.append(f"| {name} | {mean_and_interval(tops)} | {agent} | {statistics.mean(walls):.0f} s |")
    shown = " ".join([Path(data).name, *settings, *method_settings])
    table = [
        "### Bootstrapping",
        "",
        f"`{chosen.model}`, {chosen.epochs} epochs, {seeds} seeds, mean ± 95 % confidence interval (Student's t); settings: `{shown}`.",
        "",
        "| network | test top-1, % | agent, validation top-1, % | wall time |",
        "|---|---|---|---|",
        *lines,
    ]
    fill("bootstrap", "\n".join(table))
    print("\n".join(table))


def mean_and_interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f} (one seed)"
    ci95 = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {ci95:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["cost", "accuracy"])
    parser.add_argument("--model", default="boot_vit_nano")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], help="settings of all three recipes, such as epochs=30")
    parser.add_argument("--method-set", nargs="*", default=[], help="settings of the two with an agent")
    args = parser.parse_args()
    if args.mode == "cost":
        cost(args.model, args.size, args.batch, args.turns)
    else:
        accuracy(args.data, args.seeds, args.set, args.method_set)


if __name__ == "__main__":
    main()
