"""Pillow's image operations on whole batches, each image with its own argument.

Images are uint8 (B, C, H, W) on any device. Each operation gives what Pillow gives for one image: exactly, but for the
geometric ones, where a pixel in a few hundred differs by one grey level. Pillow cuts values off there instead of
rounding, and float32 and its float64 disagree next to a whole number.

Only three channels are colours. With any other count `Color` leaves the image alone and `Contrast` pulls to the mean of
all channels; the other operations treat every channel the same.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

Group = TypeVar("Group", bound=Hashable)

# Lookup tables: the new value of each of the 256 grey levels, (n, C or 1, 256), from images and argument (n, 1, 1).


def autocontrast_table(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the whole range."""
    # In float64 as Pillow, so on the CPU: not every device has it.
    low, high = (edge.cpu().double()[..., None] for edge in images.flatten(2).aminmax(dim=2))  # (n, C, 1)
    scale = torch.full_like(low, 255) / (high - low)  # not 255 / ..., which torch rounds twice
    levels = torch.arange(256.0)
    stretched = (levels * scale - low * scale).trunc().clamp(0, 255)
    return torch.where(high > low, stretched, levels).to(images.device, torch.float32)


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
    return _to_bytes((image - degenerate).mul_(factor).add_(degenerate).clamp_(0, 255))


def luma(images: Tensor) -> Tensor:
    """ITU-R 601 grey of RGB, in Pillow's 16-bit fixed point. (n, 1, H, W)"""
    red, green, blue = images.int().unbind(dim=1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768).bitwise_right_shift_(16)[:, None]


def _levels(images: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.float32, device=images.device).view(1, 1, 256)


# Geometry: affine maps from output to source, in pixels with centres at one half; a fill where they leave the image.


def affines(op: Tensor, argument: Tensor, height: int | Tensor, width: int | Tensor) -> Tensor:
    """Each image's map, (n, 2, 3) float64 on the CPU: the identity where its operation moves nothing.

    All images have one size, or each its own, (n,).
    """

    def of(name: str) -> Tensor:
        return torch.where(op == op_index(name), argument.double(), 0.0)

    x, y = width / 2, height / 2  # the centre, about which images rotate counter-clockwise
    angle = torch.deg2rad(of("Rotate"))
    cos, sin = angle.cos(), angle.sin()
    to_x = [cos, of("ShearX") - sin, x - cos * x + sin * y + of("TranslateX") * width]
    to_y = [of("ShearY") + sin, cos, y - sin * x - cos * y + of("TranslateY") * height]
    return torch.stack(to_x + to_y, dim=1).view(-1, 2, 3)


def slide(images: Tensor, affine: Tensor, *, dim: int, cubic: bool, fill: Tensor) -> Tensor:
    """Shear or translate: along `dim` each line moves by its own distance, and all its pixels share their weights."""
    n, C, H, W = images.shape
    row, column = _grid(images)
    reach = 3 if cubic else 1
    steps = torch.arange(images.shape[dim] + reach, device=images.device) - reach // 2
    (_, b, c), (d, _, f) = _coefficients(affine, images)
    if dim == 3:
        distance = b * (row + 0.5) + c  # (n, H, 1)
        source = row * W + (steps + distance.floor().long()).clamp_(0, W - 1)  # beyond the edge the edge repeats
        position = column + 0.5 + distance
    else:
        distance = d * (column + 0.5) + f  # (n, 1, W)
        source = (steps[:, None] + distance.floor().long()).clamp_(0, H - 1) * W + column
        position = row + 0.5 + distance

    window = images.flatten(2).gather(2, source.view(n, 1, -1).expand(-1, C, -1)).float()
    window = window.view(n, C, *source.shape[1:])
    first, *others = (
        window.narrow(dim, start, images.shape[dim]) * weight[:, None]
        for start, weight in enumerate(_interpolation_weights(distance - distance.floor(), cubic))
    )
    for other in others:
        first.add_(other)
    return _finish(first, (position >= 0) & (position < images.shape[dim]), fill)


def warp(images: Tensor, affine: Tensor, *, cubic: bool, fill: Tensor) -> Tensor:
    """Any affine map, as rotation needs it."""
    n, C, H, W = images.shape
    row, column = _grid(images)
    (a, b, c), (d, e, f) = _coefficients(affine, images)
    x = a * (column + 0.5) + (b * (row + 0.5) + c)  # (n, H, W)
    y = d * (column + 0.5) + (e * (row + 0.5) + f)
    rows, columns = _taps(y, H, cubic), _taps(x, W, cubic)

    pixels = images.flatten(2)
    total = torch.zeros(n, C, H, W, device=images.device)
    for row, row_weight in rows:
        row = row * W
        for column, column_weight in columns:
            source = (row + column).view(n, 1, -1).expand(-1, C, -1)
            values = pixels.gather(2, source).view(n, C, H, W).float()
            total.add_(values.mul_((row_weight * column_weight)[:, None]))
    return _finish(total, (x >= 0) & (x < W) & (y >= 0) & (y < H), fill)


