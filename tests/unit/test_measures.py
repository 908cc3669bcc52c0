"""A new measure needs its file and a line in MEASURES: JSON, page and verdict pick it up from there."""

import ast
import json
from pathlib import Path

import pytest
import timm
import torch

import vitling.diagnose
from vitling.diagnose.diagnosis import diagnose, diagnose_run
from vitling.diagnose.indicator import Finding, Indicator
from vitling.diagnose.measures import MEASURES
from vitling.diagnose.measures.measure import AttentionMeasure, BlockMeasure, Mean, ModelMeasure
from vitling.diagnose.verdict import indicators
from vitling.reports.page import Text


class TokenNorm(BlockMeasure):
    """Mean length of a token."""

    indicators = (Indicator("token norm", lambda d: d.measurements.blocks[-1].token_norm, "{value}", "high"),)

    def __init__(self):
        self.mean = Mean()

    def see_tokens(self, tokens, layout):
        self.mean.add(tokens.norm(dim=-1).mean(), len(tokens))

    def result(self):
        return {"token_norm": self.mean.value.item()}

    @staticmethod
    def parts(results):
        return [Text(f"token norm of {d.name}: {d.measurements.blocks[0].token_norm:.6f}") for d in results]

    @staticmethod
    def findings(d):
        value = d.measurements.blocks[-1].token_norm
        return [Finding("token norm", "watch", value, "Tokens are long.", "By definition.", "shorten them.")]


class ClassTokenShare(AttentionMeasure):
    """Share of the attention on the first token, per head."""

    def __init__(self):
        self.mean = Mean()

    def see_weights(self, weights, layout):
        self.mean.add(weights[..., 0].mean(dim=(0, 2)), len(weights))

    def result(self):
        return {"class_token_share": self.mean.value}

    @staticmethod
    def parts(results):
        return [Text(f"class token share: {d.measurements.attention[0].class_token_share[0]:.6f}") for d in results]


class Confidence(ModelMeasure):
    """Mean probability of the predicted class."""

    def __init__(self):
        self.mean = Mean()

    def see_output(self, logits, labels):
        self.mean.add(logits.softmax(dim=1).amax(dim=1).mean(), len(logits))

    def result(self):
        return {"confidence": self.mean.value.item()}

    @staticmethod
    def parts(results):
        return [Text(f"confidence: {d.measurements.model.confidence:.6f}") for d in results]


@pytest.fixture
def more_measures():
    before = list(MEASURES)
    MEASURES.extend([TokenNorm, ClassTokenShare, Confidence])
    yield
    MEASURES[:] = before


def small_vit():
    torch.manual_seed(0)
    sizes = dict(img_size=8, patch_size=2, embed_dim=16, depth=4, num_heads=2, in_chans=1, num_classes=10)
    return timm.create_model("vit_tiny_patch16_224", **sizes)


@pytest.mark.slow  # draws a whole page
def test_a_measure_of_each_kind_that_is_only_listed_is_in_the_json_on_the_page_and_in_the_verdict(
    more_measures, tmp_path
):
    model = small_vit()
    page = diagnose_run(model, data="digits", images=70, out=tmp_path / "page.html")  # two batches
    (numbers,) = json.loads(page.with_suffix(".json").read_text())
    html = page.read_text()
    for value, text in (
        (numbers["blocks"][0]["token_norm"], "token norm of VisionTransformer: "),
        (numbers["attention"][0]["class_token_share"][0], "class token share: "),
        (numbers["measures"]["confidence"], "confidence: "),
    ):
        assert f"{text}{value:.6f}" in html
    finding = next(f for f in numbers["verdict"] if f["name"] == "token norm")
    assert (finding["state"], finding["value"]) == ("watch", numbers["blocks"][-1]["token_norm"])
    assert "Tokens are long." in html
    assert numbers["indicators"]["token norm"] == finding["value"]


def test_a_measure_sees_every_image_once(more_measures):
    (result,) = diagnose(small_vit(), data="digits", images=70)
    measured, index = result.measurements, torch.arange(70)
    seen = vitling.diagnose.capture_batch(result.subject.model, result.normalized(index))
    for block in measured.blocks:
        assert block.token_norm == pytest.approx(seen.blocks[block.name][:, 1:].norm(dim=-1).mean().item(), rel=1e-5)
    for module in measured.attention:
        expected = seen.attention[module.name][..., 0].mean(dim=(0, 2))
        torch.testing.assert_close(module.class_token_share.float(), expected, atol=1e-6, rtol=1e-5)
    expected = measured.logits.softmax(dim=1).amax(dim=1).mean().item()
    assert measured.model.confidence == pytest.approx(expected, rel=1e-6)


def test_an_indicator_without_reference_runs_is_a_number_but_no_finding(more_measures, monkeypatch):
    monkeypatch.setattr(TokenNorm, "findings", BlockMeasure.findings)
    (result,) = diagnose(small_vit(), data="digits", images=8)
    assert indicators(result)["token norm"] > 0
    assert "token norm" not in {finding.name for finding in result.findings}


def test_two_measures_cannot_give_the_same_field(more_measures):
    MEASURES.append(type("Again", (TokenNorm,), {}))
    with pytest.raises(AssertionError, match="Again gives a field that is there already"):
        diagnose(small_vit(), data="digits", images=8)


def test_no_module_of_the_diagnosis_imports_another_inside_a_function():
    for path in Path(vitling.diagnose.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for node in ast.walk(function):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else []
                modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                assert not [m for m in modules if m.startswith("vitling")], f"{path.name}: {function.name}"
