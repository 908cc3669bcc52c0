"""Ragged: images of different sizes, for as long as a crop has not made them one tensor."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Ragged:
    """uint8 images (C, H, W), each of its own size, with as much of a tensor's interface as batches need."""

    def __init__(self, images: Sequence[Tensor]):
        self.images = list(images)

    @classmethod
    def unpack(cls, pixels: Tensor, sizes: Tensor) -> "Ragged":
        """Images whose pixels lie one after another; `sizes` (n, 2) are their heights and widths."""
        areas = sizes.prod(dim=1)
        channels = len(pixels) // int(areas.sum()) if len(sizes) else 1
        parts = pixels.split((areas * channels).tolist())
        return cls([part.view(channels, *size) for part, size in zip(parts, sizes.tolist(), strict=True)])

    def pack(self) -> tuple[Tensor, Tensor]:
        """All pixels in one tensor, and the sizes: one copy to a device, or one piece of shared memory."""
        return torch.cat([image.reshape(-1) for image in self.images]), self.sizes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: slice) -> "Ragged":
        return Ragged(self.images[rows])

    @property
    def sizes(self) -> Tensor:
        """Heights and widths, (n, 2), on the CPU."""
        return torch.tensor([image.shape[-2:] for image in self.images]).view(-1, 2)

    @property
    def channels(self) -> int:
        return len(self.images[0])

    @property
    def device(self) -> torch.device:
        return self.images[0].device

    def select(self, index: Tensor) -> "Ragged":
        return Ragged([self.images[i] for i in index.tolist()])

    def tensor_split(self, parts: int) -> list["Ragged"]:
        """As torch splits a tensor."""
        return [self.select(index) for index in torch.arange(len(self)).tensor_split(parts)]

    def to(self, device: torch.device | str) -> "Ragged":
        if not len(self) or self.device.type == torch.device(device).type == "cpu":
            return self
        pixels, sizes = self.pack()
        return Ragged.unpack(pixels.to(device), sizes)

    def change(self, function: Callable[[Tensor, Tensor], Tensor | Sequence[Tensor]]) -> list[Tensor]:
        """What `function(images, rows)` makes of each image, in order; it gets those of one size together, (B, C, H, W)."""
        rows: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(self.images):
            rows.setdefault(tuple(image.shape), []).append(i)
        changed: dict[int, Tensor] = {}
        for mine in rows.values():
            together = torch.stack([self.images[i] for i in mine])
            changed |= zip(mine, function(together, torch.tensor(mine)), strict=True)
        return [changed[i] for i in range(len(self))]
