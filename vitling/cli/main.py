"""The command line: one subcommand, one public function. No logic lives here, and torch is imported late."""

import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from vitling.cli import completion
from vitling.errors import UserError

STARTED = time.monotonic()
UsageError = (
    typer.BadParameter.__base__
)  # typer brings its own click or uses the installed one, depending on its version

app = typer.Typer(
    name="vitling",
    help="Grow Vision Transformers from scratch on small image datasets.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

MAKE, LEARN, PARTS = "From images to a model in use", "Understand and compare", "Names, recipes, label maps"

DATA_HELP = "digits, cifar100, hf:owner/name, a folder, a CSV, a list or an .npz."
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, autocompletion=completion.data)]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", autocompletion=completion.runs)]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Changes to the recipe, such as epochs=50.", autocompletion=completion.settings
    ),
]
Split = Annotated[
    str, typer.Option(help="test, val or train.", autocompletion=completion.one_of("test", "val", "train"))
]
Weights = Annotated[str, typer.Option(help="best or last.", autocompletion=completion.one_of("best", "last"))]
Precision = Annotated[
    str, typer.Option(help="no (float32), bf16 or fp16.", autocompletion=completion.one_of("no", "bf16", "fp16"))
]
Seeds = Annotated[str, typer.Option(help="How many, or which: 5, or 0,3,7.")]
EqualTime = Annotated[
    str | None, typer.Option(help="Equal wall time per run, such as 5m; epochs follow from measured speed.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process of its own.")]
ThreadsOfEach = Annotated[int | None, typer.Option(min=1, help="CPU threads of each run.")]
Budget = Annotated[
    str | None, typer.Option(help="Time to use, such as 90s, 30m or 2h: fits epochs and schedule to it.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: one or all, as is faster.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder that already holds a named dataset.")]
MemoryGb = Annotated[
    float | None, typer.Option(min=0, help="Decoded images may take so much memory; larger data is streamed.")
]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes that read streamed data.")]
SkipBadImages = Annotated[bool, typer.Option("--skip-bad-images", help="Leave unreadable images out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only results and errors.")]


