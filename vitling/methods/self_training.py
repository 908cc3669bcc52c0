"""Self-training: a finished run says what unlabelled images show, and where it is sure they are learnt from beside the labelled ones.

Papers: Xie et al. 2020, "Self-training with Noisy Student improves ImageNet classification"; Lee 2013, "Pseudo-Label". The labels are soft, the
teacher's whole prediction, calibrated; the student sees them augmented and mixed, the teacher as they are. Every batch gains as many
unlabelled images as `unlabelled_share` says. Deviates: the teacher is asked once, before the training, and its answers are kept in the run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.augment.augment import Augment
from vitling.data.pipeline.loader import Resident
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.reading import Reading, load_split
from vitling.data.pipeline.training_data import create_augment
from vitling.data.shared import find_shared
from vitling.data.sources.dataset import Dataset, canonical_name, open_dataset
from vitling.data.sources.images import Images
from vitling.data.sources.unlabelled import PREFIX
from vitling.errors import UserError
from vitling.evaluation.loop import evaluate_batches
from vitling.evaluation.temperature import calibrate
from vitling.files import starting_with, write_bytes
from vitling.methods.distillation import answer_order, open_teacher
from vitling.methods.method import Batch
from vitling.methods.mixing import MixingMethod
from vitling.methods.preparation import Preparation
from vitling.models.weights import to_safetensors
from vitling.recipes import Recipe
from vitling.runs.opening import OpenedModel, is_there
from vitling.validation.documents import damaged
from vitling.validation.values import PartOf, Range

FILE = "soft_labels.safetensors"
# That the likeliest class must have at least: it is then more often true than not. Networks that learnt from smoothed and mixed labels
# are seldom surer, and a soft label says itself how sure it is.
CONFIDENCE = 0.5
NEEDS = (
    "method=self_training needs method_args.teacher=RUN, a finished run on the same classes, and method_args.unlabelled=IMAGES, "
    "a folder or any data."
)
_is_labels = starting_with(b"", mark=b'"soft_labels":')


@dataclass(frozen=True)
class Pool:
    """Unlabelled images of which the teacher is sure, and what it says of them; not a part of any checkpoint."""

    images: Tensor  # uint8, (N, C, H, W)
    soft_labels: Tensor  # (N, classes)
    augment: Augment


class SelfTraining(MixingMethod):
    """Cross-entropy on the labels, and on a teacher's soft labels of the unlabelled images in a `pool`.

    Every batch gains `unlabelled_share` times its size of them, drawn anew.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        pool: Pool,
        unlabelled_share: Annotated[float, Range(above=0, high=16)] = 1.0,
        **mixing: Any,
    ):
        super().__init__(model, **mixing)
        self.pool, self.unlabelled_share = pool, unlabelled_share

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        labelled, labels = batch["image"], batch["label"]
        index = torch.randint(len(self.pool.images), (max(1, round(self.unlabelled_share * len(labelled))),))
        images = torch.cat([labelled, self.pool.augment(self.pool.images[index]).to(labelled)])
        targets = torch.cat(
            [self.mix.mix_labels(labels, torch.ones(len(labels))), self.pool.soft_labels[index].to(labels.device)]
        )
        share, boxes = self.mix.draw(len(images), *images.shape[-2:])
        if self.mix.mixes:
            kept = share.to(targets)[:, None]
            targets = targets * kept + self.mix.partners.mirror(targets) * (1 - kept)
        output = self.model(self.mix.mix_images(images, share, boxes)).float()
        own, others = output.split([len(labelled), len(index)])
        return {
            "loss": F.cross_entropy(output, targets, weight=self.class_weights),
            "labelled": F.cross_entropy(own, targets[: len(labelled)]).detach(),
            "unlabelled": F.cross_entropy(others, targets[len(labelled) :]).detach(),
        }

    @classmethod
    def prepare(
        cls,
        preparation: Preparation,
        *,
        teacher: str = "",
        unlabelled: str = "",
        confidence: PartOf = CONFIDENCE,
        **others: Any,
    ) -> dict:
        """Ask the teacher about the unlabelled images, once; its answers are kept in the run."""
        if "pool" in others:
            raise UserError(
                "method_args.pool is not a setting: it is made of method_args.teacher and method_args.unlabelled."
            )
        data, recipe = preparation.data, preparation.recipe
        try:
            dataset = open_dataset(
                canonical_name(PREFIX + unlabelled), channels=data.dataset.channels, on_bad_image=recipe.on_bad_image
            )
        except UserError as error:
            raise UserError(f"method_args.unlabelled={unlabelled}: {error}") from None
        path, images = preparation.folder / FILE, dataset.splits["train"]
        if images.shards is not None:
            raise UserError(
                f"method_args.unlabelled={unlabelled} can only be read from its beginning; download it first."
            )
        about = {"data": dataset.fingerprint, "confidence": f"{confidence:g}"}
        if not path.exists():
            opened = open_teacher(teacher)
            preparation.once(lambda: _write(path, about, preparation, opened, images, confidence))
        rows, soft_labels = _read(path, about, dataset)
        preparation.callback.log(
            f"self-training: of {len(rows):,} of {len(images):,} unlabelled images the teacher is sure ({100 * confidence:g} % or more), and "
            "they join with its soft labels"
        )
        return {"pool": _load(preparation, images.subset(rows.numpy()), soft_labels), **others}

    @classmethod
    def refuse(cls, recipe: Recipe) -> None:
        if not recipe.method_args.get("teacher") or not recipe.method_args.get("unlabelled"):
            raise UserError(NEEDS)

    @classmethod
    def missing(cls, recipe: Recipe) -> str:
        teacher = recipe.method_args.get("teacher", "")
        if not teacher or not recipe.method_args.get("unlabelled"):
            return NEEDS
        return "" if is_there(teacher) else f"it learns from {teacher}, which is not there; train that first."


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
    source = load_split(
        images.subset(rows.numpy()),
        "unlabelled",
        reading=Reading(),
        callback=callback,
        **teacher.preprocessing.fit_args(),
    )
    answers = evaluate_batches(
        teacher.module, source, teacher.preprocessing, task="asking the teacher", callback=callback
    )
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


def _load(preparation: Preparation, images: Images, soft_labels: Tensor) -> Pool:
    """The images as training images are kept: decoded, in memory."""
    recipe, seen = preparation.recipe, preparation.data.preprocessing
    fit = {**seen.fit_args(), "size": as_size(recipe.train_size) or seen.size, "test_crop": None}
    source = load_split(images, "unlabelled", reading=Reading(), callback=preparation.callback, **fit)
    if not isinstance(source, Resident):
        raise UserError(
            f"the {len(images):,} unlabelled images do not fit into memory; give fewer of them, or a smaller img_size."
        )
    return Pool(source.images, soft_labels, create_augment(recipe, preparation.data))
