"""Pillow's image operations on whole batches, each image with its own argument.

Images are uint8 (B, C, H, W) on any device. Each operation gives what Pillow gives for one image: exactly, but for the
geometric ones, where one pixel in a few hundred differs by one grey level (float32 here, float64 there).

Only three channels are colours. With any other count `Color` leaves the image alone and `Contrast` pulls to the mean of
all channels; the other operations treat every channel alike.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Lookup tables: the new value of each of the 256 grey levels, (n, C or 1, 256), from images and argument (n, 1, 1).


def autocontrast_table(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the whole range."""
    low, high = (edge.double()[..., None] for edge in images.flatten(2).aminmax(dim=2))  # (n, C, 1)
    scale = 255 / (high - low)
    stretched = (_levels(images) * scale - low * scale).trunc().clamp(0, 255)
    return torch.where(high > low, stretched, _levels(images))


def equalize_table(images: Tensor, _: Tensor) -> Tensor:
    """Spread each channel's grey levels evenly, by its histogram."""
    n, C, H, W = images.shape
    first = 256 * torch.arange(n * C, device=images.device).view(n, C, 1)
    counts = torch.bincount((images.flatten(2) + first).flatten(), minlength=n * C * 256).view(n, C, 256)
    brightest = counts.gather(2, images.flatten(2).amax(dim=2, keepdim=True).long())
    step = (H * W - brightest) // 255
    before = counts.cumsum(dim=2) - counts  # pixels darker than each level
    spread = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, _levels(images).long())


def invert_table(images: Tensor, _: Tensor) -> Tensor:
    return (255 - _levels(images)).expand(len(images), 1, 256)


def posterize_table(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the upper bits. None at all gives black, where Pillow 13 raises."""
    step = 2 ** (8 - bits.clamp(0, 8))
    return (_levels(images) / step).floor() * step


def solarize_table(images: Tensor, threshold: Tensor) -> Tensor:
    levels = _levels(images)
    return torch.where(levels < threshold, levels, 255 - levels)


def solarize_add_table(images: Tensor, added: Tensor) -> Tensor:
    levels = _levels(images)
    return torch.where(levels < 128, (levels + added).clamp(max=255), levels)


def brightness_table(images: Tensor, factor: Tensor) -> Tensor:
    return blend(torch.zeros_like(factor), _levels(images), factor)


def contrast_table(images: Tensor, factor: Tensor) -> Tensor:
    grey = luma(images) if images.shape[1] == 3 else images
    mean = grey.flatten(1).long().sum(dim=1) / grey[0].numel()
    return blend((mean + 0.5).floor().view(-1, 1, 1), _levels(images), factor)


# Blends with a changed copy, from images and argument (n, 1, 1, 1).


def color(images: Tensor, factor: Tensor) -> Tensor:
    return blend(luma(images).float(), images.float(), factor) if images.shape[1] == 3 else images


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3 x 3 smoothing that weighs the centre five times and leaves the border as it is."""
    centre = images[..., 1:-1, 1:-1]
    columns = images.short()
    columns = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:]
    smoothed = columns[..., :-2] + columns[..., 1:-1] + columns[..., 2:] + 4 * centre.short()
    result = images.clone()
    result[..., 1:-1, 1:-1] = blend((smoothed / 13).round_(), centre.float(), factor)
    return result