def _version(asked: bool) -> None:
    if asked:
        from vitling import __version__

        print(f"vitling {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Grow Vision Transformers from scratch on small image datasets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(rich_help_panel=MAKE)
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs go. The same one again goes on.")] = Path("vitling-demo"),
    open_page: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the page in a browser; default: where there is a screen."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """See the whole story in two minutes, offline: two models learn digits, are compared, and explained."""
    from vitling.cli import terminal
    from vitling.planning.plan import plan as make_plan
    from vitling.studies.demo import DATA
    from vitling.studies.demo import demo as run_demo

    terminal.show_demo_plan(make_plan(DATA, brief=True), quiet)
    with terminal.show_study(quiet) as listener:
        story = run_demo(out, listener=listener, on_progress=terminal.show_counting(listener))
    terminal.show_story(story)
    terminal.open_page(story.diagnosis, open_page)


@app.command(rich_help_panel=MAKE)
def plan(
    data: Data,
    settings: Changes = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Plan for this recipe instead of choosing one.", autocompletion=completion.recipes),
    ] = None,
    budget: Budget = None,
    save: Annotated[Path | None, typer.Option(help="Write the recipe into this new YAML file.")] = None,
    threads: Threads = None,
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look at the data and the machine; say what would be trained, why, and how long it takes."""
    from vitling.cli import terminal
    from vitling.recipes import load_recipe, override, save_recipe

    budget_seconds = terminal.parse_duration(budget) if budget else None
    chosen = override(load_recipe(recipe), settings or []) if recipe else None
    if save and save.exists():
        raise UserError(f"{save} exists; --save writes a new file, so choose another name.")

    from vitling.planning.plan import plan as make_plan

    with terminal.show_progress(quiet or as_json) as on_progress:
        where = dict(threads=threads, reading=_reading(data_root, memory_gb, None), on_progress=on_progress)
        planned = make_plan(data, settings or [], recipe=chosen, budget_seconds=budget_seconds, **where)
    if save:
        save_recipe(override(planned.recipe, {"data": _absolute(data)}), save)
    print(planned.to_json()) if as_json else terminal.show_plan(planned, data, settings or [], save)


@app.command(rich_help_panel=MAKE)
def train(
    data: Data,
    settings: Changes = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A name, a YAML file or a run; default: what `vitling plan` says.", autocompletion=completion.recipes
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory. The same one again resumes the run.")] = None,
    budget: Budget = None,
    precision: Precision = "no",
    threads: Threads = None,
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Save for resuming this often.")] = 60.0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to TensorBoard.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases.")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log to MLflow.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from scratch; the same command again resumes it."""
    from vitling.cli import terminal
    from vitling.recipes import load_recipe, override

    if any(setting.startswith("data=") for setting in settings or []):
        raise UserError("the data is the first argument; leave data= out.")
    chosen = override(load_recipe(recipe), settings or []) if recipe else None
    budget_seconds = terminal.parse_duration(budget) if budget else None

    from vitling.planning.plan import (
        plan as make_plan,  # after the first checks: a typo is answered before torch has loaded
    )
    from vitling.runs.run import asked_for, free_directory
    from vitling.training.loop import train as run_training
    from vitling.training.settings import Settings

    reading = _reading(data_root, memory_gb, workers)
    told = []
    if settings or not recipe:  # a recipe as it stands needs no look at the data
        planned = make_plan(data, settings or [], recipe=chosen, brief=True, reading=reading)
        chosen, told = planned.recipe, terminal.plan_lines(planned, data)
    chosen = override(chosen, {"data": _absolute(data), "init": _absolute(chosen.init) if chosen.init else ""})
    if out is None:
        base = Path("runs") / re.sub(r"[^\w.-]+", "-", f"{Path(data).stem}-{Path(recipe or chosen.model).stem}")
        out = free_directory(base, asked_for(chosen, budget_seconds))
    trackers = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    where = Settings(
        precision=precision,
        threads=threads,
        budget_seconds=budget_seconds,
        began=STARTED,
        checkpoint_seconds=checkpoint_seconds,
        trackers=tuple(tracker for tracker, wanted in trackers.items() if wanted),
        reading=reading,
    )
    with terminal.show_training(quiet or os.environ.get("RANK", "0") != "0") as listener:
        for line in told:
            listener.say(line)
        run = run_training(chosen, out, settings=where, listener=listener)
        listener.finished(run)
        if run.finished and os.environ.get("RANK", "0") == "0":
            from vitling.diagnose.run_page import write_run_page

            page = write_run_page(run, reading=where.reading, on_progress=listener.decoding)
            listener.say(f"page: {page}")


@app.command(rich_help_panel=MAKE)
def evaluate(
    run: RunDir,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Other data with the same classes; default: the run's own.",
            autocompletion=completion.data,
        ),
    ] = None,
    split: Split = "test",
    weights: Weights = "best",
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure a run: top-1 and top-5 with intervals, macro-F1, each class, confusion matrix, calibration."""
    from vitling.cli import terminal
    from vitling.evaluation.evaluation import evaluate as run_evaluation

    with terminal.show_progress(quiet or as_json) as on_progress:
        reading = _reading(data_root, memory_gb, workers)
        result = run_evaluation(run, data, split=split, which=weights, reading=reading, on_progress=on_progress)
    print(result.to_json()) if as_json else terminal.show_evaluation(result, run)


@app.command(rich_help_panel=MAKE)
def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run, an .onnx file, an exported folder or hf-hub:OWNER/NAME.",
            autocompletion=completion.runs,
        ),
    ],
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE", help="Image files and folders; - reads paths from standard input."),
    ],
    top: Annotated[int, typer.Option(min=1, help="Classes per image.")] = 3,
    weights: Weights = "best",
    raw_probabilities: Annotated[
        bool, typer.Option("--raw-probabilities", help="As the model gives them, not calibrated on validation images.")
    ] = False,
    attention: Annotated[Path | None, typer.Option(help="New folder for pictures of where the model looked.")] = None,
    null: Annotated[
        bool, typer.Option("--null", help="Paths on standard input end in NUL, as of find -print0.")
    ] = False,
    skip_bad_images: SkipBadImages = False,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    quiet: Quiet = False,
) -> None:
    """Name the classes of images, with calibrated probabilities."""
    from vitling.cli import terminal

    if as_json and as_csv:
        raise UserError("--json and --csv cannot both be printed; choose one.")
    if null and "-" not in images:
        raise UserError("--null is about paths on standard input; give - in place of the images.")

    from vitling.deploy.prediction import predict as run_prediction
    from vitling.deploy.prediction import read_paths

    named = [
        path for given in images for path in (read_paths(sys.stdin.buffer, null=null) if given == "-" else [given])
    ]
    with terminal.show_progress(quiet or as_json or as_csv) as on_progress:
        options = dict(top=top, which=weights, calibrated=not raw_probabilities, attention=attention)
        common = dict(reading=_reading(data_root, None, None), say=terminal.note, on_progress=on_progress)
        predictions = run_prediction(model, named, skip_bad_images=skip_bad_images, **options, **common)
    terminal.show_predictions(predictions, "json" if as_json else "csv" if as_csv else "table")


