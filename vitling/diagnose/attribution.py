"""Which pixels a prediction rests on: gradient relevance for ViTs; Grad-CAM and integrated gradients by captum for any model.

captum is an optional extra: `pip install "vitling[diagnose]"`. `target` is a class, one per image, or None for the predicted one.
"""

from types import ModuleType

import torch
from torch import Tensor, nn

from vitling.diagnose.attention import class_row, gradient_relevance, on_grid
from vitling.errors import UserError
from vitling.models.inspect import capture_batch, evaluating, find_attention_layout, find_blocks, rollout_chain


def relevance_map(model: nn.Module, images: Tensor, target: Tensor | int | None = None) -> Tensor:
    """Relevance of the patches for a class, through all layers of attention (Chefer et al.): (B, height, width)."""
    with torch.enable_grad():
        # Attention needs a gradient even where all weights are frozen.
        seen = capture_batch(model, images.detach().requires_grad_(), gradients=True)
        chain = rollout_chain(seen.attention, len(images))
        layouts = [find_attention_layout(model, name, x, images) for name, x in chain.items()]
        if not chain or not all(layouts) or seen.logits is None:
            raise UserError(
                f"{type(model).__name__}: attention cannot be read over whole images, so relevance cannot be followed; "
                "try grad_cam or integrated_gradients."
            )
        first_layout = layouts[0]
        assert first_layout is not None
        classes = seen.logits.argmax(dim=1) if target is None else torch.as_tensor(target).expand(len(images))
        maps = list(chain.values())
        gradients = torch.autograd.grad(seen.logits.gather(1, classes[:, None]).sum(), maps)
    relevance = gradient_relevance([x.detach() for x in maps], gradients)
    layout = first_layout.queries
    return on_grid(class_row(relevance, layout.prefix_tokens), layout.grid, layout.prefix_tokens)


def grad_cam(
    model: nn.Module, images: Tensor, target: Tensor | int | None = None, *, layer: str | None = None
) -> Tensor:
    """Grad-CAM at a layer that gives maps, by default the last block: (B, height, width), not negative."""
    attr = _captum()
    blocks = find_blocks(model)
    if layer is None and not blocks:
        raise UserError(f"{type(model).__name__} has no sequence of blocks; name the layer to look at.")
    module = model.get_submodule(layer or blocks[-1])
    target = _predicted(model, images) if target is None else target
    with evaluating(model), torch.enable_grad():
        cam = attr.LayerGradCam(model, module).attribute(images, target, relu_attributions=True)
    if cam.ndim != 4 or cam.shape[1] != 1 or getattr(model, "output_fmt", "NCHW") != "NCHW":
        raise UserError(f"'{layer or blocks[-1]}' gives tokens, not (B, D, height, width) maps; use relevance_map.")
    return cam.squeeze(1).detach()


def integrated_gradients(
    model: nn.Module,
    images: Tensor,
    target: Tensor | int | None = None,
    *,
    baseline: Tensor | float = 0.0,
    steps: int = 32,
) -> Tensor:
    """Integrated gradients from a baseline, by default the mean colour of normalised images: of the images' shape."""
    attr = _captum()
    target = _predicted(model, images) if target is None else target
    with evaluating(model), torch.enable_grad():
        method = attr.IntegratedGradients(model)
        return method.attribute(images, baseline, target, n_steps=steps, internal_batch_size=len(images)).detach()


def _predicted(model: nn.Module, images: Tensor) -> Tensor:
    with evaluating(model):
        return model(images).argmax(dim=1)


def _captum() -> ModuleType:
    try:
        import captum.attr  # of the extra diagnose
    except ImportError:
        raise UserError("this needs captum, which is not installed: pip install 'vitling[diagnose]'.") from None
    return captum.attr
