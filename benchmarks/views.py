"""What other views of an image bring at prediction: finished runs, asked about their test images as they are, mirrored, and moved as well.

    python benchmarks/views.py RUN [RUN ...]

For runs on images that were held out (benchmarks/held_out.py), so that it can be chosen by. Prints a Markdown table.
"""

import vitling  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
from dataclasses import replace

import torch

from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.sources.dataset import open_dataset
from vitling.evaluation.loop import predict_logits

ALONE = dict(test_mirror=False, test_shifts=False, test_crops=False)
WAYS = {
    "as it is": ALONE,
    "mirrored": ALONE | dict(test_mirror=True),
    "mirrored and moved": ALONE | dict(test_mirror=True, test_shifts=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    print("| run | images |", " | ".join(WAYS), "|\n|---|---:|" + "---:|" * len(WAYS))
    for name in parser.parse_args().runs:
        run = vitling.load_run(name)
        model, seen = run.load_model(), run.preprocessing()
        images = open_dataset(run.recipe.data).splits["test"]
        source = load_split(images, "test", reading=Reading(), **seen.fit_args())
        reached = []
        for views in WAYS.values():
            answers = predict_logits(model, source, replace(seen, **views)).argmax(1)
            reached.append((answers == torch.as_tensor(images.labels)).double().mean().item())
        print(f"| {run.path.name} | {len(images):,} |", " | ".join(f"{100 * top1:.1f}" for top1 in reached), "|")


if __name__ == "__main__":
    main()
