"""The navigation: an order for the pages that have one, and every other page after those of its section.

A page that somebody adds to docs/ needs no line here. A line for a page that is not there is an error.
"""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

ORDER = {
    "Start here": ["index.md"],
    "Tutorials": [
        "tutorials/own_photographs.md",
        "tutorials/medical_arrays.md",
        "tutorials/satellite_images.md",
        "tutorials/comparing_two_ideas.md",
        "tutorials/notebook.md",
    ],
    "How to": [
        "data.md",
        "several_labels.md",
        "grades_and_numbers.md",
        "planning.md",
        "training.md",
        "ensembles.md",
        "models.md",
        "methods.md",
        "pretraining.md",
        "bootstrapping.md",
        "token_labeling.md",
        "diagnosis.md",
        "studies.md",
        "exporting.md",
        "app.md",
        "python_api.md",
        "many_devices.md",
        "extending.md",
        "troubleshooting.md",
    ],
    "Explanation": [
        "explanation/why_small_data_is_hard.md",
        "explanation/five_papers.md",
        "explanation/honest_numbers.md",
        "explanation/comparison.md",
    ],
    "Reference": ["reference/recipe.md", "reference/commands.md", "reference/python.md"],
    "Results": ["results.md", "reproducing.md", "reliability.md"],
    "Project": ["changelog.md", "contributing.md", "security.md"],
}
FOLDERS = {"tutorials": "Tutorials", "explanation": "Explanation", "reference": "Reference", "benchmarks": "Results"}
OTHERS = "How to"  # pages directly in docs/


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put every page into the navigation."""
    config.nav = arrange([file.src_uri for file in files.documentation_pages()])
    return files


def arrange(pages: list[str]) -> list[dict[str, list[str]]]:
    """The sections with their pages: those of ORDER in its order, the others by name."""
    listed = [page for section in ORDER.values() for page in section]
    if absent := sorted(set(listed) - set(pages)):
        raise PluginError(f"ORDER in docs/hooks/navigation.py names {', '.join(absent)}, which docs/ does not have.")
    sections = {name: list(order) for name, order in ORDER.items()}
    for page in sorted(set(pages) - set(listed)):
        sections[FOLDERS.get(page.partition("/")[0], OTHERS)].append(page)
    return [{name: section} for name, section in sections.items()]