@app.command(rich_help_panel=MAKE)
def export(
    run: RunDir,
    to: Annotated[
        str,
        typer.Option(
            help="onnx, timm (a folder) or hf (a folder for the Hugging Face hub).",
            autocompletion=completion.one_of("onnx", "timm", "hf"),
        ),
    ] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file or folder to write; default: in the run.")] = None,
    weights: Weights = "best",
    raw_input: Annotated[
        bool, typer.Option("--raw-input", help="ONNX that takes normalised floats instead of uint8 pixels.")
    ] = False,
    push: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Upload the hf folder to the hub.")] = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write ONNX, or a folder with a model card for timm and the hub, compared with the run's model before."""
    from vitling.cli import terminal
    from vitling.deploy.export import export as write_export

    with terminal.show_progress(quiet or as_json) as on_progress:
        options = dict(which=weights, raw_input=raw_input, push=push, reading=_reading(data_root, None, None))
        exported = write_export(run, to, out, on_progress=on_progress, **options)
    print(exported.to_json()) if as_json else terminal.show_exported(exported)


@app.command("app", rich_help_panel=MAKE)
def serve_app(
    run: RunDir,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes any that is free.")] = 7860,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other computers in.")] = "127.0.0.1",
    weights: Weights = "best",
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Serve a page to drop an image on: its class, attention, the training images most like it."""
    from vitling.cli import terminal
    from vitling.deploy.app import bind, open_viewer, serve
    from vitling.runs.run import load_run

    load_run(run)  # a typo is answered before anything else is tried
    listener = bind(host, port)
    with terminal.show_progress(quiet) as on_progress:
        viewer = open_viewer(run, which=weights, reading=_reading(data_root, None, None), on_progress=on_progress)
    serve(viewer, listener, ready=terminal.show_address)


@app.command(rich_help_panel=LEARN)
def diagnose(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run, a model of timm, or local-dir:FOLDER.", autocompletion=completion.runs
        ),
    ],
    other: Annotated[
        str | None,
        typer.Argument(metavar="RUN2", help="A second one to compare with.", autocompletion=completion.runs),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Images to look at; default: the run's own, held out.", autocompletion=completion.data),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The page; default: diagnosis.html in the run.")] = None,
    images: Annotated[int, typer.Option(min=1, help="How many images to look at.")] = 512,
    weights: Weights = "best",
    data_root: DataRoot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say why a model, or one of two, is as good as it is: CKA, attention, features, a verdict on one page."""
    from vitling.cli import terminal
    from vitling.diagnose.diagnosis import diagnose as measure
    from vitling.diagnose.diagnosis import write_diagnosis

    with terminal.show_progress(quiet or as_json) as on_progress:
        reading = _reading(data_root, None, None)
        results = measure(run, other, data, images=images, which=weights, reading=reading, on_progress=on_progress)
        page = write_diagnosis(results, out, on_progress=on_progress)
    print(page.with_suffix(".json").read_text()) if as_json else terminal.show_verdict(results, page)


