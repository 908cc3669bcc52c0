"""environment(): the versions and the machine that a result depends on."""

import platform
import shlex
import sys
from pathlib import Path

import timm
import torch

import vitling
from vitling.runs.device import default_device, device_name


def environment() -> dict:
    return {
        "vitling": vitling.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "platform": platform.platform(),
        "processor": device_name(default_device()),
        "threads": torch.get_num_threads(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
