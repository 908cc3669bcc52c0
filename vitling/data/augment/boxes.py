"""Boxes of random size, and cutting a box of its own out of each image of a batch.

Sizes are drawn as timm and torchvision draw them, for random resized crops and for random erasing. A box is
(top, left, bottom, right) in pixels.
"""

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.data.augment.pillow_ops import change_groups
from vitling.data.augment.ragged import Ragged

ATTEMPTS = 10  # tries at a size that fits into the image
MATRIX_SIDE = 64  # up to here two matrix products per image are faster on a CPU than a call per image
PIECE = 2**18  # values resized at once on a CPU, so that the temporaries stay in the cache


def box_sizes(
    shape: Tensor,
    area: tuple[float, float],
    ratio: tuple[float, float],
    height: int | Tensor,
    width: int | Tensor,
    *,
    margin: int = 0,
    stretch: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor]:
    """The first attempt of each image that fits, (n, 2) as height and width; and whether there is one.

    `shape` (n, ATTEMPTS, 2) holds uniform numbers for the area, a share of the whole, and for the logarithm of the
    ratio width by height. To fit, a box has to leave `margin` pixels. Sizes of images may be one for all or (n,); so may be
    `stretch`, how many times wider than high a pixel is counted.
    """
    height, width, stretch = (torch.as_tensor(x, dtype=torch.float64)[..., None] for x in (height, width, stretch))
    u_area, u_ratio = shape.unbind(dim=-1)
    pixels = (area[0] + (area[1] - area[0]) * u_area) * height * width
    aspect = torch.exp(log(ratio[0]) + (log(ratio[1]) - log(ratio[0])) * u_ratio) * stretch
    sizes = torch.stack([(pixels / aspect).sqrt(), (pixels * aspect).sqrt()], dim=-1).round().long().clamp(min=1)
    fits = (sizes <= torch.stack([height, width], dim=-1) - margin).all(dim=-1)
    first = fits.int().argmax(dim=1)
    return sizes[torch.arange(len(sizes)), first], fits.any(dim=1)


def cut_box(image: Tensor, box: list[int]) -> Tensor:
    top, left, bottom, right = box
    return image[:, top:bottom, left:right]


def resize_boxes(images: Tensor | Ragged, boxes: Tensor, size: tuple[int, int], cubic: Tensor) -> Tensor:
    """Cut each image's box out and resize it as Pillow does, which looks at all pixels when it shrinks."""
    if isinstance(images, Ragged):
        if images.device.type != "cpu":
            return resize_boxes(_pad_to_largest(images), boxes, size, cubic)
        return _resize_ragged(images, boxes, size, cubic)
    on_cpu = images.device.type == "cpu"
    resize = _resize_by_matrices if _is_small(images, size) or not on_cpu else _resize_one_by_one
    at_once = max(1, PIECE // images[0].numel()) if on_cpu else len(images)

    def change(part: Tensor, is_cubic: bool, rows: Tensor) -> Tensor:
        pieces = zip(part.split(at_once), boxes[rows].split(at_once), strict=True)
        return torch.cat([resize(piece, piece_boxes, size, is_cubic) for piece, piece_boxes in pieces])

    return change_groups(images, cubic.tolist(), change)


def _is_small(image: Tensor, size: tuple[int, int]) -> bool:
    return max(*image.shape[-2:], *size) <= MATRIX_SIDE


def _resize_ragged(images: Ragged, boxes: Tensor, size: tuple[int, int], cubic: Tensor) -> Tensor:
    """Small images with those of their size, large ones by themselves: as they would be if all had that size."""
    if any(_is_small(image, size) for image in images.images):
        resized = images.change(lambda part, rows: resize_boxes(part, boxes[rows], size, cubic[rows]))
        return torch.stack(resized)
    resized = [
        _resize_one_by_one(image[None], box[None], size, is_cubic)
        for image, box, is_cubic in zip(images.images, boxes, cubic.tolist(), strict=True)
    ]
    return torch.cat(resized)


def _pad_to_largest(images: Ragged) -> Tensor:
    """One tensor, filled up to the right and below: nothing outside of its box has a part in what becomes of an image."""
    height, width = images.sizes.amax(dim=0).tolist()
    return torch.stack([F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in images.images])


def _resize_one_by_one(images: Tensor, boxes: Tensor, size: tuple[int, int], cubic: bool) -> Tensor:
    mode = "bicubic" if cubic else "bilinear"
    resized = [
        F.interpolate(cut_box(image, box)[None], size, mode=mode, antialias=True)
        for image, box in zip(images, boxes.tolist(), strict=True)
    ]
    return torch.cat(resized)


def _resize_by_matrices(images: Tensor, boxes: Tensor, size: tuple[int, int], cubic: bool) -> Tensor:
    n, C, H, W = images.shape
    top, left, bottom, right = boxes.to(images.device, torch.float32).T[..., None, None]  # each (n, 1, 1)
    to_width = resize_matrix(left, right, W, size[1], cubic)
    to_height = resize_matrix(top, bottom, H, size[0], cubic)
    wide = _round(torch.bmm(images.float().view(n, C * H, W), to_width.mT)).view(n, C, H, size[1])
    return _round(to_height[:, None] @ wide).byte()


def resize_matrix(start: Tensor, end: Tensor, size: int, new_size: int, cubic: bool) -> Tensor:
    """How much each new pixel between start and end takes of each old one, (n, new_size, size)."""
    pixel = torch.arange(size, device=start.device) + 0.5
    scale = (end - start) / new_size
    centre = start + (torch.arange(new_size, device=start.device)[:, None] + 0.5) * scale
    # Where pixels are merged the kernel widens, so that none is passed over.
    distance = ((pixel - centre) / scale.clamp(min=1)).abs_()
    if cubic:  # a = -1/2: one cubic up to a distance of 2, and its difference to the other up to 1
        d = distance.clamp_(max=2)
        weights = ((2.5 - 0.5 * d).mul_(d).sub_(4).mul_(d).add_(2)).add_(
            (1 - d).clamp_(min=0).square_().mul_(2 * d - 1)
        )
    else:
        weights = (1 - distance).clamp_(min=0)
    weights.mul_((pixel > start) & (pixel < end))
    return weights.div_(weights.sum(dim=-1, keepdim=True))


def _round(values: Tensor) -> Tensor:
    """Round half up and clip. The small step up makes a half of what float32 leaves just below it."""
    return values.add_(0.5 + 1e-4).floor_().clamp_(0, 255)
