"""How fast are our families, next to timm's ViT of the same images, width and about as many MACs?

    python benchmarks/models.py [MODEL ...] [--threads 1] [--quick] [--save]

Prints images/s, peak memory, the share of the machine's matrix-product rate that is reached, and the ratio to timm's ViT of the
throughput per MAC. The two models of a pair, and the matrix product, take turns within each round, so that a busy machine
slows them equally; the ratio is the median over rounds. Eager, float32. `--save` writes benchmarks/models.json.
"""

import vitling  # noqa: F401  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import ctypes
import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitling.files import write_text

TARGET = 0.8  # of timm's ViT, training
SMALL = [
    "dhvt_nano",
    "t2t_vit_nano",
    "lvvit_nano",
    "boot_vit_nano",
    "agent_nano",
    "diag_vit_nano",
    "diag_resnet18_nano",
    "hybrid_vit_nano",
    "resnet9_nano",
]
DEFAULT = [
    *SMALL,
    "dhvt_tiny_cifar_patch4",
    "dhvt_tiny_imagenet_patch16",
    "t2t_vit_7",
    "t2t_vit_t_14",
    "lvvit_t",
    "boot_vit_small",
    "agent_small_res",
    "diag_vit_patch4",
    "diag_resnet18",
]


@dataclass
class Row:
    """One model in one mode, beside its partner."""

    model: str
    mode: str
    batch: int
    gmacs: float
    images_per_s: float
    peak_mb: float | None
    share_of_matmul: float
    partner: str
    partner_gmacs: float
    partner_images_per_s: float
    partner_peak_mb: float | None
    ratio_per_mac: float


def macs_of(model: nn.Module) -> int:
    """Multiply-adds of one image's forward pass; those of attention are seen only where it is not fused."""
    fused = [module for module in model.modules() if getattr(module, "fused_attn", False)]
    for module in fused:
        module.fused_attn = False
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, *model.input_size))
    for module in fused:
        module.fused_attn = True
    return counter.get_total_flops() // 2


