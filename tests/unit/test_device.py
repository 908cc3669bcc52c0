"""One rule for the device."""

import platform

import pytest
import torch

from vitling.errors import UserError
from vitling.runs.device import default_device, device_name, synchronize
from vitling.training.settings import check_precision


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_whatever_accelerator_torch_finds_is_used(kind, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    assert default_device() == torch.device(kind)
    check_precision("fp16")


def test_without_an_accelerator_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert default_device() == torch.device("cpu")
    synchronize(default_device())  # nothing to wait for
    assert device_name(default_device()) == (platform.processor() or platform.machine())
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        check_precision("fp16")


def test_a_device_is_called_by_its_name_where_torch_knows_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A Fast GPU")
    assert device_name(torch.device("cuda")) == "A Fast GPU"
    assert device_name(torch.device("mps")).endswith("(mps)")
