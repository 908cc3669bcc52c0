"""Data: any labelled images in, uint8 tensors of one size out."""

from vitling._deprecated import keep_old_names
from vitling.data.pipeline.decoding import channel_statistics, decode
from vitling.data.sources.dataset import Dataset, open_dataset
from vitling.data.sources.images import ArrayImages, BadImage, FileImages, HubImages, Images, fit_image, load_image
from vitling.data.splits import carve_validation, k_folds, take_fraction

__all__ = [
    "ArrayImages",
    "BadImage",
    "Dataset",
    "FileImages",
    "HubImages",
    "Images",
    "carve_validation",
    "channel_statistics",
    "decode",
    "fit_image",
    "k_folds",
    "load_image",
    "open_dataset",
    "take_fraction",
]

keep_old_names(__name__)
