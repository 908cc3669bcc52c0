"""Relabel: dense class scores for every training image, from any trained model, as token labeling needs them.

Paper: Jiang et al. 2021, "All Tokens Matter"; the maps are those of Yun et al. 2021, "Re-labeling ImageNet". Deviates: any model
and any class count; the whole picture is labelled, not its central square; unless `raw_scores`, a cell's scores are taken
relative to the classes that are not stored, so that its softmax is that of the full scores wherever a class is stored.
"""

import hashlib
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.decoding import decode
from vitling.data.pipeline.loader import Resident
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import FITS
from vitling.data.sources.unlabelled import lacks_labels
from vitling.errors import UserError, did_you_mean, first_line
from vitling.evaluation.loop import evaluate_batches
from vitling.methods.token_labeling.author_maps import is_author_folder, map_paths, read_maps, write_maps
from vitling.methods.token_labeling.label_maps import Header, LabelMaps, check_owner
from vitling.models import check_input
from vitling.models.contract import token_grid
from vitling.models.ensemble import Ensemble
from vitling.runs.device import default_device
from vitling.runs.opening import OpenedModel, Source, find_kind, open_model, published_classes
from vitling.validation.values import Side, check

CHUNK_BYTES = 2**27  # of decoded pixels; after each chunk the maps are on the disk
FLOAT16_MAX = 65504.0


