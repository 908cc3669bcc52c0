"""How an image becomes what the model sees. Free of torch: an exported file is fed without it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import numpy as np

from vitling._deprecated import renamed_attribute
from vitling.data.sources.images import Images
from vitling.errors import UserError
from vitling.validation.values import Channels, PartOf, Range, Side, check

if TYPE_CHECKING:
    from torch import Tensor

    from vitling.recipes.schema import Augment

CORNER = 0.8  # of a side: about as large as objects are in the crops that are learnt from
SHIFT = 1 / 32  # of a side: a quarter of what padded crops move images by
SMALL_SIDE = 96  # images of one size and no longer than this keep their size; others are photographs


class _PreprocessingRecord(TypedDict):
    size: tuple[Side, Side]
    channels: Channels
    fit: Literal["resize", "pad", "crop"]
    max_value: Annotated[int, Range(1, 65_535)]
    mean: list[Annotated[float, Range(-1000, 1000)]]
    std: list[Annotated[float, Range(above=0, high=1000)]]


class PreprocessingRecord(_PreprocessingRecord, total=False):
    """How JSON keeps it; what follows was not yet written by vitling 0.1."""

    test_crop: PartOf | None
    interpolation: Literal["bilinear", "bicubic"]
    test_mirror: bool
    test_crops: bool
    test_shifts: bool


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes what the model sees. Travels with the run, so that prediction repeats it."""

    size: tuple[int, int]
    channels: int
    fit: str
    max_value: int  # the pixel value that becomes 255
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # Runs and exports of before say none of this: the whole picture, or all that has the shape, by bicubic interpolation.
    test_crop: float | None = None  # the share that is cut out of the centre; None: all that `fit` shows
    interpolation: str = "bicubic"
    test_mirror: bool = False  # whether the mirror image is asked too
    test_crops: bool = False  # whether its four corners, enlarged, are asked too
    test_shifts: bool = False  # whether it is asked about moved, too

    white = renamed_attribute("white", "max_value")

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "Preprocessing":
        """As JSON keeps it; runs and exports of vitling 0.1 call the largest value `white`."""
        known = {"max_value" if name == "white" else name: value for name, value in entries.items()}
        check(known, PreprocessingRecord, "preprocessing")
        if not len(known["mean"]) == len(known["std"]) == known["channels"]:
            raise UserError(
                f"preprocessing has {len(known['mean'])} means and {len(known['std'])} deviations for {known['channels']} channels."
            )
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**{name: fields[name] for name in PreprocessingRecord.__annotations__ if name in fields})

    def normalize(self, images: "Tensor") -> "Tensor":
        """uint8 (B, C, H, W) -> float32 with the training split's mean and spread."""
        import torch  # an exported file is fed without it

        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1) * 255
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1) * 255
        return (images.float() - mean) / std

    def score(self, network: "Callable[[Tensor], Tensor]", images: "Tensor") -> "Tensor":
        """Logits of normalised images (B, C, H, W): the mean over an image's views, where it has others than itself."""
        others = list(_corners(images)) if self.test_crops else []
        if self.test_shifts:
            others += _moved(images)
        if self.test_mirror:
            others += [view.flip(-1) for view in (images, *others)]
        logits = network(images)
        return sum((network(view) for view in others), logits) / (1 + len(others)) if others else logits

    def with_views(self, augment: "Augment | None") -> "Preprocessing":
        """The same with all views asked about that are like what training showed: test-time augmentation.

        Where nobody knows that, corners and mirror images: most networks learn from resized crops and from both.
        """
        views: dict[str, Any] = fitting_views(augment) if augment else {"test_mirror": True, "test_crops": True}
        if not any(views.values()):
            raise UserError(
                "tta: training showed neither crops nor mirror images, so other views mislead; leave it out."
            )
        return replace(self, **views)

    def normalize_array(self, images: np.ndarray) -> np.ndarray:
        """The same of an array, equal to the last bit: float32 in the same order."""
        mean, std = (
            np.array(values, np.float32).reshape(-1, 1, 1) * np.float32(255) for values in (self.mean, self.std)
        )
        return (images.astype(np.float32) - mean) / std

    def fit_args(self) -> dict[str, Any]:
        """The arguments of `decode`, `load_image` and `load_split`."""
        names = ("size", "fit", "channels", "max_value", "test_crop", "interpolation")
        return {name: getattr(self, name) for name in names}


def fitting_views(augment: "Augment") -> dict[str, Any]:
    """The views of an image that are like what training with this augmentation shows; any other only misleads.

    Resized crops show things larger than whole images do, and so do corners. Padded crops show them moved.
    """
    return {
        "test_mirror": augment.hflip > 0,
        "test_crops": augment.crop == "resized",
        "test_shifts": augment.crop == "pad" and augment.crop_padding > 0,
    }


def _moved(images: "Tensor") -> "list[Tensor]":
    """Each image moved up and to the left, and down and to the right; its own reflection fills the edge."""
    from torch.nn.functional import pad  # an exported file is fed without it

    height, width = images.shape[-2:]
    rows, columns = (max(1, round(SHIFT * side)) for side in (height, width))
    if rows >= height or columns >= width:
        return []
    wide = pad(images, (columns, columns, rows, rows), mode="reflect")
    return [wide[..., -height:, -width:], wide[..., :height, :width]]


def _corners(images: "Tensor") -> "Iterator[Tensor]":
    """Each corner with most of the image, as large as the whole."""
    from torch.nn.functional import interpolate  # an exported file is fed without it

    height, width = images.shape[-2:]
    rows, columns = (max(1, round(CORNER * side)) for side in (height, width))
    for top in (0, height - rows):
        for left in (0, width - columns):
            corner = images[..., top : top + rows, left : left + columns]
            yield interpolate(corner, (height, width), mode="bilinear", align_corners=False)


def natural_size(images: Images) -> tuple[int, int] | None:
    """The size that small images share; None for photographs, which take the size that the model was made for."""
    sizes = {images.read(i).shape[:2] for i in images.sample(16)}
    height, width = next(iter(sizes))
    return (height, width) if len(sizes) == 1 and max(height, width) <= SMALL_SIDE else None


def as_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size
