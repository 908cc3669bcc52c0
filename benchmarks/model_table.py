"""Writes the table of docs/models.md: parameters and MACs of every variant, beside the papers' numbers.

    python benchmarks/model_table.py

MACs are the multiply-adds of all matrix products and convolutions of one image's forward pass, the two products inside
attention included. They are counted on torch's meta device, so nothing is computed.
"""

import vitling  # noqa: F401  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import re
from pathlib import Path

import timm
import torch

from vitling.files import write_text
from vitling.models import our_models
from vitling.models.macs import count_macs

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- table: benchmarks/model_table.py -->", "<!-- end of table -->"

# Millions of parameters and GMACs as printed in the papers; what a paper calls FLOPs are multiply-adds in all five. A release's
# README is meant where the number stands in brackets.
PAPERS = {
    "t2t_vit_7": ("4.3", "1.1"),
    "t2t_vit_10": ("(5.9)", "(1.5)"),
    "t2t_vit_12": ("6.9", "1.8"),
    "t2t_vit_14": ("21.5", "4.8"),
    "t2t_vit_19": ("39.2", "8.5"),
    "t2t_vit_24": ("64.1", "13.8"),
    "t2t_vit_t_14": ("21.5", "6.1"),
    "t2t_vit_t_19": ("39.2", "9.8"),
    "t2t_vit_t_24": ("64.1", "15.0"),
    "t2t_vit_c_14": ("21.3", "4.6"),
    "t2t_vit_14_wo_t2t": ("21.1", "4.2"),
    "t2t_vit_14_resnext": ("21.5", "4.8"),
    "t2t_vit_14_wide": ("25.1", "5.0"),
    "t2t_vit_14_se": ("21.9", "4.9"),
    "t2t_vit_16_ghost": ("16.3", "3.7"),
    "t2t_vit_dense": ("23.7", "5.5"),
    "vit_s16": ("48.6", "10.1"),
    "vit_s16_deep_narrow": ("24.5", "5.5"),
    "vit_s16_se": ("49.2", ""),
    "vit_s16_resnext": ("48.6", ""),
    "vit_s16_ghost": ("32.1", ""),
    "lvvit_t": ("8.5", ""),
    "lvvit_s": ("26", "6.6"),
    "lvvit_m": ("56", "16.0"),
    "lvvit": ("26", ""),
    "lvvit_plain": ("25", ""),
    "dhvt_tiny_cifar_patch4": ("6.0", "0.4"),
    "dhvt_small_cifar_patch4": ("23.4", "1.5"),
    "dhvt_tiny_cifar_patch2": ("5.8", "1.4"),
    "dhvt_small_cifar_patch2": ("22.8", "5.6"),
    "dhvt_tiny_domain_patch16": ("6.1", ""),
    "dhvt_small_domain_patch16": ("23.8", ""),
    "dhvt_tiny_imagenet_patch16": ("6.2", "(1.4)"),
    "dhvt_small_imagenet_patch16": ("24.0", "(5.1)"),
    "boot_vit_small": ("6.30", "1.37"),
    "boot_vit_base": ("21.70", "4.62"),
    "agent_small": ("8.73", ""),
    "agent_small_res": ("8.73", "3.37"),
    "agent_base_res": ("25.91", "9.46"),
    "diag_vit_patch4": ("9.6", ""),
    "diag_vit_patch8": ("9.6", ""),
    "diag_resnet18": ("11.5", ""),
}
# The papers count these for CIFAR-100.
NUM_CLASSES = dict.fromkeys(
    ("boot_vit_small", "boot_vit_base", "agent_small", "agent_small_res", "agent_base", "agent_base_res"), 100
)


def count(name: str) -> tuple[int, int, int, str]:
    """Parameters, those of them that are trained, MACs, and the size of the images."""
    with torch.device("meta"):
        model = timm.create_model(name, **({"num_classes": NUM_CLASSES[name]} if name in NUM_CLASSES else {})).eval()
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    total, trained = sum(n for n, _ in sizes), sum(n for n, needed in sizes if needed)
    channels, height, width = model.pretrained_cfg["input_size"]
    return total, trained, count_macs(model, (channels, height, width)), f"{height}x{width}"


def table() -> str:
    lines = [
        "| model | family | image | classes | parameters | of them trained | paper M | GMACs | paper G |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, family in our_models().items():
        total, trained, macs, size = count(name)
        classes = NUM_CLASSES.get(name, timm.get_pretrained_cfg(name).num_classes)
        paper_params, paper_macs = PAPERS.get(name, ("", ""))
        lines.append(
            f"| `{name}` | {family} | {size} | {classes} | {total:,} | {trained:,} | {paper_params} "
            f"| {macs / 1e9:.3f} | {paper_macs} |"
        )
    return "\n".join(lines)


def main() -> None:
    page = PAGE.read_text()
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", re.DOTALL)
    if not between.search(page):
        raise SystemExit(f"{PAGE} lacks the lines {BEGIN} and {END}")
    write_text(PAGE, between.sub(lambda _: table() + "\n", page))


if __name__ == "__main__":
    main()
