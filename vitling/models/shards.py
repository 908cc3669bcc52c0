"""Shards: tensors of which every process holds a part, torch's DTensors; `training.sharding` makes them of a model's blocks.

They are recognised by what they can do: torch's module for them is slow to load, and most programs never see one.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


def is_shard(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def has_shards(module: nn.Module) -> bool:
    return any(map(is_shard, module.parameters()))


@torch.no_grad()
def local_part(tensor: Tensor) -> Tensor:
    """The part that is here, over the same memory; all of a tensor that is whole."""
    return tensor.to_local() if is_shard(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it; every process has to ask."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


def as_shard(part: Tensor, other: Tensor) -> Tensor:
    """The parts in the processes as one tensor, divided as another one is."""
    if not is_shard(other):
        return part
    from torch.distributed.tensor import DTensor  # slow to load, and few programs need it

    layout = (other.device_mesh, other.placements)
    return DTensor.from_local(part, *layout, run_check=False, shape=other.shape, stride=other.stride())


def split_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor in parts as another one is; every process has the whole, so nothing is sent."""
    if not is_shard(other) or is_shard(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # slow to load

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def gather(state: Any, keep: bool) -> Any:
    """A state with every shard made whole, one after the other; every process has to ask. Kept on the CPU, where `keep` says so."""
    if is_shard(state):
        found = whole(state.detach())
        return found.cpu() if keep else None
    if isinstance(state, dict):
        return {key: gather(value, keep) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(gather(value, keep) for value in state)
    return state


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of all of them as one vector, whatever parts of them are here."""
    tensors = list(tensors)
    parts = [tensor for tensor in tensors if is_shard(tensor)]
    if not parts:
        return get_total_norm(tensors)
    others = [tensor for tensor in tensors if not is_shard(tensor)]
    norms = [whole(get_total_norm(parts)), *([get_total_norm(others)] if others else [])]
    return torch.linalg.vector_norm(torch.stack(norms))
