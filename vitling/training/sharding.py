"""Sharding (FSDP): every process holds a part of each block of a network, of its gradients and of its optimiser's state.

A block's weights are whole only while it computes. accelerate brings the processes together and sets the precision; it would shard
too, but not on CPUs, and only modules that are called from outside. Blocks are always called; a model is not, where a method wants its
tokens. So torch's `fully_shard` is told here what to cut. What lies around the blocks, the embeddings and heads, stays whole in every
process, and its gradients are averaged by the step.
"""

import os
from collections.abc import Iterable

from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from vitling.errors import UserError
from vitling.models.inspect import find_blocks
from vitling.models.shards import is_shard
from vitling.recipes import Recipe

# Each changes a number by what it knows of that number alone, and so a part as it would the whole; Muon gathers its matrices.
SHARDED_OPTIMISERS = ("adam", "adamw", "lion", "momentum", "muon", "nadamw", "sgd")


def check_launch() -> None:
    """accelerate's own FSDP would wrap the method in a way that checkpoints do not know."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise UserError(
            "accelerate launch was told to use FSDP by itself; leave that out of its configuration, and let vitling shard."
        )


def check_sharding(recipe: Recipe, accelerator: Accelerator, unshardable: str) -> None:
    """Refuse what cannot be trained in shards, before anything is built from it."""
    if accelerator.num_processes == 1:
        raise UserError(
            "shard divides a model among several processes and this is only one; start several with torchrun, or leave shard out."
        )
    if accelerator.mixed_precision == "fp16":
        raise UserError("shard does not go with precision=fp16, whose loss scale is per process; use bf16 or no.")
    if recipe.compile == "on":
        raise UserError("shard does not go with compile=on; leave compile=auto, which does not compile shards.")
    if recipe.optim.name not in SHARDED_OPTIMISERS:
        raise UserError(
            f"shard does not go with optim.name={recipe.optim.name}; use one of {', '.join(SHARDED_OPTIMISERS)}."
        )
    if unshardable:
        raise UserError(f"shard does not go with {unshardable}")


def shard_blocks(networks: Iterable[nn.Module], accelerator: Accelerator) -> None:
    """Leave in this process its part of every block of the networks."""
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for network in networks:
        blocks = find_blocks(network)
        if not blocks:
            raise UserError(
                f"shard divides a model block by block, and {type(network).__name__} has no blocks that could be found; leave shard out."
            )
        for name in blocks:
            fully_shard(network.get_submodule(name), mesh=mesh, reshard_after_forward=True)


def split_groups(groups: list[dict]) -> list[dict]:
    """Parameter groups in which all tensors are shards or none is: an optimiser takes a group's tensors in one call."""
    found = []
    for group in groups:
        for kind in (True, False):
            if parameters := [p for p in group["params"] if is_shard(p) is kind]:
                found.append({**group, "params": parameters})
    return found