def _grid(images: Tensor) -> tuple[Tensor, Tensor]:
    H, W = images.shape[-2:]
    return torch.arange(H, device=images.device)[:, None], torch.arange(W, device=images.device)


def _coefficients(affine: Tensor, images: Tensor) -> Tensor:
    return affine.permute(1, 2, 0)[..., None, None].to(images.device, torch.float32)  # (2, 3, n, 1, 1)


def _taps(position: Tensor, size: int, cubic: bool) -> list[tuple[Tensor, Tensor]]:
    """The pixels that one axis of the interpolation reads, and their weights. Beyond the edge the edge repeats."""
    position = position - 0.5
    whole = position.floor()
    weights = _interpolation_weights(position - whole, cubic)
    first = whole.long() - (len(weights) // 2 - 1)
    return [((first + step).clamp_(0, size - 1), weight) for step, weight in enumerate(weights)]


def _interpolation_weights(t: Tensor, cubic: bool) -> list[Tensor]:
    """Weights of the pixels around a place `t` beyond one of them. Pillow's transform uses the cubic with a = -1."""
    if not cubic:
        return [1 - t, t]
    u = 1 - t
    return [-t * u * u, 1 - t * t * (2 - t), 1 - u * u * (2 - u), -u * t * t]


def _finish(total: Tensor, inside: Tensor, fill: Tensor) -> Tensor:
    """Clip, put `fill` (C,) outside, and cut off as Pillow does.

    The small step up keeps 127.99999 what it is in Pillow's double precision, 128. Arithmetic, because torch.where
    would cost more than all the rest.
    """
    fill = fill.to(total.device).view(-1, 1, 1)
    return _to_bytes(total.clamp_(0, 255).sub_(fill).mul_(inside[:, None]).add_(fill + 2.5e-4))


def _to_bytes(values: Tensor) -> Tensor:
    """uint8 by cutting off. By way of int16 it is four times as fast on a CPU."""
    return values.short().byte()


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
slide_x, slide_y = partial(slide, dim=3), partial(slide, dim=2)
AFFINES: dict[str, Callable] = {
    "Rotate": warp,
    "ShearX": slide_x,
    "ShearY": slide_y,
    "TranslateX": slide_x,
    "TranslateY": slide_y,
}
OPERATIONS = (*TABLES, *BLENDS, *AFFINES)


def op_index(name: str) -> int:
    return OPERATIONS.index(name)


def apply_ops(images: Tensor, op: Tensor, argument: Tensor, cubic: Tensor, fill: Tensor) -> Tensor:
    """Change each image by its own operation: `op` (n,) indexes OPERATIONS, -1 leaves the image alone.

    `op`, `argument` and `cubic` stay on the CPU, where grouping the images by operation costs no synchronisation.
    """
    groups: list[str | tuple[Callable, bool] | None] = []
    for name, is_cubic in zip(op.tolist(), cubic.tolist(), strict=True):
        name = OPERATIONS[name] if name >= 0 else None
        groups.append("table" if name in TABLES else (AFFINES[name], is_cubic) if name in AFFINES else name)
    maps = affines(op, argument, *images.shape[-2:])

    def change(part: Tensor, group: str | tuple[Callable, bool] | None, rows: Tensor) -> Tensor:
        if group is None:
            return part
        if isinstance(group, tuple):
            move, is_cubic = group
            return move(part, maps[rows], cubic=is_cubic, fill=fill)
        if group == "table":
            return look_up(part, op[rows], argument[rows])
        return BLENDS[group](part, _factor(part, argument[rows]))

    return change_groups(images, groups, change)


def change_groups(images: Tensor, groups: Sequence[Group], change: Callable[[Tensor, Group, Tensor], Tensor]) -> Tensor:
    """Call `change(images, group, rows)` once for all images of each group; results in the images' order.

    Copying the groups together and back in order is many times faster than writing each into its rows.
    """
    rows: dict[Group, list[int]] = {group: [] for group in groups}
    for i, group in enumerate(groups):
        rows[group].append(i)
    parts = []
    for group, mine in rows.items():
        index = torch.tensor(mine)
        parts.append(change(images.index_select(0, index.to(images.device)), group, index))
    order = torch.tensor([i for mine in rows.values() for i in mine]).argsort()
    return torch.cat(parts).index_select(0, order.to(images.device))


def look_up(images: Tensor, op: Tensor, argument: Tensor) -> Tensor:
    """Change each image by the lookup table of its own operation, all of them in one go."""
    n, C, H, W = images.shape
    names = [OPERATIONS[i] for i in op.tolist()]
    tables = change_groups(
        images,
        names,
        lambda part, name, rows: TABLES[name](part, _factor(part, argument[rows])[..., 0]).byte().expand(-1, C, -1),
    )
    return tables.gather(2, images.flatten(2).long()).view(n, C, H, W)


def _factor(images: Tensor, argument: Tensor) -> Tensor:
    return argument.to(images.device, torch.float32).view(-1, 1, 1, 1)
