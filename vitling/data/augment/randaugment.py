"""RandAugment as timm's configuration strings describe it: which operation each image gets, and how much of it.

Paper: Cubuk et al. 2020, "RandAugment: Practical automated data augmentation with a reduced search space". Operations,
magnitudes and their noise are timm's, and so is the language: `rand-m9-mstd0.5-inc1` is what DeiT, T2T-ViT, LV-ViT and
DHVT train with.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from vitling.data.augment.pillow_ops import op_index
from vitling.errors import UserError
from vitling.inputs.values import Range, Share, check_fields, show

Magnitude = Annotated[float, Range(0, 100)]


@dataclass(frozen=True)
class RandAugment:
    """The policy: `num_ops` operations per image, each drawn anew and applied with probability `prob`."""

    magnitude: Magnitude = 10.0
    magnitude_std: Annotated[float, Range(0, 1000)] = 0.0
    magnitude_max: Magnitude = 10.0
    num_ops: Annotated[int, Range(1, 16)] = 2
    prob: Share = 0.5
    increasing: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "randaugment ")

    @classmethod
    def parse(cls, config: str) -> "RandAugment":
        """Read timm's string: `rand` and, in any order, m, mstd, mmax, n, p and inc, each with its number."""
        keys: dict[str, tuple[str, type]] = {
            "m": ("magnitude", float),
            "mstd": ("magnitude_std", float),
            "mmax": ("magnitude_max", float),
            "n": ("num_ops", int),
            "p": ("prob", float),
            "inc": ("increasing", int),
        }
        kind, *sections = config.split("-")
        settings: dict[str, Any] = {}
        for section in sections:
            match = re.fullmatch(r"([a-z]+)([0-9]{1,18}|[0-9]{0,18}\.[0-9]{1,18})", section)
            if match is None or match[1] not in keys or (match[1] in ("n", "inc") and "." in match[2]):
                kind = ""
                break
            name, read = keys[match[1]]
            settings[name] = read(match[2])
        if kind != "rand":
            raise UserError(
                f"randaugment={show(config)!r} cannot be read. Allowed: rand, then any of m9 mstd0.5 mmax10 n2 p0.5 inc1 "
                "joined by dashes. Try rand-m9-mstd0.5-inc1."
            )
        settings["increasing"] = bool(settings.get("increasing", 0))
        try:
            return cls(**settings)
        except UserError as error:
            raise UserError(f"randaugment={config!r}: {error} Try rand-m9-mstd0.5-inc1.") from None

    def draw(self, n: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Operation (index into OPERATIONS, -1 for none) and argument for n images, both (n, num_ops)."""
        shape = (n, self.num_ops)
        uniform, normal = (f(shape, generator=generator, dtype=torch.float64) for f in (torch.rand, torch.randn))
        if self.magnitude_std > 100:  # timm's way to ask for a magnitude anywhere below the given one
            magnitude = self.magnitude * uniform
        else:
            magnitude = self.magnitude + self.magnitude_std * normal
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        arguments = self.arguments(magnitude.clamp(0, self.magnitude_max), sign)
        names = torch.tensor([op_index(name) for name in arguments])

        choice = torch.randint(0, len(names), shape, generator=generator)
        applied = torch.rand(shape, generator=generator) < self.prob
        argument = torch.stack(list(arguments.values())).gather(0, choice[None])[0]
        return torch.where(applied, names[choice], -1), argument

    def arguments(self, magnitude: Tensor, sign: Tensor) -> dict[str, Tensor]:
        """What each operation of the policy is called with at this magnitude and random sign."""
        level, sign = magnitude / 10, sign.to(magnitude)  # timm's scale, whatever magnitude_max
        bits = (4 * level).floor()
        threshold = (256 * level).floor().clamp(max=256)
        factor = 0.1 + 1.8 * level
        if self.increasing:  # a higher level means a stronger change, for these four as for the others
            bits = 4 - bits
            threshold = 256 - threshold
            factor = (1 + sign * 0.9 * level).clamp(min=0.1)
        none = torch.zeros_like(level)
        return {
            "AutoContrast": none,
            "Equalize": none,
            "Invert": none,
            "Rotate": sign * 30 * level,
            "Posterize": bits,
            "Solarize": threshold,
            "SolarizeAdd": (110 * level).floor().clamp(max=128),
            "Color": factor,
            "Contrast": factor,
            "Brightness": factor,
            "Sharpness": factor,
            "ShearX": sign * 0.3 * level,
            "ShearY": sign * 0.3 * level,
            "TranslateX": sign * 0.45 * level,  # of the width
            "TranslateY": sign * 0.45 * level,
        }
