"""`vitling relabel`."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

import vitling
from vitling.cli import completion, terminal
from vitling.cli.options import Data, DataRoot, NoCache, Quiet, SkipBadImages, TopK, Weights, reading_options


def relabel(
    annotator: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run, a model of timm, or a folder of the authors' .pt maps.",
            autocompletion=completion.runs,
        ),
    ],
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Folder for the maps; the same one again resumes.")] = None,
    size: Annotated[str | None, typer.Option(help="Image size that the annotator sees, such as 64 or 64x96.")] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            help="resize, pad or crop; default: as the annotator was trained.",
            autocompletion=completion.one_of("resize", "pad", "crop"),
        ),
    ] = None,
    top_k: TopK = 5,
    weights: Weights = "best",
    raw_scores: Annotated[
        bool, typer.Option("--raw-scores", help="Store logits as they are, like the release.")
    ] = False,
    authors: Annotated[Path | None, typer.Option(help="Also write the authors' .pt files into this folder.")] = None,
    skip_bad_images: SkipBadImages = False,
    data_root: DataRoot = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
) -> None:
    """Write label maps for method=token_labeling, from any trained model."""
    vitling.register_models()

    from vitling.methods.token_labeling.relabeling import export_to_authors, label_kind

    out = out or Path("labels") / re.sub(r"[^\w.-]+", "-", f"{Path(data).stem}-{Path(annotator).name}")
    options: dict[str, Any] = dict(
        which=weights, size=terminal.parse_size(size), fit=fit, top_k=top_k, raw_scores=raw_scores
    )
    reading, bad = reading_options(data_root, None, None, no_cache), "skip" if skip_bad_images else "error"
    with terminal.show_progress(quiet, print_line=print) as callback:
        common: dict[str, Any] = dict(on_bad_image=bad, reading=reading, callback=callback)
        maps = vitling.relabel(annotator, data, out, **options, **common)
        if authors:
            export_to_authors(maps, data, authors, **common)
    kind = label_kind(annotator)
    order = [f"labels={kind}"] if kind != "auto" else []  # as the maps number the classes
    print(f"next: vitling train {data} {' '.join([*order, *maps.training_settings])} model=lvvit_nano")
