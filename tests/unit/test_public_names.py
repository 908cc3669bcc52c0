"""The names that others rely on."""

import subprocess
import sys

import pytest

NAMES = [
    "vitling.train",
    "vitling.evaluate",
    "vitling.predict",
    "vitling.plan",
    "vitling.study",
    "vitling.reproduce",
    "vitling.export",
    "vitling.relabel",
    "vitling.ViTClassifier",
    "vitling.load_weights",
    "vitling.save_weights",
    "vitling.load_run",
    "vitling.diagnose.linear_cka",
    "vitling.diagnose.minibatch_cka",
    "vitling.diagnose.attention_rollout",
    "vitling.diagnose.attention_distance",
    "vitling.diagnose.expected_calibration_error",
    "vitling.methods.bootstrap.feature_loss",
    "vitling.methods.bootstrap.mutual_loss",
    "vitling.methods.bootstrap.align_gradients",
    "vitling.methods.token_labeling.mix_tokens",
    "vitling.methods.token_labeling.token_label_loss",
]


@pytest.mark.slow
def test_every_public_name_is_a_function_after_import_vitling_alone():
    lines = [
        "import vitling",
        *(f"assert callable({name}) and not hasattr({name}, '__path__'), '{name}'" for name in NAMES),
    ]
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_importing_vitling_loads_no_torch():
    code = "import sys, vitling; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
