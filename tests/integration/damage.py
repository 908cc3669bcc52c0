"""Ways to damage a file, as disks, hands and strangers do it. Each takes the path of a file and changes it."""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Damage = Callable[[Path], None]


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(max(64, path.stat().st_size)))


def scramble_the_beginning(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(random.Random(1).randbytes(64) + content[64:])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_a_pipe(path: Path) -> None:
    """Stands for every link to what is no file. Never to a device: a mistake of ours, run as root, would replace the system's."""
    path.unlink()
    os.mkfifo(path.with_name("a-pipe"))
    path.symlink_to("a-pipe")


def link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def write(text: str) -> Damage:
    def damage(path: Path) -> None:
        path.write_text(text)

    return damage


BYTES: dict[str, Damage] = {
    "removed": remove,
    "empty": empty,
    "cut": cut,
    "cut at the end": cut_the_end,
    "binary": scramble,
    "a binary beginning": scramble_the_beginning,
    "zeros": zero,
    "a folder": make_a_folder,
    "a pipe": make_a_pipe,
    "a link to a pipe": link_to_a_pipe,
    "a dangling link": link_to_nowhere,
}
TEXTS: dict[str, Damage] = {
    "null": write("null\n"),
    "a number": write("3\n"),
    "a text": write('"text"\n'),
    "a list": write("[1]\n"),
    "an empty group": write("{}\n"),
    "not a number": write("NaN\n"),
    "nested": write("[" * 100_000),
    "a huge integer": write("9" * 5000 + "\n"),
}
REPLACEMENTS: list[Any] = [None, "text", -1, 0, float("nan"), 10**30, [], {}, [[]], True]


def key_paths(tree: Any, above: tuple = ()) -> Iterator[tuple]:
    """Where every value of a tree stands, groups and lists too."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from key_paths(value, (*above, key))


def replaced(tree: Any, where: tuple, value: Any) -> Any:
    """A copy of a tree with another value in one place."""
    key, *rest = where
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[key] = replaced(copy[key], tuple(rest), value) if rest else value
    return copy


def of_values(path: Path) -> Iterator[tuple[str, Damage]]:
    """A damage for every value of a JSON, JSON lines or YAML file and every replacement, and for every key that is lost."""
    dump = yaml.safe_dump if path.suffix == ".yaml" else json.dumps
    *before, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    tree = yaml.safe_load(last) if path.suffix == ".yaml" else json.loads(last)

    def writing(changed: Any) -> Damage:
        text = "".join(
            f"{line}\n"
            for line in [*before, dump(changed, sort_keys=False) if dump is yaml.safe_dump else dump(changed)]
        )
        return write(text)

    for where in key_paths(tree):
        name = ".".join(map(str, where))
        for value in REPLACEMENTS:
            yield f"{name} is {value}", writing(replaced(tree, where, value))
    for key in tree if isinstance(tree, dict) else ():
        yield f"{key} is lost", writing({name: value for name, value in tree.items() if name != key})
