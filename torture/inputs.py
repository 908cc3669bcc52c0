"""Inputs: recipes, tables, arrays, archives, plug-ins, runs, images and command lines that hypothesis thinks of. One line and exit code 2, or an answer."""

import functools
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import typer
import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from PIL import Image

from torture import injection
from torture.bench import Part, Tally
from torture.injection import Outcome
from torture.material import CLASSES, Material, chance, empty_folder
from vitling.recipes import load_recipe, to_dict

SECONDS = 120.0  # after which a command counts as hanging, on a machine that has much else to do
EXTRA_MEMORY = 6 * 2**30  # bytes that an input of a few kilobytes may cost
TINY = ("img_size=8", "epochs=1", "batch_size=8", "optim.warmup_epochs=0", "augment.crop=none")
UNTOUCHED = ("notes.txt", "photos.html", "photos.npz", "photos.json")  # of the user, whom they have cost a week

# Nothing between what is quick and what is refused: a recipe may ask for a million epochs, and gets them.
numbers = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 3, 7, 16, 10**12, 10**40, -(10**12)]),
    st.sampled_from([0.0, -0.5, 0.5, 1.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf")]),
)
texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            "",
            " ",
            "\0",
            "\n",
            "../..",
            "/",
            "~",
            "nan",
            "1e9999",
            "0x10",
            "null",
            "[1",
            "{a: ",
            "a=b",
            "x" * 5000,
            "é\ud800",
        ]
    ),
)
values: st.SearchStrategy = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=4,
)


class Inputs(Part):
    name = "inputs"
    about = "bad input, drawn by hypothesis: exit code 0, or 2 with one line; no traceback, no hang, no file of the user changed"
    share = 2.0

    def __init__(self, folder: Path, seed: int, seconds: float):
        super().__init__(folder, seed, seconds)
        self.material = Material(folder / "material")
        set_hypothesis_home_dir(folder)  # else it keeps its tables in the present folder

    def try_one(self, number: int, tally: Tally) -> None:
        kind = list(KINDS)[number % len(KINDS)]
        draw = chance(self.seed, self.name, number).getrandbits(64)
        place = self.folder / "place"

        @hypothesis.seed(draw)
        @settings(
            max_examples=self.examples,
            phases=[Phase.generate],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(st.data())
        def try_examples(data: st.DataObject) -> None:
            words = KINDS[kind](data, self.material, prepare(place, self.material))
            before = digests(place)
            arguments = [str(word) for word in words]
            outcome = injection.run(arguments, place, seconds=SECONDS, extra_memory=EXTRA_MEMORY)
            problem = judge(outcome, arguments[:1] == ["doctor"]) or changes(before, digests(place))
            tally.count(number, problem and f"{kind}, {shorten(arguments)}: {problem}", kind)

        try_examples()


def prepare(place: Path, material: Material) -> Path:
    """A folder of the user: data, a picture, a run, notes."""
    empty_folder(place)
    for name in UNTOUCHED:
        (place / name).write_text("mine")
    shutil.copy(material.arrays, place / "data.npz")
    shutil.copy(next((material.photos / CLASSES[0]).iterdir()), place / "picture.png")
    shutil.copy(material.recipe("tiny", *TINY), place / "tiny.yaml")
    os.mkfifo(place / "pipe.png")
    return place


def judge(outcome: Outcome, may_advise: bool = False) -> str:
    """What is wrong; 1 is the code of a command that looked at the machine and has found something to do."""
    answered = outcome.code in ((0, 1) if may_advise else (0,)) and "Traceback" not in outcome.err
    return "" if answered or outcome.failed_well else outcome.describe()


def digests(place: Path) -> dict[str, str]:
    """Of what the user has in the folder: everything outside of runs."""
    files = [path for path in place.iterdir() if path.is_file() and not path.is_symlink()]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def changes(before: dict[str, str], after: dict[str, str]) -> str:
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    return f"changed or removed: {', '.join(changed)}" if changed else ""


def shorten(arguments: list[str]) -> str:
    return " ".join(repr(word)[:60] for word in arguments)


# -- the kinds of input: each makes its files in the folder and says what to do with them ------------------------------


def draw_recipe(data: st.DataObject, material: Material, place: Path) -> list:
    """A recipe with some other values and keys, or a text that is hardly one."""
    tree = to_dict(load_recipe(place / "tiny.yaml"))
    if data.draw(st.integers(0, 3)) == 0:
        text = damaged(data, yaml.safe_dump(json.loads(json.dumps(tree))).encode())
        (place / "r.yaml").write_bytes(text)
    else:
        for _ in range(data.draw(st.integers(1, 2))):
            change_value(data, tree)
        try:
            text = yaml.safe_dump(json.loads(json.dumps(tree)), allow_unicode=True)
        except (UnicodeError, ValueError):
            text = repr(tree)
        (place / "r.yaml").write_bytes(text.encode(errors="surrogateescape" if "\udc80" in text else "replace"))
    return data.draw(st.sampled_from([["show", "r.yaml"], ["train", "data.npz", "--recipe", "r.yaml", "--out", "run"]]))


def draw_table(data: st.DataObject, material: Material, place: Path) -> list:
    """A CSV of images that are partly there."""
    there = st.sampled_from([str(path) for path in sorted(material.photos.rglob("*.png"))])
    cells = st.one_of(there, there, texts, st.sampled_from([".", "notes.txt", "pipe.png", "picture.png", "r\0.png"]))
    rows = data.draw(
        st.lists(st.lists(st.one_of(cells, st.sampled_from(CLASSES)), min_size=1, max_size=3), max_size=30)
    )
    good = [[data.draw(there), data.draw(st.sampled_from(CLASSES))] for _ in range(data.draw(st.sampled_from([0, 24])))]
    head = data.draw(
        st.sampled_from(["path,label", "path,label,split", "label,path", "", "path", "x,y", "path,label,label"])
    )
    mark = data.draw(st.sampled_from([",", ",", ";", "\t"]))
    lines = [head, *(mark.join(row) for row in [*good, *rows])]
    content = data.draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines).encode(errors="replace")
    (place / "list.csv").write_bytes(damaged(data, content) if data.draw(st.integers(0, 3)) == 0 else content)
    return ["train", "list.csv", "--recipe", "tiny.yaml", "--out", "run"]


