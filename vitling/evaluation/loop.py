"""The one evaluation loop: class scores of every image of a split."""

from itertools import islice

import torch
import torch.nn.functional as F
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


@torch.inference_mode()
def validate(model: nn.Module, source, preprocessing: Preprocessing, accelerator, batches: int | None = None) -> dict:
    """Top-1 accuracy and mean cross-entropy on a split, or its first batches, over all processes."""
    training, compiled = model.training, getattr(model, "_compiled_call_impl", None)
    model.eval()
    model._compiled_call_impl = None  # eager: compiling for the evaluation shapes would not repay itself
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    found = eval_batches(
        source,
        preprocessing.normalize,
        batch_size=256,
        device=accelerator.device,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
    )
    for batch in islice(found, batches):
        with accelerator.autocast():
            logits = model(batch["image"]).float()
        label = batch["label"]
        loss = F.cross_entropy(logits, label, reduction="sum")
        sums += torch.stack(
            [
                (logits.argmax(1) == label).sum().double(),
                loss.double(),
                torch.tensor(len(label), device=loss.device).double(),
            ]
        )
    model.train(training)
    model._compiled_call_impl = compiled
    right, loss, count = accelerator.reduce(sums, "sum").tolist()
    return {"top1": right / count, "loss": loss / count, "images": count}