def partner_of(model: nn.Module, macs: int) -> tuple[nn.Module, str]:
    """timm's ViT for the same images, of the same width and dropout, with the depth that comes closest in MACs."""
    _, height, width = model.input_size
    dropout = max((module.p for module in model.modules() if isinstance(module, nn.Dropout)), default=0.0)
    dim = max(48, model.embed_dim // 24 * 24)
    wanted = dim // (64 if dim >= 192 else 32)
    arguments = dict(
        img_size=(height, width),
        patch_size=4 if height <= 64 else 16,
        embed_dim=dim,
        num_heads=max(heads for heads in range(1, wanted + 1) if dim % heads == 0),
        num_classes=model.num_classes,
        proj_drop_rate=dropout,
        pos_drop_rate=dropout,
    )

    def build(depth: int) -> nn.Module:
        vit = timm.create_model("vit_tiny_patch16_224", depth=depth, **arguments)
        vit.input_size = model.input_size
        return vit

    one, two = macs_of(build(1)), macs_of(build(2))
    depth = max(1, round(1 + (macs - one) / (two - one)))
    return build(depth), f"vit {dim}x{depth}, patch {arguments['patch_size']}"


class Trainer:
    """Training steps of one model on one batch of noise, with AdamW."""

    def __init__(self, model: nn.Module, batch: int):
        self.model = model.train()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.images = torch.randn(batch, *model.input_size)
        self.labels = torch.randint(model.num_classes, (batch,))

    def step(self) -> None:
        loss = F.cross_entropy(self.model(self.images), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Inference:
    """Forward passes of one model on one batch of noise."""

    def __init__(self, model: nn.Module, batch: int):
        self.model = model.eval()
        self.images = torch.randn(batch, *model.input_size)

    @torch.inference_mode()
    def step(self) -> None:
        self.model(self.images)


def seconds(step, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - start) / times


def peak_megabytes(step) -> float | None:
    """How far the process grows during a step beyond what it held before (Linux only)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except (OSError, AttributeError):
        return None
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 1024


def _status(entry: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(entry))
    return int(line.split()[1])


def matmul_macs_per_second(size: int = 768) -> float:
    a, b = torch.randn(size, size), torch.randn(size, size)
    return size**3 / seconds(lambda: a @ b, 3)


def measure(name: str, mode: str, *, batch: int | None, rounds: int, at_least: float) -> Row:
    model = timm.create_model(name)
    model.input_size = model.pretrained_cfg["input_size"]
    macs = macs_of(model)
    partner, partner_name = partner_of(model, macs)
    partner_macs = macs_of(partner)
    batch = batch or (64 if model.input_size[-1] <= 64 else 8)
    work = Trainer if mode == "train" else Inference
    ours, theirs = work(model, batch), work(partner, batch)
    peaks = []
    for side in (ours, theirs):
        side.step()  # the optimizer's state and the kernels' caches now exist
        peaks.append(peak_megabytes(side.step))
    times = max(1, round(at_least / seconds(ours.step, 1)))
    seconds_ours, seconds_theirs, ratios, shares = [], [], [], []
    passes = 3 if mode == "train" else 1  # a backward pass costs two forward passes
    for _ in range(rounds):
        a, b, rate = seconds(ours.step, times), seconds(theirs.step, times), matmul_macs_per_second()
        seconds_ours.append(a)
        seconds_theirs.append(b)
        ratios.append((macs / a) / (partner_macs / b))
        shares.append(passes * macs * batch / a / rate)
    return Row(
        model=name,
        mode=mode,
        batch=batch,
        gmacs=macs / 1e9,
        images_per_s=batch / statistics.median(seconds_ours),
        peak_mb=peaks[0],
        share_of_matmul=statistics.median(shares),
        partner=partner_name,
        partner_gmacs=partner_macs / 1e9,
        partner_images_per_s=batch / statistics.median(seconds_theirs),
        partner_peak_mb=peaks[1],
        ratio_per_mac=statistics.median(ratios),
    )


HEADER = (
    f"{'model':28} {'mode':5} {'batch':>5} {'GMACs':>7} {'img/s':>8} {'peak MB':>8} {'matmul':>7}   "
    f"{'timm':24} {'GMACs':>7} {'img/s':>8} {'peak MB':>8}   per MAC"
)


def line(row: Row) -> str:
    def megabytes(value):
        return f"{value:8.0f}" if value is not None else f"{'?':>8}"

    verdict = ("" if row.ratio_per_mac >= TARGET else f"  below {TARGET}") if row.mode == "train" else ""
    return (
        f"{row.model:28} {row.mode:5} {row.batch:5} {row.gmacs:7.3f} {row.images_per_s:8.1f} {megabytes(row.peak_mb)} "
        f"{row.share_of_matmul:7.0%}   {row.partner:24} {row.partner_gmacs:7.3f} {row.partner_images_per_s:8.1f} "
        f"{megabytes(row.partner_peak_mb)}   {row.ratio_per_mac:.2f}{verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names (default: one or two per family)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch", type=int, help="images per step (default: 64 up to 64 px, else 8)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="the nano models, few and short rounds: does it run?")
    parser.add_argument("--save", action="store_true", help="write the numbers beside this script")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rounds, at_least, batch = (3, 0.0, options.batch or 16) if options.quick else (options.rounds, 0.5, options.batch)
    print(f"torch {torch.__version__}, timm {timm.__version__}, {options.threads} thread(s), {platform.machine()}")
    print(f"matrix product: {matmul_macs_per_second() / 1e9:.1f} GMACs/s\n\n{HEADER}")
    rows = []
    for name in options.models or (SMALL if options.quick else DEFAULT):
        for mode in ("train", "eval"):
            rows.append(measure(name, mode, batch=batch, rounds=rounds, at_least=at_least))
            print(line(rows[-1]), flush=True)
    slow = [row.model for row in rows if row.mode == "train" and row.ratio_per_mac < TARGET]
    print(f"\nbelow {TARGET} of timm's ViT per MAC in training: {', '.join(slow) or 'none'}")
    if options.save:
        result = dict(
            torch=torch.__version__, timm=timm.__version__, threads=options.threads, rows=[asdict(r) for r in rows]
        )
        write_text(Path(__file__).with_suffix(".json"), json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
