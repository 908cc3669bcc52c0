"""The agent that equals a sharing one and shares nothing, and where the taps of its window lie, written out anew."""

import torch
from torch import Tensor

from vitling.models.agent import Agent, TapWindow, mlp_layers, plain_block, shared_taps, value_rows


@torch.no_grad()
def plain_state(agent: Agent) -> dict[str, Tensor]:
    """State dict of the equal agent that shares nothing: taps built, MLPs copied."""
    state = agent.state_dict()
    for i, layer in enumerate(agent.layers):
        attn, (fc1, fc2) = layer.cnn_block.lender[0], mlp_layers(layer.mlp_block.lender[0])
        taps = shared_taps(value_rows(attn), attn.proj.weight, agent.num_heads)
        block = plain_block(f"layers.{i}.", taps, attn.proj.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias)
        state |= {key: value.detach().clone() for key, value in block.items()}
    return state


def tap_offsets(window: TapWindow) -> list[tuple[int, int]]:
    """(row, column) of each tap relative to the pixel."""
    return [(h // window.side - window.before, h % window.side - window.before) for h in range(window.num_heads)]
