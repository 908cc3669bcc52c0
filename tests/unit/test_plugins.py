"""Plug-ins: code of a user's own, imported when the user says so, and recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitling
from vitling import plugins
from vitling.cli.main import COMMANDS, app
from vitling.data.sources.registered import SOURCES
from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.plugins import import_plugin, pack_plugins, unpack_plugins


@pytest.fixture(autouse=True)
def _forget_what_was_registered():
    """Other tests list the methods and the data that there are."""
    known = dict(METHODS), dict(SOURCES)
    yield
    for table, before in zip((METHODS, SOURCES), known, strict=True):
        table.clear()
        table.update(before)


PLUGIN = '''
import numpy as np
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from vitling.data import ArrayImages, Found, register_source
from vitling.methods import Method, register_method
from vitling.models import register_variants
from vitling.recipes import Augment, Optim, Recipe, register_recipe


class Own(VisionTransformer):
    @classmethod
    def default_cfg(cls, **arguments):
        return dict(first_conv="patch_embed.proj", classifier="head")


register_variants(Own, {"NAME_test": dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2)})


class Plain(Method):
    def forward(self, batch, progress):
        return {"loss": F.cross_entropy(self.model(batch["image"]).float(), batch["label"])}


register_method("NAME_plain", Plain)


def stripes(what):
    labels = np.arange(48) % 2
    pixels = np.random.default_rng(0).integers(0, 100, (48, 16, 16, 3), dtype=np.uint8)
    pixels[labels == 1, ::2] += 100
    images = ArrayImages(pixels, labels, "stripes")
    return Found(["plain", "striped"], {"train": images.subset(range(32)), "test": images.subset(range(32, 48))}, [])


register_source("NAME-stripes", stripes, "48 generated images")


def tiny():
    """A tiny one."""
    augment, optim = Augment(crop="none"), Optim(warmup_epochs=0)
    return Recipe(model="NAME_test", method="NAME_plain", data="NAME-stripes", epochs=1, batch_size=16, augment=augment, optim=optim)


register_recipe("NAME/tiny", tiny)
'''


def write_plugin(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(PLUGIN.replace("NAME", name))
    return path


def start(*words, cwd, **environment) -> subprocess.CompletedProcess:
    """The command in a process of its own, which has imported nothing."""
    command = [sys.executable, "-m", "vitling", *map(str, words)]
    where = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(vitling.__file__).parents[1]), **environment}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=where)


def test_every_command_takes_an_import():
    import typer

    parser = typer.main.get_command(app)
    for name in (name for group in COMMANDS.values() for name in group):
        assert "--import" in {option for parameter in parser.commands[name].params for option in parameter.opts}, name


def test_a_plug_in_registers_all_four_kinds_and_the_same_one_again_changes_nothing(tmp_path):
    path = write_plugin(tmp_path, "all_four")
    plugin = import_plugin(path)
    assert plugin.provides == {
        "model": ["all_four_test"],
        "method": ["all_four_plain"],
        "data": ["all_four-stripes"],
        "recipe": ["all_four/tiny"],
    }
    assert import_plugin(str(path)) is plugin
    assert vitling.load_recipe("all_four/tiny").model == "all_four_test"
    dataset = vitling.data.open_dataset("all_four-stripes")
    assert {split: len(images) for split, images in dataset.splits.items()} == {"train": 32, "test": 16}


def test_a_package_is_imported_whole_and_its_hash_is_of_all_its_files(tmp_path):
    package = tmp_path / "own_package"
    write_plugin(package, "inside")
    (package / "__init__.py").write_text("from own_package import inside\n")
    plugin = import_plugin(package)
    assert sorted(plugin.files) == ["own_package/__init__.py", "own_package/inside.py"]
    assert plugin.provides["model"] == ["inside_test"]


def test_what_lies_beside_a_plug_in_may_be_imported_and_is_part_of_its_hash(tmp_path):
    (tmp_path / "beside_it.py").write_text("WIDTH = 16\n")
    (tmp_path / "with_a_neighbour.py").write_text("from beside_it import WIDTH\n")
    assert sorted(import_plugin(tmp_path / "with_a_neighbour.py").files) == ["beside_it.py", "with_a_neighbour.py"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "no plug-in at .*gone.py; give a .py file"),
        ("notes.txt", "hello", "is not a Python file"),
        ("my-model.py", "", "cannot be imported under its name; rename it"),
        ("class.py", "", "cannot be imported under its name; rename it"),
        ("json.py", "", "is called like a module that there is already, json; rename it"),
        ("bad_syntax.py", "def f(:\n", r"cannot be imported: SyntaxError: .* \(line 1\)"),
        (
            "bad_import.py",
            "\nimport no_such_module\n",
            r"ModuleNotFoundError: No module named 'no_such_module' \(line 2\)",
        ),
        ("bad_code.py", "x = 1\n1 / 0\n", r"ZeroDivisionError: division by zero \(line 2\)"),
        ("a_script.py", "import sys\nsys.exit()\n", "ends the program when it is imported"),
        (
            "replaces.py",
            "from vitling.methods import METHODS, Method\nMETHODS['replaced_by_test'] = Method\n",
            "replaces the method replaced_by_test; give its own another name",
        ),
        (
            "takes_name.py",
            "from vitling.methods import Method, register_method\nregister_method('supervised', Method)\n",
            "there is a method supervised already",
        ),
        (
            "takes_recipe.py",
            "from vitling.recipes import register_recipe\nregister_recipe('digits/vit_nano', lambda: None)\n",
            "there is a recipe digits/vit_nano already",
        ),
        (
            "takes_data.py",
            "from vitling.data import register_source\nregister_source('Fashion_MNIST', print)\n",
            "there is data called Fashion_MNIST already",
        ),
    ],
)
def test_a_plug_in_that_cannot_be_imported_is_one_line(tmp_path, name, text, message, monkeypatch):
    from vitling.methods import METHODS, Supervised

    monkeypatch.setitem(METHODS, "replaced_by_test", Supervised)
    if text is not None:
        (tmp_path / name).write_text(text)
    before = list(sys.path)
    with pytest.raises(UserError, match=message):
        import_plugin(tmp_path / name)
    assert sys.path == before
    assert Path(name).stem not in plugins._loaded


@pytest.mark.parametrize("name", ["no_such_module_at_all", "no.such.module", "not a name", ""])
def test_a_module_that_does_not_exist_is_one_line(name):
    with pytest.raises(UserError, match="no plug-in"):
        import_plugin(name)


def test_a_folder_without_init_is_no_package(tmp_path):
    with pytest.raises(UserError, match="is no package"):
        import_plugin(tmp_path)


@pytest.mark.parametrize("bad", ["labels", "kind", "split"])
def test_what_a_source_gives_is_checked(tmp_path, bad):
    import numpy as np

    from vitling.data import ArrayImages, Found, register_source

    images = ArrayImages(np.zeros((4, 8, 8, 1), np.uint8), [0, 1, 2, 7], "x")
    given = {
        "labels": Found(["a", "b"], {"train": images}, []),
        "kind": [1],
        "split": Found(["a"], {"trian": images}, []),
    }
    register_source(f"bad-{bad}", lambda what: given[bad])
    with pytest.raises(UserError, match=f"data source bad-{bad}"):
        vitling.data.open_dataset(f"bad-{bad}")


def test_a_path_after_the_colon_is_the_same_data_from_any_folder(tmp_path, monkeypatch):
    from vitling.cli.options import absolute
    from vitling.data import register_source

    register_source("colon-data", lambda what: None)
    (tmp_path / "cells.tif").write_text("")
    monkeypatch.chdir(tmp_path)
    assert absolute("colon-data:cells.tif") == f"colon-data:{tmp_path / 'cells.tif'}"
    assert absolute("colon-data:seven") == "colon-data:seven"


def test_plug_ins_travel_with_their_text_to_machines_that_lack_the_file(tmp_path):
    path = write_plugin(tmp_path / "here", "traveller")
    code = "import sys, json; from vitling.plugins import *; {}"
    packing = f"import_plugin({str(path)!r}); print(json.dumps(pack_plugins()))"
    packed = subprocess.run(
        [sys.executable, "-c", code.format(packing)], capture_output=True, text=True, check=True
    ).stdout
    path.unlink()
    unpacking = "unpack_plugins(json.load(sys.stdin)); print(*provided('model'))"
    done = subprocess.run([sys.executable, "-c", code.format(unpacking)], input=packed, capture_output=True, text=True)
    assert done.stdout.strip() == "traveller_test", done.stderr
    assert unpack_plugins([item for item in pack_plugins() if item["name"] == "traveller"]) is None


@pytest.mark.slow
def test_a_module_travels_with_its_package_and_is_not_written_where_others_can_change_it(tmp_path):
    write_plugin(tmp_path / "here" / "wandering", "inner")
    (tmp_path / "here" / "wandering" / "__init__.py").write_text("")
    (tmp_path / "temporary").mkdir()
    code = "import sys, json; from vitling.plugins import *; {}"

    def run(text: str, stdin: str = "", *paths: Path) -> subprocess.CompletedProcess:
        path = os.pathsep.join(map(str, [Path(vitling.__file__).parents[1], *paths]))
        where = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary")}
        words = [sys.executable, "-c", code.format(text)]
        return subprocess.run(words, input=stdin, capture_output=True, text=True, env=where, cwd=tmp_path)

    packing = "import_plugin('wandering.inner'); print(json.dumps(pack_plugins()))"
    packed = run(packing, "", tmp_path / "here").stdout
    unpacking = "unpack_plugins(json.load(sys.stdin)); print(*provided('model'))"
    done = run(unpacking, packed)
    assert done.stdout.strip() == "inner_test", done.stderr
    (folder,) = (tmp_path / "temporary").glob("vitling-plugin-*")
    folder.chmod(0o777)
    assert "belongs to somebody else, who could change a plug-in in it" in run(unpacking, packed).stderr


@pytest.mark.slow
def test_a_run_of_a_plug_in_says_what_to_import_and_runs_no_code_on_its_own(tmp_path):
    plugin = write_plugin(tmp_path / "mine", "recorded")
    done = start(
        "train", "recorded-stripes", "--recipe", "recorded/tiny", "--import", plugin, "--out", "run", "-q", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (record,) = json.loads((tmp_path / "run" / "run.json").read_text())["plugins"]
    assert record["source"] == str(plugin)
    told = f"import {plugin} first (SHA-256 {record['sha256'][:12]})"
    # The file would leave a trace if anybody imported it.
    plugin.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n" + plugin.read_text())
    (tmp_path / "image.png").write_bytes(b"")
    for words in (
        ["evaluate", "run"],
        ["evaluate", "run", "digits"],
        ["export", "run", "--to", "timm"],
        ["diagnose", "run"],
        ["train", "recorded-stripes", "--recipe", "run", "--out", "other"],
        ["predict", "run", "image.png"],
    ):
        refused = start(*words, cwd=tmp_path)
        assert (refused.returncode, len(refused.stderr.strip().splitlines())) == (2, 1), (words, refused.stderr)
        assert told in refused.stderr, (words, refused.stderr)
    assert not (tmp_path / "imported").exists()
    found = start("evaluate", "run", "--import", plugin, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "has changed since the training" in " ".join(found.stdout.split())


@pytest.mark.slow
def test_a_study_with_two_processes_finds_a_plug_in(tmp_path):
    plugin = write_plugin(tmp_path, "for_study")
    words = [
        "for_study/tiny",
        "other: for_study/tiny optim.lr=0.01",
        "--seeds",
        "1",
        "--jobs",
        "2",
        "--threads",
        "1",
        "--json",
    ]
    done = start("study", *words, "--import", plugin, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(row["scores"] for row in json.loads(done.stdout)["rows"])


@pytest.mark.slow
def test_an_installed_plug_in_is_found_by_its_entry_point_and_a_broken_one_is_one_line(tmp_path):
    site = tmp_path / "site"
    write_plugin(site, "by_entry")
    info = site / "vitling_by_entry-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vitling-by-entry\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[vitling.plugins]\nby_entry = by_entry\n")
    paths = f"{Path(vitling.__file__).parents[1]}:{site}"
    listed = start("list", "models", "by_entry", cwd=tmp_path, PYTHONPATH=paths)
    assert listed.stdout.startswith("by_entry_test  of the plug-in vitling-by-entry 0.3"), listed.stderr
    (site / "by_entry.py").write_text("import no_such_module\n")
    broken = start("list", "recipes", cwd=tmp_path, PYTHONPATH=paths)
    assert broken.returncode == 2
    assert broken.stderr.startswith(
        "error: the plug-in by_entry of the package vitling-by-entry 0.3 cannot be imported"
    )
    assert start("--help", cwd=tmp_path, PYTHONPATH=paths).returncode == 0
