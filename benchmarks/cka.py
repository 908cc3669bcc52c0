"""How fast and lean is a whole CKA matrix, next to the plain forward passes and to other implementations?

    python benchmarks/cka.py [--images 1024] [--batch 128] [--rounds 3] [--threads 1] [--pair-batches 1] [--save]

The paper's ViT against ResNet-18, every module of both, at 32 px. Contenders:

* forward: both networks, nothing else;
* ours: `vitling.diagnose.cka_matrix`;
* pytorch-cka: the pip package `pytorch-cka` 1.1.3, if it can be imported (as `cka`), on the same modules;
* pytorch-cka, distinct: the same, configured to leave out the modules whose tensor another module has, which it does not find itself;
* per pair: the algorithm of `torch_cka` (both Gram matrices and three HSICs anew for every pair of modules), on `--pair-batches`
  batches and scaled up.

Each runs in a process of its own, round by round. Seconds are of processor time, so that a busy machine matters little; memory
is the peak of the process above what it held before. `--save` writes benchmarks/cka.json.
"""

import argparse
import importlib.util
import json
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# This file and the package pytorch-cka are both called cka: without this, the one would find itself.
sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

FASTER_THAN_PAIRS, FORWARD = 12, 1.6  # at least, at most
CONTENDERS = ("forward", "ours", "pytorch-cka", "pytorch-cka, distinct", "per pair")


def per_pair(a, b, batches, names_a, names_b):
    """CKA as torch_cka computes it: feature by feature, pair by pair."""
    import torch

    def hook_all(model, names, features):
        for name in names:
            model.get_submodule(name).register_forward_hook(
                lambda module, args, output, name=name: features.update({name: output})
            )

    def hsic(K, L):
        n = len(K)
        trace = (K @ L).trace()
        middle = K.sum() * L.sum() / ((n - 1) * (n - 2))
        return (trace + middle - 2 / (n - 2) * (K.sum(dim=0) @ L.sum(dim=1))) / (n * (n - 3))

    def gram(x):
        x = x.flatten(1)
        return (x @ x.T).fill_diagonal_(0)

    features_a, features_b = {}, {}
    hook_all(a, names_a, features_a)
    hook_all(b, names_b, features_b)
    sums = torch.zeros(len(names_a), len(names_b), 3)
    with torch.no_grad():
        for images in batches:
            a(images), b(images)
            for i, x in enumerate(features_a.values()):
                K = gram(x)
                sums[i, :, 0] += hsic(K, K)
                for j, y in enumerate(features_b.values()):
                    L = gram(y)
                    sums[i, j, 1] += hsic(K, L)
                    sums[i, j, 2] += hsic(L, L)
    return sums[..., 1] / (sums[..., 0] * sums[..., 2]).sqrt()


def run(contender: str, args: argparse.Namespace) -> dict:
    """Measure one contender in this process."""
    import timm
    import torch

    import vitling  # noqa: F401  (registers our families)
    from vitling.diagnose import cka_matrix

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    a, b = timm.create_model("diag_vit_patch4").eval(), timm.create_model("diag_resnet18").eval()
    batches = torch.randn(args.images, 3, 32, 32).split(args.batch)
    small = cka_matrix(a, b, [batches[0][:4]])  # warms up, and says which modules run and which of them are distinct
    rows, columns = [*small.rows, *small.row_aliases], [*small.columns, *small.column_aliases]

    def forward():
        with torch.no_grad():
            for images in batches:
                a(images), b(images)

    def peer(rows, columns):
        from cka import compute_cka

        return compute_cka(a, b, [list(batches)], layers=rows, model2_layers=columns, device="cpu", progress=False)

    work = {
        "forward": forward,
        "ours": lambda: cka_matrix(a, b, batches),
        "pytorch-cka": lambda: peer([n for n in rows if n], [n for n in columns if n]),
        "pytorch-cka, distinct": lambda: peer(small.rows, small.columns),
        "per pair": lambda: per_pair(a, b, batches[: args.pair_batches], rows, columns),
    }[contender]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    work()
    seconds = time.process_time() - start
    if contender == "per pair":
        seconds *= len(batches) / args.pair_batches
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return dict(
        seconds=seconds,
        peak_mb=memory,
        modules=(len(rows), len(columns)),
        distinct=(len(small.rows), len(small.columns)),
    )