def blend(degenerate: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """From `degenerate` (factor 0) through `image` (1) and beyond; clipped and cut off, not rounded."""
    return (image - degenerate).mul_(factor).add_(degenerate).clamp_(0, 255).byte()


def luma(images: Tensor) -> Tensor:
    """ITU-R 601 grey of RGB, in Pillow's 16-bit fixed point. (n, 1, H, W)"""
    red, green, blue = images.int().unbind(dim=1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768).bitwise_right_shift_(16)[:, None]


def _levels(images: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.float32, device=images.device).view(1, 1, 256)


# Affine maps from output to source, in pixels with centres at one half, (n, 2, 3), from argument (n,) and the image's size.


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Counter-clockwise about the centre of the image."""
    cos, sin = torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))
    x, y = width / 2, height / 2
    return _affine(a=cos, b=-sin, c=x - cos * x + sin * y, d=sin, e=cos, f=y - sin * x - cos * y)


def shear_x(factor: Tensor, height: int, width: int) -> Tensor:
    return _affine(torch.ones_like(factor), b=factor)


def shear_y(factor: Tensor, height: int, width: int) -> Tensor:
    return _affine(torch.ones_like(factor), d=factor)


def translation_x(share: Tensor, height: int, width: int) -> Tensor:
    return _affine(torch.ones_like(share), c=share * width)


def translation_y(share: Tensor, height: int, width: int) -> Tensor:
    return _affine(torch.ones_like(share), f=share * height)


def _affine(a: Tensor, *, b=None, c=None, d=None, e=None, f=None) -> Tensor:
    none = torch.zeros_like(a)
    values = [a, b, c, d, torch.ones_like(a) if e is None else e, f]
    return torch.stack([none if v is None else v for v in values], dim=-1).unflatten(-1, (2, 3))


def warp(images: Tensor, affine: Tensor, *, cubic: bool, along: str, fill: Tensor) -> Tensor:
    """Draw each image through its affine map, with `fill` (C,) where the map leaves the image.

    `along` names the axes that move, "x", "y" or "xy": the other needs no interpolation.
    """
    n, C, H, W = images.shape
    (a, b, c), (d, e, f) = affine.to(images.device, torch.float32).permute(1, 2, 0)[..., None, None]  # each (n, 1, 1)
    column = torch.arange(W, device=images.device)
    row = torch.arange(H, device=images.device)[:, None]
    x = a * (column + 0.5) + (b * (row + 0.5) + c)  # (n, H, W)
    y = d * (column + 0.5) + (e * (row + 0.5) + f)
    columns = _taps(x, W, cubic) if "x" in along else [(column, None)]
    rows = _taps(y, H, cubic) if "y" in along else [(row, None)]

    pixels = images.flatten(2)
    total = 0
    for row, row_weight in rows:
        line = 0
        for column, column_weight in columns:
            index = (row * W + column).flatten(1)[:, None].expand(n, C, H * W)
            line = _weighted(pixels.gather(2, index).view(n, C, H, W).float(), column_weight).add_(line)
        total = _weighted(line, row_weight).add_(total)
    inside = ((x >= 0) & (x < W) & (y >= 0) & (y < H))[:, None]
    outside = fill.to(images.device).view(C, 1, 1)
    # Arithmetic, because torch.where costs more than all the rest.
    total = total.clamp_(0, 255).sub_(outside).mul_(inside).add_(outside)
    # Pillow cuts off. The small step up keeps 127.99999 what it is in Pillow's double precision, 128.
    return total.add_(1e-3).byte()


def _taps(position: Tensor, size: int, cubic: bool) -> list[tuple[Tensor, Tensor]]:
    """The pixels that one axis of the interpolation reads, and their weights. Beyond the edge the edge repeats."""
    position = position - 0.5
    whole = position.floor()
    t = position - whole
    if cubic:  # Pillow's transform uses the cubic with a = -1; its resize, and torch, another
        u = 1 - t
        weights = {-1: -t * u * u, 0: 1 - t * t * (2 - t), 1: 1 - u * u * (2 - u), 2: -u * t * t}
    else:
        weights = {0: 1 - t, 1: t}
    whole = whole.long()
    return [((whole + step).clamp_(0, size - 1), weight) for step, weight in weights.items()]


def _weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    return values if weight is None else values.mul_(weight[:, None])


TABLES: dict[str, Callable] = {
    "AutoContrast": autocontrast_table,
    "Equalize": equalize_table,
    "Invert": invert_table,
    "Posterize": posterize_table,
    "Solarize": solarize_table,
    "SolarizeAdd": solarize_add_table,
    "Brightness": brightness_table,
    "Contrast": contrast_table,
}
BLENDS: dict[str, Callable] = {"Color": color, "Sharpness": sharpness}
AFFINES: dict[str, Callable] = {
    "Rotate": rotation,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translation_x,
    "TranslateY": translation_y,
}
ALONG = {"Rotate": "xy", "ShearX": "x", "TranslateX": "x", "ShearY": "y", "TranslateY": "y"}
OPERATIONS = (*TABLES, *BLENDS, *AFFINES)


def op_index(name: str) -> int:
    return OPERATIONS.index(name)


def apply_ops(images: Tensor, op: Tensor, argument: Tensor, cubic: Tensor, fill: Tensor) -> Tensor:
    """Change each image by its own operation: `op` (n,) indexes OPERATIONS, -1 leaves the image alone.

    `op`, `argument` and `cubic` stay on the CPU, where grouping the images by operation costs no synchronisation.
    """

    def chosen(*names: str) -> Tensor:
        return torch.isin(op, torch.tensor([op_index(name) for name in names]))

    groups = [(chosen(*TABLES), lambda part, mine: look_up(part, op[mine], argument[mine]))]
    for name, change in BLENDS.items():
        groups.append((chosen(name), lambda part, mine, change=change: change(part, _like(part, argument[mine]))))
    for along in ("x", "y", "xy"):
        for smooth in (False, True):
            still = {"cubic": smooth, "along": along, "fill": fill}
            moved = chosen(*(name for name in AFFINES if ALONG[name] == along)) & (cubic == smooth)
            maps = affines(op, argument, *images.shape[-2:])
            groups.append((moved, lambda part, mine, maps=maps, still=still: warp(part, maps[mine], **still)))
    return change_groups(images, groups)


def change_groups(images: Tensor, groups: list[tuple[Tensor, Callable]]) -> Tensor:
    """Change each group of images, given by a mask on the CPU, by its function of (images, mask); keep the rest.

    Copying the groups together and back in order is many times faster than writing each into its rows.
    """
    rest = ~torch.stack([mask for mask, _ in groups]).any(dim=0)
    parts, rows = [], []
    for mask, change in [*groups, (rest, lambda part, _: part)]:
        mine = mask.nonzero().flatten()
        if len(mine):
            parts.append(change(images.index_select(0, mine.to(images.device)), mask))
            rows.append(mine)
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts).index_select(0, torch.cat(rows).argsort().to(images.device))


def look_up(images: Tensor, op: Tensor, argument: Tensor) -> Tensor:
    """Change each image by the lookup table of its own operation, all of them in one go."""
    n, C, H, W = images.shape
    tables = torch.empty(n, C, 256, dtype=torch.uint8, device=images.device)
    for name, table in TABLES.items():
        mine = (op == op_index(name)).nonzero().flatten()
        if len(mine):
            rows = mine.to(images.device)
            part = images.index_select(0, rows)
            tables[rows] = table(part, _like(part, argument[mine])[..., 0]).byte()
    return tables.gather(2, images.flatten(2).long()).view(n, C, H, W)


def affines(op: Tensor, argument: Tensor, height: int, width: int) -> Tensor:
    """Each image's affine map in pixels, (n, 2, 3) float64: the identity where `op` moves nothing."""
    result = torch.eye(2, 3, dtype=torch.float64).repeat(len(op), 1, 1)
    for name, affine in AFFINES.items():
        mine = op == op_index(name)
        result[mine] = affine(argument[mine].double(), height, width)
    return result


def _like(images: Tensor, argument: Tensor) -> Tensor:
    return argument.to(images.device, torch.float32).view(-1, 1, 1, 1)
