"""Pool: unlabelled images that join the labelled ones in a training, with what a finished run is sure they show.

The teacher is asked once, before the training; its answers are kept in the run, so that a resumed run repeats itself. They are soft labels:
its whole prediction, calibrated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitling.callbacks import Callback
from vitling.data.augment.augment import Augment
from vitling.data.augment.ragged import Ragged
from vitling.data.pipeline.keeping import keeping_for
from vitling.data.pipeline.loader import Resident, ResidentPictures
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.reading import load_pictures, load_split
from vitling.data.pipeline.training_data import create_augment
from vitling.data.shared import find_shared
from vitling.data.sources.dataset import Dataset, canonical_name, open_dataset, takes_root
from vitling.data.sources.images import Images
from vitling.data.sources.unlabelled import PREFIX
from vitling.errors import UserError
from vitling.evaluation.loop import evaluate_batches
from vitling.evaluation.temperature import calibrate
from vitling.files import starting_with, write_bytes
from vitling.methods.distillation import answer_order, open_teacher
from vitling.methods.preparation import Preparation
from vitling.models.weights import to_safetensors
from vitling.runs.opening import OpenedModel
from vitling.validation.documents import damaged
from vitling.validation.values import Range

FILE = "soft_labels.safetensors"
# That the likeliest class must have at least: it is then more often true than not. Networks that learnt from smoothed and mixed labels
# are seldom surer, and a soft label says itself how sure it is.
CONFIDENCE = 0.5
UnlabelledShare: TypeAlias = Annotated[float, Range(above=0, high=16)]  # unlabelled images for each labelled one
_is_labels = starting_with(b"", mark=b'"soft_labels":')


@dataclass(frozen=True)
class Pool:
    """Unlabelled images of which the teacher is sure, and what it says of them; not a part of any checkpoint."""

    images: Tensor | Ragged  # uint8, (N, C, H, W), or each of its own size
    soft_labels: Tensor  # (N, classes)
    augment: Augment

    def draw(self, beside: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Augmented images, `share` times as many as those that they join, and their soft labels; drawn anew every time."""
        index = torch.randint(len(self.images), (max(1, round(share * len(beside))),))
        chosen = self.images.select(index) if isinstance(self.images, Ragged) else self.images[index]
        return self.augment(chosen).to(beside), self.soft_labels[index].to(beside.device)


def make_pool(preparation: Preparation, *, teacher: str, unlabelled: str, confidence: float) -> Pool:
    """Ask the teacher about the unlabelled images, once, and keep those of which it is sure."""
    data, recipe, reading = preparation.data, preparation.recipe, preparation.reading
    try:
        dataset = open_dataset(
            canonical_name(PREFIX + unlabelled),
            root=reading.root if takes_root(unlabelled) else None,
            download=reading.download,
            channels=data.dataset.channels,
            on_bad_image=recipe.on_bad_image,
        )
    except UserError as error:
        raise UserError(f"method_args.unlabelled={unlabelled}: {error}") from None
    path, images = preparation.folder / FILE, dataset.splits["train"]
    if images.shards is not None:
        raise UserError(f"method_args.unlabelled={unlabelled} can only be read from its beginning; download it first.")
    about = {"data": dataset.fingerprint, "confidence": f"{confidence:g}"}
    if not path.exists():
        opened = open_teacher(teacher)
        preparation.once(lambda: _write(path, about, preparation, opened, images, confidence))
    rows, soft_labels = _read(path, about, dataset)
    preparation.callback.log(
        f"self-training: of {len(rows):,} of {len(images):,} unlabelled images the teacher is sure ({100 * confidence:g} % or more), and "
        "they join with its soft labels"
    )
    return Pool(_load(preparation, images.subset(rows.numpy())), soft_labels, create_augment(recipe, data))


def _write(
    path: Path, about: dict[str, str], preparation: Preparation, teacher: OpenedModel, images: Images, confidence: float
) -> None:
    """The rows of which the teacher is sure, and its soft labels; none that the data learns from, validates or tests on."""
    if path.exists():  # by the process before this one
        return
    data, callback = preparation.data, preparation.callback
    order = torch.tensor(answer_order(teacher, data.class_names))
    held = [*data.images.values(), *([data.dataset.splits["test"]] if "test" in data.dataset.splits else [])]
    shared = set(find_shared(images, held, callback=callback).tolist())
    if shared:
        callback.log(f"{len(shared):,} of the unlabelled images are in the data itself, and are left out")
    rows = torch.tensor([row for row in range(len(images)) if row not in shared], dtype=torch.int64)
    if not len(rows):
        raise UserError("method_args.unlabelled has no images beside those of the data; leave the method out.")
    seen, reading = teacher.preprocessing, preparation.reading
    source = load_split(
        images.subset(rows.numpy()), "unlabelled", reading=reading, callback=callback, **seen.fit_args()
    )
    answers = evaluate_batches(teacher.module, source, seen, task="asking the teacher", callback=callback)
    temperature = _find_temperature(teacher, callback)
    soft_labels = torch.cat([(logits / temperature).softmax(dim=1).cpu()[:, order] for logits, _ in answers])
    sure = soft_labels.amax(dim=1) >= confidence
    if not sure.any():
        highest = 100 * soft_labels.max().item()
        raise UserError(
            f"the teacher is sure of no unlabelled image: {highest:.0f} % at most, and method_args.confidence={confidence:g} is asked for; "
            "lower it, or train the teacher longer."
        )
    write_bytes(path, to_safetensors({"rows": rows[sure], "soft_labels": soft_labels[sure]}, about), ours=_is_labels)


def _find_temperature(teacher: OpenedModel, callback: Callback) -> float:
    """What the teacher's logits are divided by, so that it is as often correct as it is confident."""
    if teacher.run is not None:
        try:
            return calibrate(teacher.run, callback=callback).temperature
        except UserError as error:
            reason = str(error)
    elif teacher.metadata is not None and teacher.metadata.temperature is not None:
        return teacher.metadata.temperature
    else:
        reason = f"{teacher.name} was saved without a temperature"
    callback.log(f"the teacher's confidence is its own, not calibrated: {reason}")
    return 1.0


def _read(path: Path, about: dict[str, str], dataset: Dataset) -> tuple[Tensor, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            known, rows, soft_labels = file.metadata(), file.get_tensor("rows"), file.get_tensor("soft_labels")
    except (OSError, SafetensorError) as error:
        raise damaged(str(path), f"it cannot be read, {str(error)[:80]}") from None
    if known != about:
        raise UserError(
            f"the unlabelled images have changed since {path} was made of them; restore them, or train into another folder."
        )
    if len(rows) != len(soft_labels) or not len(rows) or int(rows.max()) >= len(dataset.splits["train"]):
        raise damaged(str(path), "its rows are not those of the unlabelled images")
    return rows, soft_labels


def _load(preparation: Preparation, images: Images) -> Tensor | Ragged:
    """The images as training images are kept: decoded, in memory."""
    recipe, seen = preparation.recipe, preparation.data.preprocessing
    how: dict[str, Any] = seen.fit_args() | {"size": as_size(recipe.train_size) or seen.size}
    del how["test_crop"]
    keeping = keeping_for(recipe, **how)
    told: dict[str, Any] = dict(reading=preparation.reading, callback=preparation.callback)
    if keeping:
        source = load_pictures(images, "unlabelled", keeping, **told)
    else:
        source = load_split(images, "unlabelled", **how, **told)
    if not isinstance(source, Resident | ResidentPictures):
        raise UserError(
            f"the {len(images):,} unlabelled images do not fit into memory; give fewer of them, or a smaller img_size."
        )
    return source.images
