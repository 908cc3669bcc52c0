"""What the command line shows: live progress in a terminal, plain lines elsewhere, tables."""

from vitling.cli.terminal.checkup import show_checkup
from vitling.cli.terminal.console import note, open_page
from vitling.cli.terminal.demo import show_demo_plan, show_story
from vitling.cli.terminal.improvement import show_improvement, show_improvement_result
from vitling.cli.terminal.names import show_names
from vitling.cli.terminal.notebook import NotebookProgress, in_notebook
from vitling.cli.terminal.plan import plan_lines, pretraining_lines, show_plan
from vitling.cli.terminal.results import (
    show_address,
    show_evaluation,
    show_exported,
    show_predictions,
    show_server,
    show_verdict,
)
from vitling.cli.terminal.study import (
    reproduce_command,
    show_coverage,
    show_papers,
    show_reproduction,
    show_study,
    show_study_table,
)
from vitling.cli.terminal.training import Live, Plain, live_progress, resumable, show_progress, show_training
from vitling.cli.terminal.words import parse_budget, parse_fractions, parse_seeds, parse_size

__all__ = [
    "Live",
    "NotebookProgress",
    "Plain",
    "in_notebook",
    "live_progress",
    "note",
    "open_page",
    "parse_budget",
    "parse_fractions",
    "parse_seeds",
    "parse_size",
    "plan_lines",
    "pretraining_lines",
    "reproduce_command",
    "resumable",
    "show_address",
    "show_checkup",
    "show_coverage",
    "show_demo_plan",
    "show_evaluation",
    "show_exported",
    "show_improvement",
    "show_improvement_result",
    "show_names",
    "show_papers",
    "show_plan",
    "show_predictions",
    "show_progress",
    "show_reproduction",
    "show_server",
    "show_story",
    "show_study",
    "show_study_table",
    "show_training",
    "show_verdict",
]
