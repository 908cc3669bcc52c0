"""Takes the charts of docs/explanation out of the pages that vitling's commands draw.

    vitling study "plain ViT: digits/vit_nano" "DHVT: digits/dhvt_nano" "ResNet: digits/resnet18_nano" \
        epochs=5 optim.warmup_epochs=1 --seeds 1 --out studies/three
    vitling diagnose studies/three/runs/plain-ViT/fraction-1/seed-0 studies/three/runs/ResNet/fraction-1/seed-0 --out vit.html
    vitling diagnose studies/three/runs/DHVT/fraction-1/seed-0 studies/three/runs/ResNet/fraction-1/seed-0 --out dhvt.html
    python benchmarks/explanation_figures.py studies/three/study.html vit.html dhvt.html
"""

import re
import sys
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images" / "explanation"
GREY = "#767676"  # readable on white and on dark: an image does not know the page's colour


def take(page: str, label: str, name: str) -> None:
    """Write the first chart of the page that has this text on an axis."""
    charts = re.findall(r"<svg.*?</svg>", Path(page).read_text(encoding="utf-8"), re.DOTALL)
    chart = next(chart for chart in charts if f">{label}</text>" in chart)
    chart = chart.replace("currentColor", GREY).replace("<svg ", '<svg width="480" ', 1)
    IMAGES.mkdir(parents=True, exist_ok=True)
    lines = (line.rstrip() for line in chart.splitlines())
    (IMAGES / f"{name}.svg").write_text("\n".join(line for line in lines if line) + "\n", encoding="utf-8")


if __name__ == "__main__":
    study, vit, dhvt = sys.argv[1:]
    take(study, "validation accuracy, %", "curves")
    for page, name in ((vit, "vit"), (dhvt, "dhvt")):
        take(page, "effective rank / channels", f"rank_{name}")
        take(page, "CKA", f"cka_{name}")
