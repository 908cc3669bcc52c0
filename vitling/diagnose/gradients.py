"""Gradient norms per layer: where does learning reach, and where does it fade or explode?"""

from torch import nn

from vitling.diagnose.capture import find_blocks


def layer_gradient_norms(model: nn.Module) -> dict[str, float]:
    """Norm of the gradient of every layer that has one, in order of definition: each block, and what lies around the blocks."""
    blocks = find_blocks(model)
    squares: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            layer = next((block for block in blocks if name.startswith(f"{block}.")), name.partition(".")[0])
            squares[layer] = squares.get(layer, 0.0) + parameter.grad.norm().item() ** 2
    return {layer: float(f"{square**0.5:.5g}") for layer, square in squares.items()}
