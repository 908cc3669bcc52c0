"""The command line: its table of commands, and how it ends. Free of torch: each command imports what it needs."""

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from vitling import __version__
from vitling.cli.commands import (
    app as app_command,
)
from vitling.cli.commands import (
    demo,
    diagnose,
    evaluate,
    export,
    names,
    plan,
    predict,
    relabel,
    reproduce,
    show,
    study,
    train,
)
from vitling.errors import UserError, one_line
from vitling.inputs.values import show as shorten

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
        "evaluate": evaluate.evaluate,
        "predict": predict.predict,
        "export": export.export,
        "app": app_command.serve_app,
    },
    "Understand and compare": {
        "diagnose": diagnose.diagnose,
        "study": study.study,
        "reproduce": reproduce.reproduce,
    },
    "Names, recipes, label maps": {
        "relabel": relabel.relabel,
        "list": names.list_names,
        "show": show.show,
    },
}
for _panel, _commands in COMMANDS.items():
    for _name, _function in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_function)


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
    """Run the command; a user error is one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # file names are printed as the bytes that they are
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except UsageError as error:
        text = error.format_message().strip()
        text = text[:1].lower() + text[1:] + ("" if text.endswith((".", "?")) else ".")
        print(f"error: {text} See `{error.ctx.command_path if error.ctx else 'vitling'} --help`.", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `vitling list models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except OSError as error:  # a path that may not be read or written, or cannot exist
        if not error.filename:
            raise
        print(f"error: {shorten(str(error.filename))}: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
    if code == 130:  # Ctrl-C
        print("interrupted", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
