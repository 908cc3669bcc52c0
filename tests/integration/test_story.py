"""From a folder of photographs to a model in use, as a user does it: every step is the installed command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

pytest.importorskip("onnxruntime", reason='needs pip install "vitling[export]"')
pytestmark = pytest.mark.slow

FLOWERS = Path(__file__).parents[2].parent / "shared" / "data" / "flowers10"
TINY = ["model=dhvt_test", "img_size=32", "epochs=3", "batch_size=16"]

# What somebody does with the file who has neither torch nor vitling.
ELSEWHERE = """
import json, sys
import numpy as np, onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
said = session.get_modelmeta().custom_metadata_map
names, seen = json.loads(said["class_names"]), json.loads(said["preprocessing"])
assert seen["fit"] == "resize"
for path in sys.argv[2:]:
    image = Image.open(path).convert("RGB" if seen["channels"] == 3 else "L")
    pixels = np.asarray(image.resize(seen["size"][::-1], Image.Resampling.BICUBIC))
    pixels = pixels.reshape(*seen["size"], seen["channels"]).transpose(2, 0, 1)
    shares = session.run(["probabilities"], {"image": pixels[None]})[0][0]
    print(json.dumps(dict(zip(names, shares.tolist()))))
assert "torch" not in sys.modules
"""


def vitling(*arguments, cwd):
    """What the installed command prints."""
    command = [Path(sys.executable).with_name("vitling"), *map(str, arguments)]
    result = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def images(tmp_path):
    """Three kinds of flowers, or of digits where the flowers are not at hand: 30 images each, 10 of them to test on."""
    root = tmp_path / "images"
    if FLOWERS.exists():
        for split, count in (("train", 20), ("test", 10)):
            for kind in ("rose", "lotus_lotus", "water_lily"):
                (root / split / kind).mkdir(parents=True)
                for photograph in sorted((FLOWERS / split / kind).iterdir())[:count]:
                    (root / split / kind / photograph.name).symlink_to(photograph)
        return root
    digits = load_digits()
    for label in range(3):
        for i, image in enumerate(digits.images[digits.target == label][:30]):
            folder = root / ("train" if i < 20 else "test") / f"digit {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((15.9 * image).astype(np.uint8)).resize((40, 40)).save(folder / f"{i}.png")
    return root


def test_from_a_folder_through_plan_train_evaluate_predict_and_export_to_onnxruntime(images, tmp_path):
    planned = json.loads(vitling("plan", images, *TINY, "--json", cwd=tmp_path))
    assert planned["survey"]["images"] == {"train": 60, "test": 30}
    assert planned["recipe"]["model"] == "dhvt_test"
    assert planned["seconds"] > 0

    trained = vitling("train", images, *TINY, cwd=tmp_path)
    assert "stopped: all 3 epochs are done" in trained
    assert "next: vitling evaluate runs/images" in trained

    measured = json.loads(vitling("evaluate", "runs/images", "--json", cwd=tmp_path))
    predicted = json.loads(vitling("predict", "runs/images", images / "test", "--json", cwd=tmp_path))
    right = [Path(one["path"]).parent.name == one["classes"][0] for one in predicted]
    assert measured["images"] == len(right) == 30
    assert measured["top1"] == pytest.approx(np.mean(right))

    exported = json.loads(
        vitling("export", "runs/images", "--to", "onnx", "--out", "model.onnx", "--json", cwd=tmp_path)
    )
    assert exported["path"] == "model.onnx"
    assert exported["difference"] <= exported["allowed"]
    files = [one["path"] for one in predicted]
    elsewhere = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "model.onnx", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert elsewhere.returncode == 0, elsewhere.stderr
    # Large JPEGs are decoded at a reduced scale here and whole elsewhere, so pixels differ by a few grey levels.
    for line, one in zip(elsewhere.stdout.splitlines(), predicted, strict=True):
        there, here = json.loads(line), dict(zip(one["classes"], one["probabilities"], strict=True))
        assert there == pytest.approx(here, abs=0.03)