def measure(contender: str, args: argparse.Namespace) -> dict:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(run, contender, args).result()


def errors() -> dict[str, float]:
    """Largest distance from CKA in float64: small untrained networks on noise, whose features share a large mean."""
    import timm
    import torch

    import vitling  # noqa: F401  (registers our families)
    from vitling.diagnose import cka_matrix

    torch.set_num_threads(1)
    torch.manual_seed(0)
    a, b = timm.create_model("diag_vit_nano").eval(), timm.create_model("diag_resnet18_nano").eval()
    batches = list(torch.randn(64, 3, 32, 32).split(32))
    ours = cka_matrix(a, b, batches)
    found = {"ours": ours.matrix}
    if importlib.util.find_spec("cka"):
        from cka import compute_cka

        layers = dict(layers=ours.rows, model2_layers=ours.columns)
        found["pytorch-cka"] = compute_cka(a, b, [batches], **layers, device="cpu", progress=False)[0]
    exact = cka_matrix(a.double(), b.double(), [images.double() for images in batches]).matrix
    return {name: (matrix - exact).abs().max().item() for name, matrix in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pair-batches", type=int, default=1, help="0 leaves the slow one out")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    contenders = [
        name
        for name in CONTENDERS
        if (name != "per pair" or args.pair_batches)
        and (not name.startswith("pytorch-cka") or importlib.util.find_spec("cka"))
    ]
    if "pytorch-cka" not in contenders:
        print("pytorch-cka: not installed (pip install --no-deps pytorch-cka==1.1.3)")
    rounds: dict[str, list[dict]] = {name: [] for name in contenders}
    for number in range(args.rounds):
        for name in contenders:
            if name != "per pair" or number == 0:
                rounds[name].append(measure(name, args))
                print(f"round {number + 1}: {name} {rounds[name][-1]['seconds']:.1f} s", flush=True)
    first = rounds["ours"][0]
    print(f"\n{args.images} images in batches of {args.batch}, {args.threads} thread(s)")
    print(f"modules {first['modules']}, of them distinct {first['distinct']}\n")
    print(f"{'':24}{'CPU s':>8}{'x forward':>11}{'peak MB':>9}{'ours is faster by':>20}")
    table = {}
    for name in contenders:
        seconds = statistics.median(r["seconds"] for r in rounds[name])
        ours = statistics.median(r["seconds"] for r in rounds["ours"])
        forward = statistics.median(r["seconds"] for r in rounds["forward"])
        peak = statistics.median(r["peak_mb"] for r in rounds[name])
        table[name] = dict(cpu_s=seconds, per_forward=seconds / forward, peak_mb=peak, ours_faster_by=seconds / ours)
        print(f"{name:24}{seconds:8.1f}{seconds / forward:11.2f}{peak:9.0f}{seconds / ours:20.2f}")
    print(f"\nat most {FORWARD} x forward: {'yes' if table['ours']['per_forward'] <= FORWARD else 'NO'}")
    if "per pair" in table:
        enough = table["per pair"]["ours_faster_by"] >= FASTER_THAN_PAIRS
        print(f"at least {FASTER_THAN_PAIRS} x faster than per pair: {'yes' if enough else 'NO'}")
    if "pytorch-cka" in table:
        peer, ours = table["pytorch-cka"], table["ours"]
        print(f"no slower than pytorch-cka: {'yes' if peer['ours_faster_by'] >= 1 else 'NO'}")
        print(f"leaner than pytorch-cka: {'yes' if ours['peak_mb'] < peer['peak_mb'] else 'NO'}")
    off = errors()
    print("largest error in float32: " + ", ".join(f"{name} {error:.1g}" for name, error in off.items()))
    if args.save:
        path = Path(__file__).with_suffix(".json")
        path.write_text(json.dumps(dict(arguments=vars(args), results=table, largest_error=off), indent=1) + "\n")


if __name__ == "__main__":
    main()