def draw_arrays(data: st.DataObject, material: Material, place: Path) -> list:
    """An .npz with other types, shapes, labels or names, or one that is damaged."""
    with np.load(material.arrays) as archive:
        arrays = dict(archive)
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from([*arrays, "val_images", "val_labels", "train_masks"]))
        arrays[name] = data.draw(odd_arrays())
    if data.draw(st.booleans()):
        arrays.pop(data.draw(st.sampled_from(sorted(arrays))))
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in arrays.items() if "/" not in name})
    content = file.getvalue()
    (place / "odd.npz").write_bytes(damaged(data, content) if data.draw(st.booleans()) else content)
    return ["train", "odd.npz", "--recipe", "tiny.yaml", "--out", "run"]


@st.composite
def odd_arrays(draw: Callable[[st.SearchStrategy], Any]) -> np.ndarray:
    kind = draw(st.sampled_from(["u1", "u2", "i8", "f4", "f8", "c8", "?", "U3", "S2", "M8[s]", "O", "V4"]))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 12, 72]), max_size=4))
    if np.prod(shape, dtype=float) > 10**6:
        shape = shape[:2]
    filled = draw(st.sampled_from([0, 1, 2, 255]))
    if kind in "OM8[s]V4S2U3":
        return np.zeros(shape, kind)
    array = np.full(shape, filled, kind)
    odd = draw(numbers)
    if array.size and array.dtype.kind in "fiu":
        with np.errstate(all="ignore"):
            array.flat[0] = np.array(odd, "f8").astype(kind)
    return array


def draw_archive(data: st.DataObject, material: Material, place: Path) -> list:
    """A zip, a tar of class folders, a shard or a table of parquet: damaged, or with a member or a header of another kind."""
    kind = data.draw(st.sampled_from(["zip", "tar", "shard", *(["parquet"] if find_spec("pyarrow") else [])]))
    pictures = {f"{p.parent.name}/{p.name}": p.read_bytes() for p in sorted(material.photos.rglob("*.png"))}
    odd = data.draw(st.sampled_from(["", *ODD_NAMES]))
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w", data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as pack:
            for name, content in [*pictures.items(), *([(odd, b"x")] if odd else [])]:
                pack.writestr(name, content)
        content = file.getvalue()
    elif kind == "parquet":
        content = parquet_table(pictures)
    elif kind == "shard":
        content = material.shard.read_bytes()
    else:
        with tarfile.open(fileobj=file, mode="w") as pack:
            for name, picture in [*pictures.items(), *([(odd, b"x")] if odd else [])]:
                entry = tarfile.TarInfo(name)
                entry.size = len(picture)
                entry.type = data.draw(st.sampled_from([b"0", b"2", b"6", b"L", b"x"])) if name == odd else b"0"
                pack.addfile(entry, io.BytesIO(picture))
        content = file.getvalue()
    if kind in ("tar", "shard") and data.draw(st.booleans()):
        content = other_size(data, content)
    elif data.draw(st.integers(0, 3)):
        content = damaged(data, content)
    name = "odd.parquet" if kind == "parquet" else "odd.zip" if kind == "zip" else "odd.tar"
    (place / name).write_bytes(content)
    return ["train", name, "--recipe", "tiny.yaml", "--out", "run"]


