"""Every tutorial works as it is written, from its first line to its last, on small data of its kind.

What takes minutes is shortened by replacing words of the page; nothing else is changed.
"""

import contextlib
import io
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from command import call
from docs_pages import ROOT, TUTORIALS, blocks, words
from PIL import Image
from sklearn.datasets import load_digits

import vitling

pytestmark = pytest.mark.slow

FOLDER = ROOT / "docs" / "tutorials"
SHORT = "epochs=2 optim.warmup_epochs=0 optim.cooldown_epochs=0"


def follow(name: str, folder: Path, replaced: dict[str, str]) -> str:
    """Carry out the blocks of a tutorial one after another in the present folder; what was printed."""
    text = (FOLDER / name).read_text()
    for old, new in replaced.items():
        assert old in text, f"{name} does not say {old!r} any more"
        text = text.replace(old, new)
    (folder / "page.md").write_text(text)
    module, printed = types.ModuleType(f"tutorial_{Path(name).stem}"), io.StringIO()
    sys.modules[module.__name__] = module
    for block in blocks(folder / "page.md"):
        if block.language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, name, "exec"), vars(module))
        for command in block.commands:
            code, out, err = call(*words(command)[1:])
            assert code == 0, f"{name}: {command}\n{out}{err}"
            printed.write(out)
    return printed.getvalue()


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """So many images of the digits 0, 1 and 2, from 0 to 1, and their labels."""
    data = load_digits(n_class=3)
    return data.images[:count] / 16, data.target[:count]


def test_every_tutorial_is_followed_here():
    tested = {"own_photographs.md", "medical_arrays.md", "satellite_images.md", "comparing_two_ideas.md", "notebook.md"}
    assert {page.name for page in TUTORIALS} == tested


def test_own_photographs_become_an_onnx_file(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
    monkeypatch.chdir(tmp_path)
    for number, (image, label) in enumerate(zip(*digits(75), strict=True)):
        split = "train" if number % 5 else "test"
        path = Path("photos") / split / ("daisy", "rose", "tulip")[label] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = np.kron((255 * image).astype(np.uint8), np.ones((5, 5), np.uint8))
        Image.fromarray(np.stack([grey, grey // 2, 255 - grey], axis=-1)).save(path)
    Path("new").mkdir()
    Image.open(next(Path("photos/test/rose").iterdir())).save("new/1.jpg")

    replaced = {"--budget 5m": f"{SHORT} img_size=32", "diagnose runs/photos": "diagnose runs/photos --images 16"}
    printed = follow("own_photographs.md", tmp_path, replaced)

    assert Path("photos.onnx").exists()
    assert Path("runs/photos/diagnosis.html").exists()
    assert printed.strip().splitlines()[-1].split()[0] in ("daisy", "rose", "tulip")


def test_a_medical_array_is_split_by_patients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = digits(120)
    np.save("scans.npy", np.kron((255 * images).astype(np.uint8), np.ones((1, 2, 2), np.uint8)))
    np.save("findings.npy", labels)
    np.save("patients.npy", np.arange(120) // 4)

    follow("medical_arrays.md", tmp_path, {"--budget 5m": SHORT})

    assert vitling.load_run("runs/medical").info["class_names"] == ["normal", "benign", "malignant"]
    with np.load("medical.npz") as arrays:
        assert sum(len(arrays[f"{split}_labels"]) for split in ("train", "val", "test")) == 120


def test_satellite_images_of_six_channels_reach_the_network_whole(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
    monkeypatch.chdir(tmp_path)
    images, labels = digits(90)
    bands = np.stack([(band + 1) * 600 * images for band in range(6)], axis=-1).astype(np.uint16)
    np.save("tiles.npy", np.kron(bands, np.ones((1, 2, 2, 1), np.uint16)))
    np.save("scenes.npy", np.arange(90) // 3)
    np.save("kinds.npy", np.array(["field", "forest", "water"])[labels])

    printed = follow("satellite_images.md", tmp_path, {"--budget 5m": SHORT})

    assert "6 ['field', 'forest', 'water']" in printed or "6 ('field', 'forest', 'water')" in printed
    assert Path("tiles.onnx").exists()


def test_two_ideas_are_compared_by_seed_and_the_test_split_is_opened_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replaced = {
        "epochs=10 optim.warmup_epochs=1": f"{SHORT} fraction=0.1",
        '"epochs=10", "optim.warmup_epochs=1"': '"epochs=2", "optim.warmup_epochs=0", "fraction=0.1"',
        "--budget 2m": f"{SHORT} fraction=0.1",
        "--seeds 5": "--seeds 2",
        "seeds=5": "seeds=2",
    }
    printed = follow("comparing_two_ideas.md", tmp_path, replaced)

    assert "difference" in printed
    trained = sorted(path.parent.name for path in Path("studies/agent").rglob("recipe.yaml"))
    assert trained.count("seed-0") == trained.count("seed-1") == 2  # nothing was trained again for the test split
    assert "test" in Path("studies/agent/table.md").read_text()


def test_the_notebook_runs_and_is_committed_without_outputs(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(FOLDER / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    code[0].source = code[0].source.replace("EPOCHS = 5", "EPOCHS = 1")

    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()

    assert (tmp_path / "runs" / "notebook" / "diagnosis.html").exists()
    assert "top-1" in code[4].outputs[0].text
