"""From a folder of images to a model in use elsewhere: train, evaluate, export, predict, on the command line."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from command import vitling
from PIL import Image
from sklearn.datasets import load_digits

from vitling.recipes import Optim, Recipe
from vitling.training.beginning import train

pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Zeros and ones as a tree of files."""
    root, digits = tmp_path_factory.mktemp("digits"), load_digits()
    for name, label in (("zero", 0), ("one", 1)):
        for i, image in enumerate(digits.images[digits.target == label][:100]):
            folder = root / ("test" if i % 5 == 0 else "train") / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((15.9 * image).astype(np.uint8)).resize((24, 24)).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    optim = Optim(lr=2e-3, warmup_epochs=1)
    recipe = Recipe(data=str(digits), model="dhvt_test", img_size=16, epochs=3, batch_size=32, optim=optim)
    return train(recipe, tmp_path_factory.mktemp("runs") / "digits").path


NORMALISING = """
import json, sys
import numpy as np, onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
said = session.get_modelmeta().custom_metadata_map
names, seen = json.loads(said["class_names"]), json.loads(said["preprocessing"])
for path in sys.argv[2:]:
    pixels = np.array(Image.open(path).resize(seen["size"][::-1], Image.Resampling.BICUBIC), np.float32)
    image = (pixels[None, None] / 255 - np.float32(seen["mean"])) / np.float32(seen["std"])
    logits, probabilities = session.run(None, {"image": image.astype(np.float32)})
    print(names[logits.argmax()], probabilities.max())
assert "torch" not in sys.modules
"""


def test_an_onnx_file_needs_neither_torch_nor_vitling(run, digits, tmp_path):
    said = vitling("export", run, "--to", "onnx", "--raw-input", "--out", tmp_path / "model.onnx")
    assert re.search(r"input: image, normalised float32, batch x 1 x 16 x 16\n", said)
    assert re.search(r"checked: logits differ from the run's by at most \S+ on \d+ validation images", said)
    assert f"next: vitling predict {tmp_path / 'model.onnx'} IMAGE..." in said
    files = [str(path) for path in sorted((digits / "test").rglob("*.png"))]
    alone = subprocess.run(
        [sys.executable, "-c", NORMALISING, str(tmp_path / "model.onnx"), *files], capture_output=True, text=True
    )
    assert alone.returncode == 0, alone.stderr
    ours = csv.reader(io.StringIO(vitling("predict", run, digits / "test", "--csv", "--top", "1")))
    for theirs, (_, name, probability) in zip(alone.stdout.splitlines(), list(ours)[1:], strict=True):
        assert theirs.split()[0] == name
        assert float(theirs.split()[1]) == pytest.approx(float(probability), abs=1e-4)


def test_the_folder_for_the_hub_loads_as_its_card_says_and_predicts_from_standard_input(
    run, digits, tmp_path, monkeypatch
):
    assert "checked:" in vitling("export", run, "--to", "hf", "--out", tmp_path / "digits-hf")
    code = re.search(r"```python\n(.*?)```", (tmp_path / "digits-hf" / "README.md").read_text(), re.DOTALL)[1]
    assert code.startswith("import vitling\nimport timm  # after vitling, which adds this model to it")
    monkeypatch.chdir(tmp_path)
    loaded = {}
    files = sorted((digits / "test").rglob("*.png"))
    (tmp_path / "IMAGE").write_bytes(files[0].read_bytes())  # as the card calls it
    exec(code, loaded)
    assert loaded["model"].num_classes == 2
    listed = b"\0".join(map(os.fsencode, files))
    found = vitling("predict", "digits-hf", "-", "--null", "--json", "--attention", "looked", stdin=listed)
    assert [p["path"] for p in json.loads(found)] == [str(path) for path in files]
    assert len(list((tmp_path / "looked").iterdir())) == len(files)


def test_wrong_commands_are_one_line_and_exit_code_2(run, digits, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for arguments, said in (
        (
            ["export", run, "--to", "tflite"],
            "cannot export to 'tflite'. Allowed: hf, onnx, onnx-int8, openvino, pt2, timm.",
        ),
        (["export", run, "--to", "hf", "--out", tmp_path / "taken"], "exists already and is not overwritten"),
        (["export", tmp_path / "taken"], "is not a run directory"),
        (["predict", run, digits, "--null"], "give - in place of the images"),
        (
            ["predict", digits / "test" / "one" / "0.png", digits],
            "0.png is not a model; files end in .onnx, .safetensors",
        ),
    ):
        (line,) = vitling(*arguments, code=2).splitlines()
        assert line.startswith("error: ")
        assert said in line