ODD_NAMES = (
    "../x.png",
    "/x.png",
    "ant",
    "ant/" + "a/" * 2000 + "x.png",
    "ant/\n.png",
    "\x1b/x.png",
    "ant/0.png",
    "x" * 5000,
)


def other_size(data: st.DataObject, content: bytes) -> bytes:
    """A tar of which one header announces another size, with a checksum that is right."""
    changed, heads = bytearray(content), []
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        heads = [entry.offset for entry in archive]
    at = data.draw(st.sampled_from(heads))
    size = data.draw(st.sampled_from([-1, -512, -1024, -1536, 0, 1, 511, 2**33, 2**62, 2**80]))
    changed[at + 124 : at + 136] = (
        (size % 2**95 | 2**95).to_bytes(12, "big") if size >= 0 else (256**12 + size).to_bytes(12, "big")
    )
    changed[at + 148 : at + 156] = b" " * 8
    changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def parquet_table(pictures: dict[str, bytes]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    labels = [name.partition("/")[0] for name in pictures]
    table = pyarrow.table({"image": list(pictures.values()), "label": labels})
    pyarrow.parquet.write_table(table, file, row_group_size=20)
    return file.getvalue()


def draw_plugin(data: st.DataObject, material: Material, place: Path) -> list:
    """Python that is none, or that does not do what a plug-in does."""
    text = data.draw(st.sampled_from([material.plugin.read_text(), *ODD_PYTHON]))
    content = text.encode() if data.draw(st.booleans()) else damaged(data, text.encode())
    name = data.draw(st.sampled_from(["mine.py", "mine.py", "json.py", "my-own.py", "mine.txt"]))
    (place / name).write_bytes(content)
    words = data.draw(st.sampled_from([["show", "tiny.yaml"], ["list", "recipes"], ["predict", "RUN", "picture.png"]]))
    return [*(str(material.run("finished")) if word == "RUN" else word for word in words), "--import", name]


ODD_PYTHON = (
    "",
    "import sys; sys.exit()",
    "raise SystemExit('bye')",
    "1 / 0",
    "def f(): f()\nf()",
    "import vitling.cli.main",
    "raise OSError(28, 'full', 'x')",
    "from vitling import no_such_name",
    "from vitling.methods import register_method\nregister_method('supervised', dict)",
    "from vitling.methods import register_method\nregister_method(7, None)",
    "from vitling.recipes import register_recipe\nregister_recipe('a/b', lambda: 1 / 0)",
    "print('hello')",
)


RUN_FILES = """
    recipe.yaml run.json metrics.jsonl timing.jsonl gradients.jsonl calibration.json evaluation-test.json
    best/config.json best/model.safetensors last/config.json last/model.safetensors checkpoint/manifest.json
""".split()  # noqa: SIM905


def draw_run(data: st.DataObject, material: Material, place: Path) -> list:
    """A run of which one file is damaged, or holds another value in one place."""
    finished = material.run("finished")
    if not (finished / "evaluation-test.json").exists():
        injection.run(["evaluate", str(finished), "--quiet"], place)
    shutil.copytree(finished, place / "run")
    path = place / "run" / data.draw(st.sampled_from(RUN_FILES))
    if path.suffix == ".safetensors" or data.draw(st.integers(0, 2)) == 0:
        path.write_bytes(damaged(data, path.read_bytes()))
    else:
        *before, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        tree = yaml.safe_load(last) if path.suffix == ".yaml" else json.loads(last)
        change_value(data, tree)
        dump = yaml.safe_dump if path.suffix == ".yaml" else json.dumps
        path.write_bytes("\n".join([*before, dump(tree), ""]).encode(errors="replace"))
    return data.draw(
        st.sampled_from(
            [
                ["evaluate", "run"],
                ["predict", "run", "picture.png"],
                ["export", "run", "--to", "timm", "--out", "exported"],
                ["train", "data.npz", "--recipe", "run", "--out", "again", "epochs=1", "optim.warmup_epochs=0"],
                ["show", "run"],
                ["improve", "run", "--budget", "20s", "--out", "improved"],
                ["diagnose", "run", "--images", "8", "--out", "page.html"],
            ]
        )
    )


FORMATS = {
    "png": "PNG",
    "jpg": "JPEG",
    "gif": "GIF",
    "bmp": "BMP",
    "tif": "TIFF",
    "webp": "WEBP",
    "ppm": "PPM",
    "npy": "",
}


def draw_image(data: st.DataObject, material: Material, place: Path) -> list:
    """An image file that was cut, flipped in some bits, or never was one."""
    suffix = data.draw(st.sampled_from(sorted(FORMATS)))
    content = encoded_image(suffix)
    if data.draw(st.integers(0, 4)) == 0:  # the beginning of one, and then anything
        content = content[: data.draw(st.integers(2, 60))] + data.draw(st.binary(max_size=400))
    shown = data.draw(st.sampled_from([suffix, "png", "npy"]))
    (place / f"odd.{shown}").write_bytes(damaged(data, content))
    return ["predict", material.run("finished"), f"odd.{shown}", "--json"]


@functools.cache
def encoded_image(suffix: str) -> bytes:
    pixels, file = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8), io.BytesIO()
    if suffix == "npy":
        np.save(file, pixels)
    else:
        Image.fromarray(pixels).save(file, FORMATS[suffix])
    return file.getvalue()


