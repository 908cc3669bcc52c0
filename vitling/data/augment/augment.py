"""Random augmentation of a whole batch, with an independent draw for each image.

timm's training pipeline (crop, flip, RandAugment, colour jitter, normalisation, random erasing) on uint8 images
(B, C, H, W) of any size, any channel count, on any device. torchvision's v2 transforms would give every image of a
batch the same crop.

Images of different sizes, `Ragged`, are cropped each from its own; what follows the crop is one tensor.

It works in two phases. `draw` makes all random decisions for n images; `apply` is deterministic and treats each image
by itself. Processes that share a global batch draw for all of it and apply their own rows,
`{k: v[a:b] for k, v in draws.items()}`: together they see exactly the images that one process would.
"""

from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vitling.data.augment.boxes import ATTEMPTS, box_sizes, cut_box, resize_boxes
from vitling.data.augment.pillow_ops import affines, apply_ops, change_groups, op_index
from vitling.data.augment.ragged import Ragged
from vitling.data.augment.randaugment import RandAugment
from vitling.errors import UserError, did_you_mean
from vitling.validation.values import Ascending, AspectRatio, PartOf, Range, Share, check_fields

ERASE_AREA = (0.02, 1 / 3)
ERASE_RATIO = (0.3, 1 / 0.3)
NOISE_POOL = 2**20  # places in the noise pool where an erased image may start reading
CHUNK = 2**21  # values worked on at once: small enough for the cache, large enough to hide the calls


class Geometry(NamedTuple):
    """Where the pixels of an augmented batch came from, on the CPU, so that a label map can follow them.

    `affine` (B, 2, 3) is what `F.affine_grid(..., align_corners=False)` takes: from output to input, both in -1 to 1.
    `frames` (B, S, 2, 3) are the maps to the picture before each step, last step first; the last of them is `affine`.
    `erased` (B, 4) is the erased box in output pixels (top, left, bottom, right), empty where nothing was erased.
    `sizes` (B, 2) are the heights and widths of the images before. `crop_frame` (B,) is the number of the crop's frame: the last
    one, which mirrors too, or the first one where images are cropped last.
    """

    affine: Tensor
    frames: Tensor
    erased: Tensor
    sizes: Tensor | None = None
    crop_frame: Tensor | None = None

    def to(self, device: torch.device) -> "Geometry":
        return Geometry(*(part if part is None else part.to(device) for part in self))

    @property
    def cropped_last(self) -> bool:
        return self.crop_frame is not None and bool((self.crop_frame < self.frames.shape[1] - 1).all())

    def inside(self, height: int, width: int) -> Tensor:
        """Which cells of a height x width grid show the image, (B, height, width); the others show a fill colour.

        The map alone is not enough: what a shift brings in from beyond the crop is filled, even where the image goes on.
        """
        B, S = self.frames.shape[:2]
        grid = F.affine_grid(self.frames.flatten(0, 1), [B * S, 1, height, width], align_corners=False)
        return (grid.abs() <= 1).all(dim=-1).view(B, S, height, width).all(dim=1)