def relabel(
    annotator: Source,
    data: Dataset | str,
    out: str | Path,
    *,
    which: str = "best",
    size: int | tuple[int, int] | None = None,
    fit: str | None = None,
    top_k: int = 5,
    raw_scores: bool = False,
    batch_size: int = 64,
    on_bad_image: str = "error",
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> LabelMaps:
    """Write the label maps of a dataset's training images into `out`; into the same folder again, resume.

    `annotator` is whatever `open_model` opens, or a folder of the authors' .pt maps, which are converted. `size` and `fit` are
    how it sees the images: by default as in its own training; a larger size gives a finer map.
    """
    callback = callback or Callback()
    dataset = data if isinstance(data, Dataset) else _open_for(annotator, data, reading or Reading(), on_bad_image)
    size = as_size(size)
    if fit is not None and fit not in FITS:
        raise UserError(f"unknown fit '{fit}'. {did_you_mean(fit, FITS)}")
    if top_k < 1:
        raise UserError(f"top_k={top_k} is out of range; it must be at least 1 (the paper's is 5).")
    if isinstance(annotator, (str, Path)) and is_author_folder(annotator):
        return _convert_author_maps(Path(annotator), dataset, out, size, fit or "crop", callback)

    annotator = open_annotator(annotator, dataset, which, callback)
    annotator = look_at(annotator, size, fit)
    order = annotator.class_order(dataset.class_names)
    if order is None:
        raise _other_classes(_name(annotator), annotator.module.num_classes, dataset, annotator.class_names)
    model, view, images = annotator.module, annotator.preprocessing, dataset.splits["train"]
    device = default_device()
    blank = torch.zeros(1, view.channels, *view.size, device=device)
    header = Header.of_training_images(
        dataset,
        grid=tuple(score_map(model, blank).shape[1:3]),
        top_k=min(top_k, len(dataset.class_names)),
        fit=view.fit,
        size=view.size,
        annotator=_name(annotator),
        weights=weights_digest(model),
        raw_scores=raw_scores,
    )
    maps = _begin(out, header, callback)
    pixels_per_image = view.channels * math.prod(view.size)
    chunk = max(batch_size, CHUNK_BYTES // pixels_per_image // batch_size * batch_size)
    agreed, seen, cache = 0, 0, (reading or Reading()).open_cache()
    while maps.done < len(images):
        part = images.subset(range(maps.done, min(maps.done + chunk, len(images))))
        source = Resident(decode(part, cache=cache, **view.fit_args()), torch.as_tensor(part.labels))
        found = []
        for logits, labels in evaluate_batches(
            model, source, view, function=partial(score_map, model), batch_size=batch_size
        ):
            logits = logits[..., order]
            agreed += (logits.mean((1, 2)).argmax(1) == labels).sum().item()
            seen += len(labels)
            found.append([x.cpu().numpy() for x in best_classes(logits, header.top_k, raw_scores)])
            callback.on_progress("labelling", maps.done + sum(len(f[0]) for f in found), len(images))
        maps.append(*(np.concatenate(x) for x in zip(*found, strict=True)))
    if seen:
        callback.log(f"the best class of a whole map is the image's label for {agreed / seen:.1%} of {seen:,} images")
        if agreed / seen < 0.5:
            callback.log(
                "such labels mislead: train the annotator longer, or show it the image size that it was trained at"
            )
    return LabelMaps.open(out)


def _open(data: str, reading: Reading, on_bad_image: str, labels: str) -> Dataset:
    return open_dataset(data, root=reading.root, download=reading.download, on_bad_image=on_bad_image, labels=labels)


def _open_for(annotator: Source, data: str, reading: Reading, on_bad_image: str) -> Dataset:
    """The data; of images without labels the refusal says who takes them."""
    kind = label_kind(annotator)
    try:
        return _open(data, reading, on_bad_image, kind)
    except UserError as error:
        if not lacks_labels(data) or not isinstance(annotator, (str, Path)) or is_author_folder(annotator):
            raise
        raise UserError(
            f"{str(error).rstrip('.')}. Label maps are of labelled images; what {annotator} sees in others is learnt with: {_as_teacher(annotator, data)}"
        ) from None


def _as_teacher(annotator: object, unlabelled: str) -> str:
    return (
        f"vitling train DATA method=self_training method_args.teacher={annotator} method_args.unlabelled={unlabelled}"
    )


def label_kind(annotator: Source) -> str:
    """What a run's labels are, so that grades are in the order in which the training knows them."""
    if isinstance(annotator, (str, Path)) and is_author_folder(annotator):
        return "auto"
    kind, place = find_kind(annotator)
    return place.kind if kind == "run" and place.kind == "grades" else "auto"


def _begin(out: str | Path, header: Header, callback: Callback) -> LabelMaps:
    """State what will be written, make sure that it fits, and create or continue it."""
    total = header.images * header.image_bytes
    rows, columns = header.grid
    callback.log(
        f"{header.images:,} label maps of {rows} x {columns} cells with {header.top_k} of {len(header.class_names)} classes: "
        f"{size_text(total)} in {out}, read from there batch by batch"
    )
    if header.grid == (1, 1):
        callback.log(
            "the map is a single cell, so all tokens of an image get one label; a larger size gives a finer map"
        )
    maps = LabelMaps.create(out, header)
    left = total - maps.done * header.image_bytes
    if left > (free := shutil.disk_usage(Path(out).resolve()).free):
        raise UserError(
            f"the label maps need {size_text(left)} and {out} has {size_text(free)} free; free some or lower top_k."
        )
    if 0 < maps.done < header.images:
        callback.log(f"resuming after {maps.done:,} images")
    return maps


def size_text(number: int) -> str:
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number} bytes"


# -- who annotates -------------------------------------------------------------------------------------------------


def open_annotator(
    source: Source, dataset: Dataset, which: str = "best", callback: Callback | None = None
) -> OpenedModel:
    """Whatever `open_model` opens; one of another number of classes is refused before it is downloaded."""
    count = published_classes(source)
    if count not in (None, len(dataset.class_names)):
        raise _other_classes(str(source), count, dataset)
    dataset.target.require_classes("label maps are of", dataset.name)
    opened = open_model(source, which=which, max_value=dataset.max_value, callback=callback)
    opened.require_classes("an annotator is of")
    if isinstance(opened.network, Ensemble):
        name = str(source) if isinstance(source, (str, Path)) else _name(opened)
        fold = f" ({opened.run.members[0].path})" if opened.run and opened.run.members else ""
        raise UserError(
            f"label maps are made by one network, and {name} is an ensemble; give the run of one of its folds{fold}. A whole ensemble teaches "
            f"what it sees in images without labels with: {_as_teacher(name, 'IMAGES')}"
        )
    return opened


def look_at(annotator: OpenedModel, size: tuple[int, int] | None, fit: str | None) -> OpenedModel:
    """The annotator seeing images at another size or fitted in another way, where one is given."""
    own = annotator.preprocessing
    if size not in (None, own.size):
        _resize_input(annotator, size)
    # Whatever share it is tested at: a map is of all that the fit shows.
    view = replace(own, size=size or own.size, fit=fit or own.fit, test_crop=None)
    return replace(annotator, preprocessing=view)


def _resize_input(annotator: OpenedModel, size: tuple[int, int]) -> None:
    """Let the annotator take images of another size, if that gives a map at all."""
    module, name = annotator.module, _name(annotator)
    check(size, tuple[Side, Side], "size")
    stages = list(getattr(module, "feature_info", None) or [])
    cell = max((stage["reduction"] for stage in stages if isinstance(stage, dict)), default=1)
    if min(size) < cell:
        raise UserError(
            f"size={size[0]}x{size[1]} is less than one cell of the map of {name}, which is {cell} pixels; take {cell} or more."
        )
    if hasattr(module, "set_input_size"):
        try:
            module.set_input_size(img_size=size)
        except Exception as error:  # each family refuses a size in its own way
            raise UserError(f"{name} cannot take images of {size[0]}x{size[1]}: {first_line(error)}") from None
    check_input(module, name, annotator.preprocessing.channels, size)


def _name(annotator: OpenedModel) -> str:
    return str(annotator.run.path) if annotator.run else annotator.name


def _other_classes(name: str, count: int, dataset: Dataset, known: list[str] | None = None) -> UserError:
    missing = [name for name in dataset.class_names if known and name not in known]
    detail = f", among them '{missing[0]}', which it does not know" if missing else ""
    return UserError(
        f"{name} has {count} classes, {dataset.name} has {len(dataset.class_names)}{detail}. Both must have the same "
        "classes: train an annotator on this data, or let method_args.relabel=auto do it."
    )


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of a model's tensors: an annotator may be a module or of timm, without the file that `Run.weights_digest` reads."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# -- what it says --------------------------------------------------------------------------------------------------


@torch.inference_mode()
def score_map(model: nn.Module, images: Tensor) -> Tensor:
    """Class scores at every place, (B, rows, columns, classes): the classifier as a 1x1 convolution over features not pooled.

    The model's own head is shown each place as if it were the whole image, so whatever norms and layers it has apply.
    """
    features = model.forward_features(images)
    if isinstance(features, tuple):
        raise UserError(
            "label maps are made by one network, and this is an ensemble; give the run of one of its folds."
        )
    if getattr(model, "aux_head", None) is not None:  # LV-ViT, which has a classifier for tokens
        return model.dense_logits(features).unflatten(1, token_grid(model)).float()
    if features.ndim == 3:
        prefix = getattr(model, "num_prefix_tokens", 0)
        grid = token_grid(model, features.shape[1] - prefix)
        places = features[:, prefix:].flatten(0, 1)[:, None].expand(-1, prefix + 1, -1)
    elif getattr(model, "output_fmt", "NCHW") == "NHWC":
        grid = tuple(features.shape[1:3])
        places = features.flatten(0, 2)[:, None, None]
    else:
        grid = tuple(features.shape[2:])
        places = features.permute(0, 2, 3, 1).flatten(0, 2)[..., None, None]
    return model.forward_head(places).view(len(images), *grid, -1).float()


def best_classes(logits: Tensor, top_k: int, raw_scores: bool = False) -> tuple[Tensor, Tensor]:
    """Scores (float16) and classes of the best `top_k` at each place, best first."""
    scores, classes = logits.topk(top_k)
    rest = logits.shape[-1] - top_k
    if rest and not raw_scores:
        # Classes that are not stored count as 0 later. As a difference to their mean (in probability), that is what they are.
        others = logits.scatter(-1, classes, -torch.inf).logsumexp(-1, keepdim=True)
        scores = scores - (others - math.log(rest))
    return scores.clamp(-FLOAT16_MAX, FLOAT16_MAX).half(), classes


# -- the authors' maps ---------------------------------------------------------------------------------------------


def _convert_author_maps(
    folder: Path,
    dataset: Dataset,
    out: str | Path,
    size: tuple[int, int] | None,
    fit: str,
    callback: Callback,
) -> LabelMaps:
    """The release's maps in our format. They cover what its evaluation transform shows, the central square: fit="crop"."""
    images = dataset.splits["train"]
    paths = map_paths(folder, images, dataset.class_names)
    if absent := [path for path in paths if not path.exists()]:
        raise UserError(
            f"{len(absent):,} of {len(paths):,} images have no label map in {folder}, the first: {absent[0]}."
        )
    first, _ = next(read_maps(paths[:1], len(dataset.class_names)))
    *grid, top_k = first.shape
    header = Header.of_training_images(
        dataset,
        grid=tuple(grid),
        top_k=top_k,
        fit=fit,
        size=size or tuple(grid),
        annotator=str(folder),
        weights="",
        raw_scores=True,
    )
    maps = _begin(out, header, callback)
    while maps.done < len(images):
        found = list(read_maps(paths[maps.done : maps.done + 1024], len(dataset.class_names)))
        maps.append(*(np.stack(x) for x in zip(*found, strict=True)))
        callback.on_progress("converting", maps.done, len(images))
    return LabelMaps.open(out)


def export_to_authors(
    maps: LabelMaps,
    data: Dataset | str,
    folder: str | Path,
    *,
    on_bad_image: str = "error",
    reading: Reading | None = None,
    callback: Callback | None = None,
) -> None:
    """Write label maps as the release's files, one per image."""
    dataset = data if isinstance(data, Dataset) else _open(data, reading or Reading(), on_bad_image, "auto")
    check_owner(maps.header, dataset, maps.folder)
    write_maps(maps, folder, dataset.splits["train"], callback)
