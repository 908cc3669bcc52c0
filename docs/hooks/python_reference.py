"""The page on the public names, from their docstrings: a line for mkdocstrings per name that `import vitling` gives."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import vitling

URI = "reference/python.md"
INTRODUCTION = """# Every public name

After `import vitling`. [Python API](../python_api.md) shows how they belong together. What has no page here is not public and may change.
"""
GROUPS = {
    "Training and measuring": ("plan", "train", "train_more", "evaluate", "study", "reproduce", "examine"),
    "Using models": ("predict", "export", "open_model", "load_run", "load_weights", "save_weights", "relabel"),
}
OTHERS = "Classes, recipes and the rest"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, URI, content=list_names()))
    return files


def list_names() -> str:
    grouped = {name for names in GROUPS.values() for name in names}
    public = [name for name in vitling.__all__ if not name.startswith("_")]
    groups = {**GROUPS, OTHERS: [name for name in public if name not in grouped]}
    lines = [INTRODUCTION]
    for title, names in groups.items():
        lines += [f"## {title}", *(f"\n::: vitling.{name}\n" for name in names)]
    return "\n".join(lines)
