"""What scikit-learn's users give, as images: columns of paths, arrays of any kind of numbers, flat rows."""

from typing import Any

import numpy as np
from sklearn.utils.multiclass import type_of_target

from vitling.data.sources.memory import is_list_of_images
from vitling.errors import UserError


def only_column(given: Any) -> Any:
    """The images of a table that has one column of them, from pandas or NumPy; anything else as it is."""
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        columns = [given.iloc[:, i] for i in range(given.shape[1])]
        listed = [name for name, column in zip(given.columns, columns, strict=True) if is_list_of_images(column)]
        if listed and len(columns) > 1:
            raise UserError(
                f"a table of {len(columns)} columns; give the one with the images alone: X[[{listed[0]!r}]]."
            )
        return columns[0] if listed else given
    if isinstance(given, np.ndarray) and given.ndim == 2 and given.shape[1] == 1 and is_list_of_images(given[:, 0]):
        return given[:, 0]
    return given


def several_targets(y: Any) -> np.ndarray | None:
    """What scikit-learn calls a multilabel indicator, as (images, labels) of 0 and 1; None of anything else."""
    if type_of_target(y) != "multilabel-indicator":
        return None
    dense = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    return dense.astype(np.float32)


def label_names(y: Any, targets: np.ndarray) -> np.ndarray:
    """The columns of a table, or numbers."""
    return np.array([str(name) for name in y.columns]) if hasattr(y, "columns") else np.arange(targets.shape[1])


def row_shape(features: int, image_shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Height, width and maybe channels of a flat row of so many numbers."""
    if image_shape is not None:
        try:
            return np.empty(features, np.bool_).reshape(image_shape).shape
        except (TypeError, ValueError):
            raise UserError(f"image_shape={image_shape} does not hold the {features} features of a row.") from None
    side = round(features**0.5)
    if side * side != features:
        raise UserError(
            f"{features} features are not a square image; give image_shape=(height, width), or images of (N, H, W)."
        )
    return side, side


def find_pixel_range(pixels: np.ndarray) -> tuple[float, float]:
    """The values that mean black and white: of uint8 always 0 and 255."""
    return (0.0, 255.0) if pixels.dtype == np.uint8 else (float(pixels.min()), float(pixels.max()))


def as_bytes(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Numbers of any kind as uint8: low becomes 0 and high 255, what lies beyond is clipped."""
    if pixels.dtype == np.uint8 and (low, high) == (0, 255):
        return pixels
    scale = 255 / (high - low) if high > low else 0.0
    return np.clip(np.rint((pixels.astype(np.float64) - low) * scale), 0, 255).astype(np.uint8)
