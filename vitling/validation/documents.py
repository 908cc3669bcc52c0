"""JSON and YAML as data: read whole, of the declared shape, bounded in size and depth; whatever is wrong with a file is one line.

Any file of a run may be cut short, damaged, or made by a stranger.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from vitling.errors import UserError
from vitling.files import read_file
from vitling.validation.values import DEEPEST, check

MOST_BYTES = 2**28  # of a document: a confusion matrix of thousands of classes takes some ten million


class Record(dict):
    """A group of keys out of a file. One that is not there is named together with the file."""

    source = "the file"

    def __missing__(self, key: str) -> Any:
        raise UserError(f"{self.source} is corrupted: it lacks '{key}'. Restore it from a copy, or make it again.")


def read_json(path: Path, kind: Any = Any) -> Any:
    """The content of a JSON file, checked to be of a kind; groups are `Record`s."""
    return parse_json(read_document(path), kind, str(path))


def parse_json(text: str, kind: Any, source: str) -> Any:
    """The same of text from `source`."""
    return _checked(_parse_json(text, source), kind, source)


def read_json_lines(path: Path, kind: Any, *, finite: bool = True) -> list:
    """The lines of a log, each checked; none where there is no log yet. A last line that a crash cut short is left out."""
    if not path.exists():
        return []
    *whole, rest = read_document(path).split("\n")
    records = [_read_line(line, f"line {number} of {path}", kind, finite) for number, line in enumerate(whole, 1)]
    try:
        return records + ([_read_line(rest, str(path), kind, finite)] if rest else [])
    except UserError:
        return records


def _read_line(line: str, source: str, kind: Any, finite: bool) -> Any:
    return _checked(_parse_json(line, source, finite), kind, source)


def _parse_json(text: str, source: str, finite: bool = True) -> Any:
    def group(pairs: list[tuple[str, Any]]) -> Record:
        record = Record(pairs)
        record.source = source
        if len(record) < len(pairs):
            raise ValueError("a key stands twice")
        return record

    def refuse(word: str) -> float:
        if finite:
            raise ValueError(f"{word} is not a number that it may hold")
        return float(word)

    try:
        return json.loads(text, object_pairs_hook=group, parse_constant=refuse)
    except RecursionError:
        raise damaged(source, f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:  # JSONDecodeError, or an integer of thousands of digits
        raise damaged(source, f"it is not valid JSON, {str(error).splitlines()[0]}") from None


def _checked(value: Any, kind: Any, source: str) -> Any:
    try:
        check(value, kind, "")
    except UserError as error:
        raise damaged(source, str(error).lstrip("=.").rstrip(".")) from None
    return value


def read_yaml(path: Path) -> Any:
    """The content of a YAML file."""
    return parse_yaml(read_document(path), str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Plain data out of YAML text. Anchors are refused: a few lines of them can stand for terabytes."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise UserError(f"{source} refers to an anchor (*{event.anchor}); write the values out.")
            if depth > DEEPEST:
                raise UserError(f"{source} is nested deeper than {DEEPEST} levels; write it flat.")
        return yaml.load(text, Loader=_Loader)
    except UserError:
        raise
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
    ) as error:  # a date that does not exist, an integer of thousands of digits
        raise UserError(f"{source} is not valid YAML: {' '.join(str(error).split())[:200]}") from None


class _Loader(yaml.SafeLoader):
    """YAML's plain types; a key that stands twice is refused, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise yaml.YAMLError(f"the key '{doubled}' stands twice")
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> str:
    """The text of a file that is meant to be short."""
    try:
        return read_file(path, at_most=MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise damaged(str(path), "it is not text in UTF-8") from None


def damaged(source: str, reason: str) -> UserError:
    """The one sentence about a file that is not what was written."""
    return UserError(f"{source} is corrupted: {reason}. Restore it from a copy, or make it again.")
