"""Label maps follow their images: where an augmented image came from, its tokens take their labels.

Tokens are labelled as RoIAlign does it (He et al. 2017): the mean of the class scores at points spread evenly over the token,
as many per axis as cells of the map were started, each interpolated bilinearly. Here the points go through the image's whole
affine map, so flips, crops, shears, rotations and shifts are one step, and one matrix product serves a batch on any device.

The release (Jiang et al. 2021, "All Tokens Matter") exchanges x and y where it crops, moves maps to the nearest cell with the
centre half a cell off, and leaves erased tokens their labels: `axes="official"`. Both ways equal the golden numbers.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.data.augment.augment import Geometry
from vitling.errors import UserError, did_you_mean

AXES = ("geometric", "official")
SLACK = 1e-4  # of a cell or an image side: what float32 may add to a whole number


def transport_labels(
    scores: Tensor,
    classes: Tensor,
    geometry: Geometry,
    *,
    num_classes: int,
    size: tuple[int, int],
    img_size: tuple[int, int],
    axes: str = "geometric",
    covered: Tensor | None = None,
) -> Tensor:
    """Class scores (B, num_classes, *size) of the tokens of augmented images of `img_size`.

    `scores` and `classes` (B, h, w, k) are the best classes of each cell of the maps; all others score 0. A token is
    labelled by what it shows of the image; one that shows nothing of it, only fill colour or erasing noise, scores 0 throughout.
    `covered` (B, 2) are the shares of the pictures' widths and heights, in the middle, that the maps are of; unless given, all.
    With axes="official" they are taken for all, as the release does.
    """
    if axes not in AXES:
        raise UserError(f"unknown axes={axes!r}. {did_you_mean(axes, AXES)}")
    maps = dense_scores(scores, classes, num_classes)  # (B, h, w, num_classes)
    if axes == "official":
        return _transport_as_released(maps.permute(0, 3, 1, 2), geometry, size)
    geometry = geometry.to(scores.device)
    to_map = geometry.affine if covered is None else geometry.affine / covered.to(geometry.affine)[:, :, None]
    # Erased boxes as shares of the image, in the coordinates of the output: -1 to 1, x first.
    top, left, bottom, right = geometry.erased.float().T
    height, width = img_size
    low = torch.stack([2 * left / width - 1, 2 * top / height - 1], dim=1)[:, None]
    high = torch.stack([2 * right / width - 1, 2 * bottom / height - 1], dim=1)[:, None]

    def shows_image(points: Tensor) -> Tensor:
        seen = ~((points > low) & (points < high)).all(dim=-1)
        for frame in geometry.frames.unbind(dim=1):
            seen &= (_follow(frame, points).abs() <= 1 + SLACK).all(dim=-1)
        if covered is not None:
            seen &= (_follow(to_map, points).abs() <= 1 + SLACK).all(dim=-1)
        return seen

    weights = sampling_weights(to_map, size, tuple(maps.shape[1:3]), shows_image)
    return (weights @ maps.flatten(1, 2)).mT.unflatten(2, size)


def dense_scores(scores: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """The scores of all classes, (..., num_classes), from the best ones, (..., k)."""
    dense = torch.zeros(*scores.shape[:-1], num_classes, device=scores.device)
    return dense.scatter_(-1, classes, scores.float())


def sampling_weights(
    affine: Tensor,
    size: tuple[int, int],
    grid: tuple[int, int],
    shows_image: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """How much each of the `size` tokens takes of each cell of a `grid`, (B, tokens, cells).

    `affine` (B, 2, 3) leads from the tokens' picture to the maps', both from -1 to 1. `shows_image` says for points (B, P, 2)
    of the tokens' picture which of them count.
    """
    (rows, columns), (height, width) = size, grid
    cells = torch.tensor([width, height], device=affine.device)
    u, u_counts = _spread(columns, (affine[:, :, 0] * cells / columns).norm(dim=1))  # (B, columns, samples)
    v, v_counts = _spread(rows, (affine[:, :, 1] * cells / rows).norm(dim=1))
    shape = (len(affine), rows, columns, v.shape[2], u.shape[2])
    points = torch.stack([u[:, None, :, None, :].expand(shape), v[:, :, None, :, None].expand(shape)], dim=-1)
    points = points.flatten(1, 4)  # (B, P, 2)
    counts = (v_counts[:, None, None, :, None] & u_counts[:, None, None, None, :]).expand(shape).flatten(1)
    if shows_image is not None:
        counts = counts & shows_image(points)

    place = (_follow(affine, points) + 1) / 2 * cells - 0.5  # in cells of the map, counted from the first one's centre
    x_weight, y_weight = (
        (1 - (place[..., axis, None].clamp(0, length - 1) - torch.arange(length, device=affine.device)).abs()).clamp_(0)
        for axis, length in enumerate((width, height))
    )
    y_weight = y_weight * counts[..., None]
    tokens, samples = rows * columns, shape[3] * shape[4]
    x_weight, y_weight = (w.view(len(affine) * tokens, samples, -1) for w in (x_weight, y_weight))
    weights = torch.bmm(y_weight.mT, x_weight).view(len(affine), tokens, height * width)
    counted = counts.view(len(affine), tokens, samples).sum(dim=2, keepdim=True)
    return weights / counted.clamp(min=1)


def _spread(parts: int, extent: Tensor) -> tuple[Tensor, Tensor]:
    """Sample places (B, parts, samples) along one axis from -1 to 1, and which of the samples count, (B, samples).

    `extent` (B,) is how many cells of the map a part covers: one sample for each one started.
    """
    number = (extent - SLACK).ceil().clamp(min=1)
    sample = torch.arange(int(number.max()), device=extent.device)
    part = torch.arange(parts, device=extent.device)
    place = part[:, None] + ((sample + 0.5) / number[:, None])[:, None]
    return 2 * place / parts - 1, sample < number[:, None]


def _follow(affine: Tensor, points: Tensor) -> Tensor:
    """Where an affine map (B, 2, 3) leads points (B, P, 2)."""
    return torch.baddbmm(affine[:, None, :, 2], points, affine[:, :, :2].mT)


def roi_align(maps: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """RoIAlign of maps (B, C, h, w): boxes (B, 4) are (top, left, bottom, right) as shares of the map.

    A box is at least one cell long, from its top left corner on, as in torchvision with aligned=False.
    """
    start, end = boxes[:, :2], boxes[:, 2:]
    end = torch.maximum(end, start + 1 / torch.tensor(maps.shape[2:], device=boxes.device))
    affine = torch.zeros(len(boxes), 2, 3, device=boxes.device)
    affine[:, [1, 0], [1, 0]] = end - start
    affine[:, [1, 0], 2] = end + start - 1
    weights = sampling_weights(affine, size, tuple(maps.shape[2:]))
    return (maps.flatten(2) @ weights.mT).unflatten(2, size)


def move_nearest(maps: Tensor, affine: Tensor, *, edge: bool = False) -> Tensor:
    """Move maps (B, C, h, w) by an affine map of -1 to 1 as the release does: each cell takes the nearest one.

    Its coordinates start at the centre of the first cell where those of the picture start at its edge: half a cell off. What
    comes in from outside is 0, or with `edge` the cell at the edge.
    """
    B, _, h, w = maps.shape
    cells = torch.tensor([w, h], device=maps.device)
    rows, columns = torch.meshgrid(*(torch.arange(n, device=maps.device) for n in (h, w)), indexing="ij")
    points = torch.stack([columns, rows], dim=-1).flatten(0, 1) * 2 / cells - 1
    place = (_follow(affine.to(maps.device), points.expand(B, -1, -1)) + 1) / 2 * cells  # (B, h * w, 2)
    outside = ((place < -SLACK) | (place > cells - 1 + SLACK)).any(dim=-1)
    x, y = (place + 0.5).floor().long().clamp(min=0).minimum(cells - 1).unbind(dim=-1)
    moved = maps.flatten(2).gather(2, (y * w + x)[:, None].expand(-1, maps.shape[1], -1))
    return (moved if edge else moved.masked_fill(outside[:, None], 0)).view_as(maps)


def _transport_as_released(maps: Tensor, geometry: Geometry, size: tuple[int, int]) -> Tensor:
    """Flip, move to the nearest cell, crop with x and y exchanged, in the release's order."""
    steps = _steps(geometry.frames.to(maps.device))
    if geometry.cropped_last:
        cut, *moves, mirror = steps
    else:
        *moves, cut = steps
        mirror = cut
    y_and_x = [1, 0]
    scale, flips = cut[:, y_and_x, y_and_x].abs(), mirror[:, y_and_x, y_and_x] < 0  # (B, 2), y first
    for dim, mirrored in zip((2, 3), flips.unbind(dim=1), strict=True):
        maps = torch.where(mirrored.view(-1, 1, 1, 1), maps.flip(dim), maps)
    for move in reversed(moves):
        maps = move_nearest(maps, move)
    centre = cut[:, y_and_x, 2]
    if not geometry.cropped_last:  # it is of the picture as it was before the flip
        centre = torch.where(flips, -1, 1) * centre
    boxes = torch.cat([centre - scale + 1, centre + scale + 1], dim=1) / 2  # top, left, bottom, right
    return roi_align(maps, boxes[:, [1, 0, 3, 2]], size)


def _steps(frames: Tensor) -> list[Tensor]:
    """The map of every single step, (B, 2, 3) each, in the order of the frames, which are the maps of all steps up to it."""
    whole = F.pad(frames, (0, 0, 0, 1))
    whole[..., 2, 2] = 1
    first, *others = whole.unbind(dim=1)
    steps = [first, *(step @ before.inverse() for before, step in zip([first, *others], others, strict=False))]
    return [step[:, :2] for step in steps]
