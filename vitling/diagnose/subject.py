"""What is diagnosed, and on which pictures: a run, a folder that timm loads, a model of timm or a model in memory."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vitling.callbacks import Callback
from vitling.data.pipeline.decoding import decode
from vitling.data.pipeline.loader import Resident, generator_for
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.data.pipeline.reading import Reading
from vitling.data.pipeline.training_data import split_training
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import Images
from vitling.errors import UserError, did_you_mean
from vitling.recipes import Recipe
from vitling.runs.run import Run, load_run

Source = Run | nn.Module | str | Path


@dataclass
class Subject:
    """A model under diagnosis and how a picture becomes its input."""

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    class_names: list[str] | None = None  # None where the model does not say
    run: Run | None = None

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


@dataclass
class Pictures:
    """Some images of a split. Every model gets the same ones, in its own size, channels and normalisation."""

    data: str
    split: str
    images: Images
    class_names: list[str]
    carved_by: tuple = ()  # the settings that decided what was held out of train; empty where the data brings its own split

    @property
    def labels(self) -> Tensor:
        return torch.as_tensor(self.images.labels)

    def __len__(self) -> int:
        return len(self.images)

    def decoded_for(self, subject: Subject, callback: Callback | None = None) -> Resident:
        pixels = decode(
            self.images, task=f"reading {self.split}", callback=callback, **subject.preprocessing.fit_args()
        )
        return Resident(pixels, self.labels)

    def name_classes_as(self, subject: Subject) -> bool:
        """Whether the labels number the classes as the model's outputs do."""
        return subject.class_names == self.class_names

    def were_trained_on_by(self, subject: Subject) -> bool:
        """Whether a run on the same data carved its validation split in another way, and so has seen some of these."""
        if subject.run is None or not self.carved_by or subject.run.info["data"]["name"] != self.data:
            return False
        return _carving(subject.run.recipe) != self.carved_by


def open_subjects(
    source: Source,
    other: Source | None,
    data: str | None,
    *,
    images: int,
    which: str = "best",
    reading: Reading | None = None,
) -> tuple[Subject, Subject | None, Pictures, Pictures | None]:
    """Both models, held-out pictures, and training pictures of the first one where it is a run on its own data.

    The test split is left alone: held-out means the validation split, or the part of train that a run does not see.
    """
    if images < 1:
        raise UserError(f"--images {images} shows nothing; the default is a good number.")
    reading = reading or Reading()
    run = _find_run(source)
    if run is None and data is None:
        what = f"there is no run at {source}" if isinstance(source, (str, Path)) else f"{_name(source)} is no run"
        raise UserError(f"{what}; a model of timm, or a folder of one, needs images to look at: add --data.")
    own = run is not None and data in (None, run.recipe.data)
    dataset = open_dataset(
        data or run.recipe.data,
        root=reading.root,
        download=reading.download,
        channels=run.preprocessing().channels if run else None,
        on_bad_image=run.recipe.on_bad_image if run else "error",
        class_names=run.class_names if run and not own else None,
    )
    recipe = run.recipe if own else Recipe(data=dataset.name)
    first = _open(source, run, dataset, which)
    second = None if other is None else _open(other, _find_run(other), dataset, which)
    train, held_out, split = _split(dataset, recipe)
    carved_by = () if "val" in dataset.splits or train is None else _carving(recipe)
    pictures = Pictures(dataset.name, split, _some(held_out, images), dataset.class_names, carved_by)
    if not own or train is None:
        return first, second, pictures, None
    return first, second, pictures, Pictures(dataset.name, "train", _some(train, images), dataset.class_names)


def _carving(recipe: Recipe) -> tuple:
    return recipe.seed, recipe.val_fraction, recipe.folds, recipe.fold


def _split(dataset: Dataset, recipe: Recipe) -> tuple[Images | None, Images, str]:
    if "train" not in dataset.splits:
        name, images = next(iter(dataset.splits.items()))
        return None, images, name
    return *split_training(dataset, recipe), "val"


def _some(images: Images, count: int) -> Images:
    """A fixed random choice: splits are often sorted by class, and a batch of one class has nothing to compare."""
    return images.subset(torch.randperm(len(images), generator=generator_for("diagnose"))[:count].numpy())


def _find_run(source: Source) -> Run | None:
    if isinstance(source, Run):
        return source
    if isinstance(source, nn.Module) or str(source).startswith("local-dir:"):
        return None
    path = Path(source)
    if path.is_dir() and not (path / "run.json").exists() and (path / "config.json").exists():
        return None  # a folder in timm's format, such as a run's own best/
    if path.exists() or "/" in str(source).removeprefix("hf-hub:"):
        return load_run(path)
    return None


def _name(source: Source) -> str:
    return type(source).__name__ if isinstance(source, nn.Module) else Path(str(source)).name or str(source)


def _open(source: Source, run: Run | None, dataset: Dataset, which: str) -> Subject:
    if run is not None:
        return Subject(run.path.name, run.load_model(which), run.preprocessing(), run.class_names, run)
    model = source if isinstance(source, nn.Module) else _load(str(source))
    cfg = getattr(model, "pretrained_cfg", None) or {}
    return Subject(_name(source), model, preprocessing_of(model, dataset), cfg.get("label_names"))


def tell_apart(first: Subject, second: Subject) -> tuple[str, str]:
    """Names for two of the same name: the folders in which their runs differ, as in a study, or numbers."""
    if first.run and second.run:
        paths = zip(*(reversed(subject.run.path.resolve().parts) for subject in (first, second)), strict=False)
        if differing := next(((a, b) for a, b in paths if a != b), None):
            return differing
    return f"{first.name} (1)", f"{second.name} (2)"


def _load(source: str) -> nn.Module:
    import timm

    import vitling.models  # noqa: F401  (registers our families)

    name = source if source.startswith("local-dir:") else f"local-dir:{source}" if Path(source).exists() else source
    if not name.startswith("local-dir:") and not timm.is_model(name.partition(".")[0]):
        near = did_you_mean(name, timm.list_models(), show=0)
        raise UserError(f"no run and no folder at {source}, and no model of timm is called so. {near}")
    try:
        return timm.create_model(name, pretrained=True)
    except (RuntimeError, OSError, KeyError, FileNotFoundError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"the weights of {source} cannot be had: {reason} Give a run, or local-dir:FOLDER.") from None


def preprocessing_of(model: nn.Module, dataset: Dataset) -> Preprocessing:
    """What a model without a run says of its input; its whole image is used, since a diagnosis looks at all of it."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    channels, *size = cfg.get("input_size") or (3, 224, 224)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = first.in_channels * first.groups if first is not None else channels
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or size
    base = Preprocessing(tuple(size), channels, "resize", dataset.max_value, (0.5,) * channels, (0.5,) * channels)
    mean, std = (tuple(cfg.get(key) or ()) for key in ("mean", "std"))
    return replace(base, mean=mean, std=std) if len(mean) == len(std) == channels else base
