"""The one evaluation loop: class scores of every image of a split."""

import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import eval_batches
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.runs.device import default_device


@torch.inference_mode()
def predict_logits(
    model: nn.Module, source, preprocessing: Preprocessing, *, batch_size: int = 256, callback: Callback | None = None
) -> Tensor:
    """Class scores of every image of a split, in its order."""
    device = default_device()
    model = model.to(device).eval()
    parts, done = [], 0
    for batch in eval_batches(source, preprocessing.normalize, batch_size=batch_size, device=device):
        parts.append(model(batch["image"]).float().cpu())
        done += len(parts[-1])
        if callback:
            callback.on_progress("predicting", done, len(source))
    return torch.cat(parts)
