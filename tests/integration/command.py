"""The command line as tests call it: in this process, which spares loading torch each time, or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys

from vitling.cli.main import main


def call(*arguments, stdin: bytes = b"") -> tuple[int, str, str]:
    """The command in this process: exit code, standard output, standard error."""
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["vitling", *map(str, arguments)], io.TextIOWrapper(io.BytesIO(stdin))
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            sys.argv, sys.stdin = before
    return code, out.getvalue(), err.getvalue()


def vitling(*arguments, code=0, stdin: bytes = b"") -> str:
    """What the command printed: its output, or what it said on standard error where it is to fail."""
    left, out, err = call(*arguments, stdin=stdin)
    assert left == code, out + err
    return out if code == 0 else err


def error(*arguments) -> str:
    """The one line that a wrong command prints."""
    lines = vitling(*arguments, code=2).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def start(*arguments, cwd=None) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "vitling", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
