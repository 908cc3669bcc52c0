"""The one evaluation loop: a model's outputs on a split, batch by batch, without augmentation."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.loader import Fitted, eval_batches
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.targets import CLASSES, Target
from vitling.evaluation.scores import validation_scores
from vitling.models.inspect import evaluating
from vitling.models.shards import has_shards
from vitling.runs.device import default_device, to_float64

if TYPE_CHECKING:
    from accelerate import Accelerator

BATCH = 256


def evaluate_batches(
    model: nn.Module,
    source: Fitted,
    preprocessing: Preprocessing,
    *,
    function: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = BATCH,
    batches: int | None = None,
    rank: int = 0,
    world: int = 1,
    again: bool = False,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    task: str = "predicting",
    callback: Callback | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs (float32) and labels, or targets where there are some, of every batch in the split's order, on the model's device.

    `function` makes outputs of normalised images; by default they are the model's logits. Process `rank` of `world`
    sees every world-th batch; `again` says that all of it will be asked for once more. Between batches, and so in the caller's code,
    the model and torch are in the mode they were in.
    """
    function, done = function or partial(preprocessing.score, model), 0
    device = next(model.parameters()).device
    where = dict(device=device, rank=rank, world=world)
    found = eval_batches(source, preprocessing.normalize, batch_size=batch_size, again=again, **where)
    for batch in islice(found, batches):
        # Eager also where training is compiled: compiling again for the shapes of evaluation would not repay itself.
        with evaluating(model), torch.compiler.set_stance("force_eager"), autocast():
            outputs = function(batch["image"]).float()
        done += len(outputs)
        if callback:
            callback.on_progress(task, done, len(source))
        yield outputs, batch.get("target", batch["label"])


def predict_logits(
    model: nn.Module,
    source: Fitted,
    preprocessing: Preprocessing,
    *,
    callback: Callback | None = None,
) -> Tensor:
    """Logits of every image of a split, in its order; on the CPU, while the model stays where they were computed."""
    model = model.to(default_device())
    return torch.cat([x.cpu() for x, _ in evaluate_batches(model, source, preprocessing, callback=callback)])


@torch.no_grad()
def _take_part(model: nn.Module, preprocessing: Preprocessing, accelerator: "Accelerator", times: int) -> None:
    """Others still have batches, and each of their passes asks this process for its part of the weights."""
    image = torch.zeros(1, preprocessing.channels, *preprocessing.size, device=accelerator.device)
    for _ in range(times):
        with evaluating(model), torch.compiler.set_stance("force_eager"), autocast_for(accelerator):
            model(image)


def autocast_for(accelerator: "Accelerator") -> AbstractContextManager:
    """On a CPU in float32 whatever the training is in: a number that loaded weights give again is worth the time."""
    return nullcontext() if accelerator.device.type == "cpu" else accelerator.autocast()


def _of_all(seen: list[tuple[Tensor, Tensor]], accelerator: "Accelerator") -> list[tuple[Tensor, Tensor]]:
    """What all processes have seen."""
    if accelerator.num_processes == 1:
        return seen
    from accelerate.utils import gather_object  # as accelerate itself, only where processes train together

    return gather_object(seen)


def validate(
    model: nn.Module,
    source: Fitted,
    preprocessing: Preprocessing,
    accelerator: "Accelerator",
    *,
    target: Target = CLASSES,
    batches: int | None = None,
    keep: list[Tensor] | None = None,
    with_error: bool = False,
) -> dict[str, float]:
    """The target's score and the mean loss on a split, or on its first batches, over all processes.

    This process's logits are added to `keep`, batch by batch on the CPU. `with_error` asks for the standard error of a score that is no
    share of the images.
    """
    seen: list[tuple[Tensor, Tensor]] = []  # of what is no sum over images
    sums = to_float64(torch.zeros(3, device=accelerator.device))
    outputs = evaluate_batches(
        model,
        source,
        preprocessing,
        batches=batches,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        again=True,  # after the next epoch
        autocast=partial(autocast_for, accelerator),
    )
    done = 0
    for logits, labels in outputs:
        done += 1
        if keep is not None:
            keep.append(logits.cpu())
        if not target.has_classes:
            seen.append((logits.cpu(), labels.cpu()))
            continue
        correct = to_float64((logits.argmax(1) == labels).sum())
        loss = to_float64(F.cross_entropy(logits, labels, reduction="sum"))
        sums += torch.stack([correct, loss, torch.tensor(len(labels), dtype=torch.float64, device=sums.device)])
    if has_shards(model):
        most = math.ceil(math.ceil(len(source) / BATCH) / accelerator.num_processes)
        _take_part(model, preprocessing, accelerator, min(most, batches or most) - done)
    if not target.has_classes:
        outputs, truth = map(torch.cat, zip(*_of_all(seen, accelerator), strict=True))
        return validation_scores(target, outputs, truth, with_error=with_error)
    correct, loss, count = accelerator.reduce(sums, "sum").tolist()
    return {"top1": correct / count, "loss": loss / count, "images": count}