# Of each command what it needs to be quick, and the words that are drawn for the rest. `demo` takes minutes, `app` and `serve` serve for ever.
NEEDED = {
    "plan": ["data.npz", "--recipe", "tiny.yaml"],
    "train": ["data.npz", "--recipe", "tiny.yaml"],
    "evaluate": ["RUN"],
    "predict": ["RUN", "picture.png"],
    "export": ["RUN", "--to", "timm"],
    "diagnose": ["RUN", "--images", "8"],
    "study": ["tiny.yaml", "--seeds", "1"],
    "reproduce": ["--coverage"],
    "relabel": ["RUN", "data.npz"],
    "list": ["recipes"],
    "show": ["tiny.yaml"],
    "improve": ["RUN", "--budget", "20s", "--out", "improved"],
    "doctor": [],
}
LONG = (
    "--jobs",
    "--budget",
    "--more",
    "--push",
    "--wandb",
    "--mlflow",
    "--tensorboard",
    "--open",
    "--install-completion",
)
WORDS = st.one_of(
    st.sampled_from(
        [*UNTOUCHED, "data.npz", "picture.png", "tiny.yaml", "out", "nowhere/x", "RUN", ".", "pipe.png", "-"]
    ),
    st.sampled_from(
        ["-1", "0", "1", "2", "nan", "inf", "1e999", "9" * 400, "1,1", "x", "best", "val", "timm", "csv", "8x", "0x0"]
    ),
    st.sampled_from(
        ["epochs=0", "model=x", "optim.lr=nan", "augment.crop", "=", "data=x", "model_args.depth=-1", "seed=1"]
    ),
    # The system takes no other words, and nothing is to be written outside of the folder.
    texts.filter(lambda text: not set(text) & set("\0\ud800/")),
)


def draw_command(data: st.DataObject, material: Material, place: Path) -> list:
    """A command with options and words that do not belong to it."""
    name = data.draw(st.sampled_from(sorted(NEEDED)))
    words = [name, *NEEDED[name]]
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            words.append(data.draw(st.sampled_from(options(name))))
        if data.draw(st.integers(0, 3)):
            words.append(data.draw(WORDS))
    if data.draw(st.integers(0, 4)) == 0:
        words.pop(data.draw(st.integers(0, len(words) - 1)))
    finished = str(material.run("finished"))
    return [word.replace("RUN", finished) for word in words if word not in ("demo", "app", "serve")]


@functools.cache
def options(name: str) -> list[str]:
    from vitling.cli.main import app

    command: Any = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    names = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    return [*sorted(set(names) - set(LONG)), "--no-such-option", "--help"]


KINDS: dict[str, Callable[[st.DataObject, Material, Path], list]] = {
    "recipes": draw_recipe,
    "tables": draw_table,
    "arrays": draw_arrays,
    "archives": draw_archive,
    "plug-ins": draw_plugin,
    "runs": draw_run,
    "images": draw_image,
    "commands": draw_command,
}


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """The content cut short, flipped in some bits, overwritten in one place, or with something more in it."""
    kind = data.draw(st.sampled_from(["cut", "flip", "overwrite", "insert", "empty", "other"]))
    place = data.draw(st.integers(0, max(len(content) - 1, 0)))
    if kind == "cut":
        return content[:place]
    if kind == "flip":
        changed = bytearray(content)
        for at in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=8)):
            changed[at // 8] ^= 1 << at % 8
        return bytes(changed)
    if kind == "empty":
        return b""
    other = data.draw(st.binary(min_size=1, max_size=64))
    if kind == "overwrite":
        return content[:place] + other + content[place + len(other) :]
    return content[:place] + other + content[place:] if kind == "insert" else other


def change_value(data: st.DataObject, tree: Any) -> None:
    """Put another value, or another key, somewhere into a tree."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if isinstance(tree, dict) and (not keys or data.draw(st.integers(0, 9)) == 0):
            tree[data.draw(texts)] = data.draw(values)
            return
        if not keys:
            tree.append(data.draw(values))
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(tree[key], dict | list) and data.draw(st.integers(0, 3)):
            tree = tree[key]
            continue
        if isinstance(tree, dict) and data.draw(st.integers(0, 5)) == 0:
            del tree[key]
        else:
            tree[key] = data.draw(values)
        return