@app.command(rich_help_panel=LEARN)
def study(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|KEY=VALUE",
            help='Names, YAML files or runs; with settings and a name of its own: "plain: digits/vit_nano epochs=5". '
            "Settings that stand alone are for all.",
            autocompletion=completion.recipes_and_settings,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="Data for all recipes; default: each recipe's own.", autocompletion=completion.data),
    ] = None,
    seeds: Seeds = "3",
    fractions: Annotated[str, typer.Option(help="Parts of the training images, such as 0.1,0.5,1.")] = "1",
    budget: EqualTime = None,
    out: Annotated[Path, typer.Option(help="The study's folder. The same one again goes on.")] = Path("study"),
    split: Annotated[
        str,
        typer.Option(
            help="test (once per run), or val for making choices.", autocompletion=completion.one_of("test", "val")
        ),
    ] = "test",
    jobs: Jobs = 1,
    threads: ThreadsOfEach = None,
    precision: Precision = "no",
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compare recipes over seeds and data sizes: mean ± 95 % interval, paired differences, one page.

    Exit code 1: some runs failed, and the table says why.
    """
    from vitling.cli import terminal
    from vitling.recipes import override, read_recipes

    chosen = read_recipes(recipes)
    plan = dict(seeds=terminal.parse_seeds(seeds), fractions=terminal.parse_fractions(fractions))
    plan["budget_seconds"] = terminal.parse_duration(budget) if budget else None
    if as_json + as_csv + as_markdown > 1:
        raise UserError("--json, --csv and --markdown cannot be printed together; choose one.")

    from vitling.studies.study import study as run_study
    from vitling.training.settings import Settings

    chosen = {
        name: override(recipe, {"data": _absolute(data or recipe.data), "init": recipe.init and _absolute(recipe.init)})
        for name, recipe in chosen.items()
    }
    where = Settings(precision=precision, threads=threads, reading=_reading(data_root, memory_gb, workers))
    with terminal.show_study(quiet or as_json or as_csv or as_markdown) as listener:
        result = run_study(chosen, out, **plan, split=split, jobs=jobs, settings=where, listener=listener)
    if as_json or as_csv or as_markdown:
        print(result.to_json() if as_json else result.to_csv() if as_csv else result.to_markdown(), end="")
    else:
        terminal.show_study_table(result)
    if result.failures:
        raise typer.Exit(1)


@app.command(rich_help_panel=LEARN)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER/TABLE",
            help="Such as dhvt/table6 or t2t/fig1; none lists all.",
            autocompletion=completion.tables,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="paper (the published setting: a GPU and its data) or nano (minutes on a CPU).",
            autocompletion=completion.one_of("paper", "nano"),
        ),
    ] = "paper",
    rows: Annotated[str, typer.Option(help="Only these rows: names or parts of names, as in DHVT-T,DeiT.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its time; train nothing.")] = False,
    seeds: Seeds = "3",
    data: Annotated[
        str | None,
        typer.Option(
            help="nano: any small data (default digits); paper: ImageNet's folder.", autocompletion=completion.data
        ),
    ] = None,
    budget: EqualTime = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of every run; schedules shrink with them.")] = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder. The same one again goes on.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Figures: draw this study instead of training one.")] = None,
    jobs: Jobs = 1,
    threads: ThreadsOfEach = None,
    precision: Precision = "no",
    data_root: DataRoot = None,
    memory_gb: MemoryGb = None,
    workers: Workers = None,
    list_all: Annotated[bool, typer.Option("--list", help="All tables and figures, a line each.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train the rows of a table or figure of one of the five papers; the paper's numbers stand beside ours.

    Exit code 1: some runs failed, and the table says why.
    """
    from vitling.cli import terminal
    from vitling.papers import is_figure
    from vitling.papers.plan import make_plan

    if name is None or list_all:
        terminal.show_papers(name or "", as_json)
        return
    asked = dict(scale=scale, rows=rows, data=_absolute(data) if data else None, epochs=epochs)
    make_plan(name, **asked)  # a typo is answered before torch has loaded
    asked |= dict(seeds=terminal.parse_seeds(seeds), budget_seconds=terminal.parse_duration(budget) if budget else None)
    if runs and not is_figure(name):
        raise UserError(f"--runs is for figures; {name} finds its runs again in --out.")

    from vitling.training.settings import Settings

    asked["settings"] = Settings(precision=precision, threads=threads, reading=_reading(data_root, memory_gb, workers))
    if dry_run:
        from vitling.papers.reproduction import preview

        with terminal.show_progress(quiet or as_json) as on_progress:
            result = preview(name, **asked, on_progress=on_progress)
        print(result.to_json()) if as_json else terminal.show_reproduction(result)
        return
    asked |= dict(jobs=jobs, command=_command())
    with terminal.show_study(quiet or as_json) as listener:
        asked |= dict(listener=listener, on_progress=terminal.show_counting(listener))
        if is_figure(name):
            from vitling.papers.figures import draw_figure

            page = draw_figure(name, out, runs=runs, **asked)
        else:
            from vitling.papers.reproduction import reproduce as run_table

            result = run_table(name, out, **asked)
    if is_figure(name):
        print(json.dumps({"page": str(page)}) if as_json else f"page: {page}")
        return
    print(result.to_json()) if as_json else terminal.show_reproduction(result)
    if result.study and result.study.failures:
        raise typer.Exit(1)


