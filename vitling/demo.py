"""The demo: a small ViT learns handwritten digits on a CPU, offline, in under two minutes."""

from pathlib import Path

from vitling.evaluate import evaluate
from vitling.recipe import load_recipe
from vitling.report import write_run_page
from vitling.train import train


def run_demo(out: Path, terminal) -> None:
    """Train the digits recipe into `out` (again: resume or reuse it), evaluate it once, say what to try next."""
    recipe = load_recipe("digits/vit_nano")
    run_dir = Path(out) / "vit_nano"
    with terminal.show_training() as listener:
        listener.say("A Vision Transformer from scratch on 1,797 handwritten digits of 8 x 8 pixels.\n")
        run = train(recipe, run_dir, listener=listener)
    if not run.finished:
        return
    page = write_run_page(run)
    result = evaluate(run)
    low, high = result.top1_interval
    terminal.console.print(
        f"\nTest accuracy [bold]{100 * result.top1:.1f} %[/] on {result.images} digits that it never saw "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f}), trained in {terminal.duration(run.info['wall_seconds'])}.\n\n"
        f"Curves, confusion and mistakes: {page}\n\n"
        "What to try next:\n"
        f"  vitling evaluate {run_dir}            every number, per class\n"
        f"  vitling diagnose {run_dir}            why it is no better, on one page\n"
        "  vitling train digits --recipe digits/dhvt_nano      an architecture for small data\n"
        "  vitling train path/to/your/folder                   one subfolder of images per class\n"
        "  vitling list recipes",
        soft_wrap=True,
    )
