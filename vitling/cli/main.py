"""The command line: its table of commands, and how it ends. Free of torch: each command imports what it needs."""

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from vitling import __version__
from vitling.cli.commands import (
    app as app_command,
)
from vitling.cli.commands import (
    demo,
    diagnose,
    doctor,
    evaluate,
    export,
    improve,
    names,
    plan,
    predict,
    pretrain,
    relabel,
    reproduce,
    serve,
    show,
    study,
    train,
)
from vitling.cli.options import with_plugins
from vitling.cli.terminal.console import print_error
from vitling.cli.terminal.streams import lasting_streams, others_silenced
from vitling.errors import UserError, one_line
from vitling.validation.values import show as shorten

# typer brings its own click or uses the installed one, depending on its version
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="vitling",
    help="Grow Vision Transformers from scratch on small image datasets.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "From images to a model in use": {
        "demo": demo.demo,
        "plan": plan.plan,
        "train": train.train,
        "pretrain": pretrain.pretrain,
        "evaluate": evaluate.evaluate,
        "predict": predict.predict,
        "export": export.export,
        "app": app_command.serve_app,
        "serve": serve.serve,
    },
    "Understand and compare": {
        "diagnose": diagnose.diagnose,
        "improve": improve.improve,
        "study": study.study,
        "reproduce": reproduce.reproduce,
    },
    "Names, recipes, label maps": {
        "relabel": relabel.relabel,
        "list": names.list_names,
        "show": show.show,
        "doctor": doctor.doctor,
    },
}
for _panel, _commands in COMMANDS.items():
    for _name, _function in _commands.items():
        app.command(_name, rich_help_panel=_panel)(with_plugins(_function))


def _version(asked: bool) -> None:
    if asked:
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


def main() -> None:
    """Run the command and exit with its code: 2 and one line for a user error, 130 and 143 for Ctrl-C and SIGTERM."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # file names are printed as the bytes that they are
    with lasting_streams() as out, others_silenced(), _terminable():
        code = _run()
        out.flush()
        if out.failure and not code:  # what was printed is lost, though the work is done
            print(f"error: standard output cannot be written: {out.failure.strerror}.", file=sys.stderr)
            code = 2
    if code and _is_one_of_several():
        sys.stderr.flush()
        os._exit(code)  # the threads of a group whose other processes are gone would end this one with an abort
    sys.exit(code)


def _is_one_of_several() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _run() -> int:
    try:
        code = app(standalone_mode=False) or 0
    except UserError as error:
        print_error(f"error: {one_line(str(error))}")
        return 2
    except UsageError as error:
        print_error(f"error: {_in_our_words(error)} See `{error.ctx.command_path if error.ctx else 'vitling'} --help`.")
        return 2
    except OSError as error:  # a path that may not be read or written, or cannot exist
        if not error.filename:
            raise
        print(f"error: {shorten(str(error.filename))}: {error.strerror}.", file=sys.stderr)
        return 2
    if code == 130:  # Ctrl-C
        print("interrupted", file=sys.stderr)
    return code


def _in_our_words(error: Any) -> str:
    """What typer says of a wrong argument, and what was given: where pydantic checks for typer, it says only what is allowed."""
    text = error.format_message().strip()
    failures: list[dict] = getattr(error.__cause__, "errors", list)()
    if failures:
        text = text.replace("Invalid value for", f"Invalid value {shorten(failures[0]['input'])} for", 1)
    return text[:1].lower() + text[1:] + ("" if text.endswith((".", "?")) else ".")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM leaves as Ctrl-C does: what is half written is removed, locks are given back. Training waits for its step."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