@app.command(rich_help_panel=PARTS)
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
    out: Annotated[Path | None, typer.Option(help="Folder for the maps; the same one again goes on.")] = None,
    size: Annotated[str | None, typer.Option(help="Image size that the annotator sees, such as 64 or 64x96.")] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            help="resize, pad or crop; default: as the annotator was trained.",
            autocompletion=completion.one_of("resize", "pad", "crop"),
        ),
    ] = None,
    top_k: Annotated[int, typer.Option(help="Classes kept per cell.")] = 5,
    weights: Weights = "best",
    raw_scores: Annotated[
        bool, typer.Option("--raw-scores", help="Store logits as they are, like the release.")
    ] = False,
    authors: Annotated[Path | None, typer.Option(help="Also write the authors' .pt files into this folder.")] = None,
    skip_bad_images: SkipBadImages = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Write label maps for method=token_labeling, from any trained model."""
    from vitling.cli import terminal
    from vitling.methods.token_labeling.relabeling import export_to_authors
    from vitling.methods.token_labeling.relabeling import relabel as write_maps

    out = out or Path("labels") / re.sub(r"[^\w.-]+", "-", f"{Path(data).stem}-{Path(annotator).name}")
    options = dict(which=weights, size=terminal.parse_size(size), fit=fit, top_k=top_k, raw_scores=raw_scores)
    reading, bad = _reading(data_root, None, None), "skip" if skip_bad_images else "error"
    with terminal.show_progress(quiet) as on_progress:
        common = dict(on_bad_image=bad, reading=reading, on_progress=on_progress)
        maps = write_maps(annotator, data, out, say=print, **options, **common)
        if authors:
            export_to_authors(maps, data, authors, **common)
    print(f"next: vitling train {data} method=token_labeling method_args.labels={maps.folder} model=lvvit_nano")


@app.command("list", rich_help_panel=PARTS)
def list_names(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="models, recipes, methods or datasets.",
            autocompletion=completion.one_of("models", "recipes", "methods", "datasets"),
        ),
    ],
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Only names that contain this.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the names that the other commands take."""
    from vitling.cli import terminal

    terminal.show_names(what, pattern, as_json)


@app.command(rich_help_panel=PARTS)
def show(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A recipe's name, a YAML file or a run.", autocompletion=completion.recipes
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a recipe, as the YAML that --recipe takes."""
    from vitling.recipes import load_recipe, to_dict, to_yaml

    shown = load_recipe(recipe)
    print(json.dumps(to_dict(shown), indent=1, ensure_ascii=False) if as_json else to_yaml(shown).rstrip())


def _reading(root: Path | None, memory_gb: float | None, workers: int | None):
    from vitling.data.pipeline.reading import Reading

    given = {"root": str(root) if root else None, "memory_gb": memory_gb, "workers": workers}
    return Reading(**{name: value for name, value in given.items() if value is not None})


def _command() -> str:
    """The command as it was typed, to be repeated."""
    return shlex.join(["vitling", *sys.argv[1:]])


def _absolute(data: str) -> str:
    """Paths go into the recipe whole, so that the run can be repeated from anywhere; the name of a dataset stays a name."""
    from vitling.data.sources.named import match_name

    return str(Path(data).resolve()) if Path(data).exists() and not match_name(data) else data


def main() -> None:
    """Run the command; what the user can mend is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except UsageError as error:
        text = error.format_message().strip()
        text = text[:1].lower() + text[1:] + ("" if text.endswith((".", "?")) else ".")
        print(f"error: {text} See `{error.ctx.command_path if error.ctx else 'vitling'} --help`.", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `vitling list models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if code == 130:  # Ctrl-C
        print("interrupted", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