@dataclass(frozen=True)
class Augment:
    """Turns uint8 images into augmented, normalised float32 images of one size.

    `crop`: "none" wants images of that size; "pad" cuts a window out of the image with `crop_padding` pixels around it, zeros or the image's own reflection (`crop_padding_mode`);
    "resized" cuts a box of random area (`crop_scale`) and aspect ratio (`crop_ratio`) and resizes it.
    `crop_at="original"` pads and cuts an image at its own size and brings it to `size` afterwards; `crop_padding` is then a share
    of its shorter side. `crop_when="last"` crops after flips, RandAugment and jitter, as LV-ViT's release does.
    `stretched`: images are meant to be stretched to `size`, so `crop_ratio` is that of the stretched picture.
    `hflip` and `vflip` are probabilities, and so is `erase`. `cutout` is the side of a square, as a share of the image's shorter
    one, that is put over each image anywhere, also partly beyond its edge, in the mean colour. `mean` and `std` are of values from 0 to 1.
    `interpolation` is bilinear, bicubic or, for each use, random.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: str = "none"
    crop_padding: Annotated[float, Range(0, 16_384)] = 4
    crop_padding_mode: str = "zeros"
    crop_scale: Annotated[tuple[PartOf, PartOf], Ascending()] = (0.08, 1.0)
    crop_ratio: Annotated[tuple[AspectRatio, AspectRatio], Ascending()] = (3 / 4, 4 / 3)
    hflip: Share = 0.5
    vflip: Share = 0.0
    randaugment: str | None = None
    color_jitter: Share = 0.0
    erase: Share = 0.0
    erase_mode: str = "pixel"
    cutout: Share = 0.0
    interpolation: str = "random"
    crop_at: str = "img_size"
    crop_when: str = "first"
    stretched: bool = False

    def __post_init__(self) -> None:
        allowed = {
            "crop": ("none", "pad", "resized"),
            "crop_padding_mode": ("zeros", "reflect"),
            "erase_mode": ("pixel", "const"),
            "interpolation": ("bilinear", "bicubic", "random"),
            "crop_at": ("img_size", "original"),
            "crop_when": ("first", "last"),
        }
        for key, values in allowed.items():
            if getattr(self, key) not in values:
                raise UserError(
                    f"unknown augment.{key}={getattr(self, key)!r}. {did_you_mean(str(getattr(self, key)), values)}"
                )
        check_fields(self, "augment.")
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise UserError(f"mean={self.mean} and std={self.std} must have one value per channel, std above 0.")
        if self.randaugment is not None:
            RandAugment.parse(self.randaugment)

    def __call__(self, images: Tensor | Ragged, generator: Generator | None = None) -> Tensor:
        return self.apply(images, self.draw(len(images), generator))

    def draw(self, n: int, generator: Generator | None = None) -> dict[str, Tensor]:
        """All random decisions for n images: CPU tensors whose first dimension is n.

        They know nothing of the images' size: boxes are uniform numbers that `apply` turns into pixels.
        """

        def uniform(*shape: int) -> Tensor:
            return torch.rand(n, *shape, generator=generator, dtype=torch.float64)

        draws = {"flip": uniform(2) < torch.tensor([self.vflip, self.hflip])}
        if self.crop != "none":
            draws |= {"crop_shape": uniform(ATTEMPTS, 2), "crop_place": uniform(2)}
        if self.erase > 0:
            draws |= {"erase": uniform() < self.erase, "erase_shape": uniform(ATTEMPTS, 2), "erase_place": uniform(2)}
            draws["erase_noise"] = torch.randint(0, NOISE_POOL, (n,), generator=generator)
        if self.cutout > 0:
            draws["cutout_place"] = uniform(2)

        steps = []  # (operation, argument), each (n, number of steps)
        if self.randaugment is not None:
            steps.append(RandAugment.parse(self.randaugment).draw(n, generator))
        if self.color_jitter > 0:
            names = torch.tensor([op_index(name) for name in ("Brightness", "Contrast", "Color")])
            low, high = max(0.0, 1 - self.color_jitter), 1 + self.color_jitter
            steps.append((names[uniform(3).argsort(dim=1)], low + (high - low) * uniform(3)))
        if steps:
            draws["op"], draws["argument"] = (torch.cat(part, dim=1) for part in zip(*steps, strict=True))

        cubic_prob = {"bilinear": 0.0, "bicubic": 1.0, "random": 0.5}[self.interpolation]
        draws["cubic"] = uniform(1 + sum(op.shape[1] for op, _ in steps)) < cubic_prob  # the crop's, then each step's
        return draws

    def apply(
        self, images: Tensor | Ragged, draws: dict[str, Tensor], return_geometry: bool = False
    ) -> Tensor | tuple[Tensor, Geometry]:
        """Augment each image as drawn; with `return_geometry` also say where the pixels came from."""
        self._check(images, draws)
        n, sizes = len(images), _sizes(images)
        channels = images.channels if isinstance(images, Ragged) else images.shape[1]
        height, width = self._size
        crops = self._crop_boxes(draws, *sizes.unbind(dim=1))
        erased = self._erase_boxes(draws)

        result = torch.empty(n, channels, height, width, device=images.device)
        rows_at_once = max(1, CHUNK // (channels * max([*sizes.prod(dim=1).tolist(), height * width])))
        for start in range(0, n, rows_at_once):
            rows = slice(start, start + rows_at_once)
            drawn = {key: value[rows] for key, value in draws.items()}
            if self.crop_when == "first":
                pixels = self._change(self._cut(images[rows], crops[rows], drawn), drawn)
            else:
                pixels = self._cut(self._change_whole(images[rows], drawn), crops[rows], drawn)
            normalised = result[rows].copy_(pixels)  # converts to float on the way
            self._normalise_(normalised)
            if self.erase > 0:
                self._erase_(normalised, erased[rows], drawn["erase_noise"])
            if self.cutout > 0:
                self._cut_out_(normalised, drawn["cutout_place"])

        if return_geometry:
            frames, crop_frame = self._frames(crops, draws, sizes)
            return result, Geometry(frames[:, -1], frames, erased, sizes, torch.full((n,), crop_frame))
        return result

    @property
    def _size(self) -> tuple[int, int]:
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return height, width

    @property
    def _fill(self) -> Tensor:
        """What moves in from outside the image: the mean grey level of each channel."""
        return (torch.tensor(self.mean) * 255).round().clamp(0, 255)

    def _check(self, images: Tensor | Ragged, draws: dict[str, Tensor]) -> None:
        assert len(images) == len(draws["flip"]), f"{len(images)} images but draws for {len(draws['flip'])}"
        if isinstance(images, Tensor) and (images.dtype != torch.uint8 or images.ndim != 4):
            raise UserError(
                f"augmentation got {images.dtype} of shape {tuple(images.shape)}; it takes uint8 (B, C, H, W)."
            )
        channels = images.channels if isinstance(images, Ragged) else images.shape[1]
        if channels != len(self.mean):
            raise UserError(f"images have {channels} channels but mean and std have {len(self.mean)} values.")
        height, width = self._size
        for H, W in _sizes(images).unique(dim=0).tolist():
            if self.crop == "none" and (height, width) != (H, W):
                raise UserError(
                    f"images are {H} x {W} but the model wants {height} x {width}; resize them or use augment.crop=resized."
                )
            if self.crop_padding_mode == "reflect" and int(self._padding(torch.tensor([[H, W]]))) >= min(H, W):
                raise UserError(
                    f"images of {H} x {W} have too few pixels to reflect for augment.crop_padding; lower it, or use "
                    "augment.crop_padding_mode=zeros."
                )
            space = 2 * self.crop_padding
            if self._cuts_window and (H + space < height or W + space < width):
                raise UserError(
                    f"images of {H} x {W} with {self.crop_padding} pixels around them are too small for a crop "
                    f"of {height} x {width}; resize them, raise augment.crop_padding or use augment.crop=resized."
                )

    @property
    def _cuts_window(self) -> bool:
        """Whether a crop has the output's size already."""
        return self.crop == "pad" and self.crop_at == "img_size"

    def _padding(self, sizes: Tensor) -> Tensor:
        """Pixels around each image, (n,)."""
        if self.crop_at == "original":
            return (self.crop_padding * sizes.amin(dim=1).double()).round().long()
        return torch.full((len(sizes),), int(self.crop_padding))

    def _crop_boxes(self, draws: dict[str, Tensor], H: int | Tensor, W: int | Tensor) -> Tensor:
        """Each image's (top, left, bottom, right) in its own pixels; beyond its edge where it is padded.

        H and W are the images' size, or sizes (n,).
        """
        n = len(draws["flip"])
        sizes = torch.stack([torch.as_tensor(H).expand(n), torch.as_tensor(W).expand(n)], dim=1)
        if self.crop == "none":
            return torch.cat([torch.zeros_like(sizes), sizes], dim=1)
        if self.crop == "pad":
            size = torch.tensor(self._size) if self._cuts_window else sizes
            padding = self._padding(sizes)[:, None]
            space = sizes + 2 * padding - size
            corner = (draws["crop_place"] * (space + 1)).long() - padding
            return torch.cat([corner, corner + size], dim=1)
        height, width = sizes.double().unbind(dim=1)
        stretch = (width / height) / (self._size[1] / self._size[0]) if self.stretched else torch.ones(())
        size, fits = box_sizes(draws["crop_shape"], self.crop_scale, self.crop_ratio, height, width, stretch=stretch)
        # No attempt fits into a very long image: the largest central box with an allowed ratio.
        low, high = (stretch * ratio for ratio in self.crop_ratio)
        central = torch.stack([height.minimum((width / low).round()), width.minimum((height * high).round())], dim=1)
        central = central.long()
        corner = (draws["crop_place"] * (sizes - size + 1)).long()
        corner = torch.where(fits[:, None], corner, (sizes - central) // 2)
        return torch.cat([corner, corner + torch.where(fits[:, None], size, central)], dim=1)

    def _erase_boxes(self, draws: dict[str, Tensor]) -> Tensor:
        """Each image's erased (top, left, bottom, right) in output pixels; empty where nothing is erased."""
        if self.erase == 0:
            return torch.zeros(len(draws["flip"]), 4, dtype=torch.long)
        height, width = self._size
        # An erased box is smaller than the image in both directions.
        size, fits = box_sizes(draws["erase_shape"], ERASE_AREA, ERASE_RATIO, height, width, margin=1)
        corner = (draws["erase_place"] * (torch.tensor(self._size) - size + 1)).long()
        return torch.cat([corner, corner + size], dim=1) * (draws["erase"] & fits)[:, None]

    def _cut(self, images: Tensor | Ragged, boxes: Tensor, draws: dict[str, Tensor]) -> Tensor:
        if self.crop == "none":
            assert isinstance(images, Tensor), "images that are not cropped have one size"
            return images
        if self.crop == "pad":
            padding = self._padding(_sizes(images))
            boxes = boxes + padding[:, None]
            mode = {"zeros": "constant"}.get(self.crop_padding_mode, self.crop_padding_mode)
            if isinstance(images, Ragged):
                around = padding.tolist()
                images = Ragged([F.pad(x, [p] * 4, mode=mode) for x, p in zip(images.images, around, strict=True)])
            else:
                images = F.pad(images, [int(padding[0])] * 4, mode=mode)
            if self._cuts_window:
                each = images.images if isinstance(images, Ragged) else images
                return torch.stack([cut_box(x, box) for x, box in zip(each, boxes.tolist(), strict=True)])
        return resize_boxes(images, boxes, self._size, draws["cubic"][:, 0])

    def _change(self, images: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Flips and operations, which leave images their size."""
        images = flip(images, draws["flip"])
        for step in range(draws["op"].shape[1] if "op" in draws else 0):
            op, argument, cubic = (draws[key][:, step + (key == "cubic")] for key in ("op", "argument", "cubic"))
            images = apply_ops(images, op, argument, cubic, self._fill)
        return images

    def _change_whole(self, images: Tensor | Ragged, draws: dict[str, Tensor]) -> Tensor | Ragged:
        if isinstance(images, Tensor):
            return self._change(images, draws)
        return Ragged(images.change(lambda some, own: self._change(some, {k: v[own] for k, v in draws.items()})))

    def _normalise_(self, images: Tensor) -> None:
        mean, std = (
            255 * torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std)
        )
        images.sub_(mean).div_(std)

    def _erase_(self, images: Tensor, boxes: Tensor, noise_start: Tensor) -> None:
        """Overwrite the boxes of normalised images, with zeros or with normal noise.

        The noise is read from one fixed pool, at a place drawn for each image: so rows of a batch can be augmented
        apart, without a generator for each image.
        """
        for image, box, start in zip(images, boxes.tolist(), noise_start.tolist(), strict=True):
            if box[0] < box[2]:
                erased = cut_box(image, box)
                if self.erase_mode == "pixel":
                    noise = noise_pool(image.numel(), image.device)
                    erased.copy_(noise[start : start + erased.numel()].view_as(erased))
                else:
                    erased.zero_()

    def _cut_out_(self, images: Tensor, place: Tensor) -> None:
        """Put a square of the mean, which is 0 in normalised images, over each of them: (n, 2) is where its centre lies."""
        half = self.cutout * min(self._size) / 2
        inside = []
        for side, share in zip(self._size, place.to(images.device).unbind(dim=1), strict=True):
            positions = torch.arange(side, device=images.device) + 0.5
            inside.append((positions - side * share[:, None]).abs() < half)
        images.masked_fill_((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.0)

    def _frames(self, crops: Tensor, draws: dict[str, Tensor], sizes: Tensor) -> tuple[Tensor, int]:
        """The maps from the output to the picture before each step, in coordinates from -1 to 1, last step first.

        And which of them is the crop's.
        """
        cut, mirror = identities(len(crops)), identities(len(crops))
        corner, end = crops.double().view(-1, 2, 2).unbind(dim=1)
        cut[:, 1, 1], cut[:, 0, 0] = ((end - corner) / sizes).T
        cut[:, 1, 2], cut[:, 0, 2] = ((corner + end) / sizes - 1).T
        mirror[:, 1, 1], mirror[:, 0, 0] = (1 - 2 * draws["flip"].double()).T
        if self.crop_when == "last":
            steps = [cut, *self._moves(draws, *sizes.double().unbind(dim=1)), mirror]
        else:
            steps = [*self._moves(draws, *torch.tensor(self._size).double()), cut @ mirror]
        frames = [steps[0]]
        for step in steps[1:]:
            frames.append(step @ frames[-1])
        crop_frame = 0 if self.crop_when == "last" else len(frames) - 1
        return torch.stack(frames, dim=1)[:, :, :2].float(), crop_frame

    def _moves(self, draws: dict[str, Tensor], height: Tensor, width: Tensor) -> list[Tensor]:
        """What each operation does to places between -1 and 1 of pictures of that size, last one first."""
        n = len(draws["flip"])
        to_pixels = identities(n)
        to_pixels[:, 0, 0] = to_pixels[:, 0, 2] = width / 2
        to_pixels[:, 1, 1] = to_pixels[:, 1, 2] = height / 2
        moves = []
        for step in reversed(range(draws["op"].shape[1] if "op" in draws else 0)):
            moved = identities(n)
            moved[:, :2] = affines(draws["op"][:, step], draws["argument"][:, step], height, width)
            moves.append(to_pixels.inverse() @ moved @ to_pixels)
        return moves


def identities(n: int) -> Tensor:
    return torch.eye(3, dtype=torch.float64).repeat(n, 1, 1)


def _sizes(images: Tensor | Ragged) -> Tensor:
    """Heights and widths, (n, 2)."""
    return images.sizes if isinstance(images, Ragged) else torch.tensor([images.shape[-2:]]).expand(len(images), 2)


def flip(images: Tensor, draws: Tensor) -> Tensor:
    """Mirror each image as drawn: (n, 2), vertically and horizontally."""

    def change(part: Tensor, dims: tuple[int, ...], _: Tensor) -> Tensor:
        return part.flip(dims)

    groups = [tuple(dim for dim, drawn in zip((2, 3), both, strict=True) if drawn) for both in draws.tolist()]
    return change_groups(images, groups, change)


@lru_cache(maxsize=4)
def noise_pool(window: int, device: torch.device) -> Tensor:
    """Normal noise with NOISE_POOL places to start reading `window` values, the same in every process."""
    return torch.randn(NOISE_POOL + window, generator=torch.Generator().manual_seed(0)).to(device)
