"""The page on the command line, from the commands themselves."""

import inspect

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from vitling.cli.main import app

URI = "reference/commands.md"
INTRODUCTION = """# Every command and option

What `vitling COMMAND --help` prints, on one page. Everything that a command does is also [a call from Python](python.md).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, URI, content=describe_commands()))
    return files


def describe_commands() -> str:
    parser = typer.main.get_command(app)
    shown = {name: command for name, command in sorted(parser.commands.items()) if not command.hidden}
    return "\n".join([INTRODUCTION, *(_describe(name, command) for name, command in shown.items())])


def _describe(name: str, command) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    rows = [_row(parameter) for parameter in command.params if not parameter.hidden]
    table = "\n".join(["| | | default |", "|---|---|---|", *rows])
    return f"## vitling {name}\n\n`vitling {name} {usage}`\n\n{inspect.cleandoc(command.help or '')}\n\n{table}\n"


def _row(parameter) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = (
        [parameter.metavar or parameter.name.upper()] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    )
    shown = parameter.default not in (None, False, "", ()) and not callable(parameter.default)
    cells = [", ".join(f"`{name}`" for name in names), parameter.help or "", f"`{parameter.default}`" if shown else ""]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
