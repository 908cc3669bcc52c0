"""Augmentation of whole batches, with an independent draw per image."""

from vitling.data.augment.augment import Augment, Geometry

__all__ = ["Augment", "Geometry"]
