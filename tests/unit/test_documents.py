"""JSON and YAML that were damaged, or made to harm: one line, at once."""

import json
import os
from typing import Any, TypedDict

import pytest

from vitling.errors import UserError
from vitling.recipes import load_recipe
from vitling.validation.documents import Record, parse_yaml, read_json, read_json_lines, read_yaml
from vitling.validation.values import Count


class Line(TypedDict):
    epoch: Count


def message(function, *arguments):
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


BAD_JSON = [
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a": ' * 50_000,
    b"9" * 5000,
    b"NaN",
    b'{"a": 1, "a": 2}',
    b'{"a": Infinity}',
]


@pytest.mark.parametrize("content", BAD_JSON)
def test_json_that_is_damaged_is_one_line_with_the_file(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    assert "x.json is corrupted" in message(read_json, tmp_path / "x.json")


def test_a_key_that_is_missing_is_named_with_the_file(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"a": {"b": 1}}))
    found = read_json(tmp_path / "x.json")
    assert found["a"]["b"] == 1
    assert found.get("c") is None
    assert "x.json is corrupted: it lacks 'c'" in message(lambda: found["a"]["c"])
    assert isinstance(found, Record)


def test_a_value_of_another_type_is_named_with_its_key(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"epoch": "three"}))
    assert "x.json is corrupted: epoch=three must be an integer" in message(read_json, tmp_path / "x.json", Line)


def test_only_a_last_line_that_a_crash_cut_short_is_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    assert read_json_lines(path, Line) == []
    path.write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    assert read_json_lines(path, Line) == [{"epoch": 1}, {"epoch": 2}]
    path.write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    assert "line 2 of" in message(read_json_lines, path, Line)
    path.write_text('{"epoch": 1}\n{"epoch": -2}\n')
    assert "epoch=-2 is out of range" in message(read_json_lines, path, Line)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_opened(tmp_path, make):
    for name in ("x.json", "x.yaml"):
        make(tmp_path / name)
    assert "not a file" in message(read_json, tmp_path / "x.json")
    assert "not a file" in message(read_yaml, tmp_path / "x.yaml")
    message(load_recipe, tmp_path / "x.yaml")


BAD_YAML = [
    b"\x00\x01\x02",
    b"\xff\xfe" * 100,
    b"[" * 100_000,
    b"model_args: " + b"{a: " * 1000,
    b"- " * 5000,
    b"epochs: 2001-99-99",
    b"epochs: " + b"9" * 5000,
    b"epochs: 1\nepochs: 2",
    b"a: &a [1]\nb: *a",
    b"a: &a {b: *a}",
    b"!!python/object/apply:os.system [ls]",
    b"? [1]\n: 2",
    b"%YAML 9.9\n---\n",
    b"a: 1\n---\nb: 2\n",
    b"- 1",
    b"text",
    b"1: 2",
]


@pytest.mark.parametrize("content", BAD_YAML)
def test_a_recipe_that_is_no_recipe_is_one_line(tmp_path, content):
    (tmp_path / "r.yaml").write_bytes(content)
    message(load_recipe, tmp_path / "r.yaml")


def test_plain_yaml_is_read_as_ever():
    assert parse_yaml("a: [1, 2.5, x]\nb: {c: true, d: null}", "text") == {
        "a": [1, 2.5, "x"],
        "b": {"c": True, "d": None},
    }
    assert parse_yaml("", "text") is None


def test_a_recipe_may_not_hold_what_is_no_plain_data(tmp_path):
    for text in (
        "model_args: {a: 2001-01-01}",
        "model_args: {a: .nan}",
        'data: "a\\0b"',
        'init: "\\ud800"',
        "model: [x]",
        "model_args: {1: 2}",
    ):
        (tmp_path / "r.yaml").write_text(text)
        message(load_recipe, tmp_path / "r.yaml")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300, "a\0b", "\ud800", "d/" * 3000])
def test_a_name_that_no_file_can_have_is_one_line(name):
    import vitling
    from vitling.data import open_dataset
    from vitling.deploy.inputs import find_images
    from vitling.runs.opening import open_model

    functions: list[Any] = [load_recipe, open_dataset, open_model, vitling.load_run, lambda path: find_images([path])]
    for function in functions:
        assert "cannot be a path" in message(function, name)
