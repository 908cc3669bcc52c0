"""The one rule for the device, after training too: the accelerator that torch finds, else the CPU."""

import platform

import torch
from torch import Tensor


def default_device() -> torch.device:
    """CUDA, Apple's MPS, Intel's XPU or whatever else `torch.accelerator` knows and finds here; else the CPU."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Wait for the device: only then is a measured time meaningful."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def device_name(device: torch.device) -> str:
    """What the device is called: a GPU by its model where torch knows it, a CPU by its maker or its kind."""
    if device.type != "cpu" and hasattr(module := torch.get_device_module(device), "get_device_name"):
        return module.get_device_name()
    processor = platform.processor() or platform.machine()
    return processor if device.type == "cpu" else f"{processor} ({device.type})"


def to_float64(x: Tensor) -> Tensor:
    """In double precision: on the CPU, where the device has none (Apple's GPUs)."""
    return x.cpu().double() if x.device.type == "mps" else x.double()
