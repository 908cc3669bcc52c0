"""Where labelled images come from: folders, tables, arrays, names, the hub."""

from vitling.data.sources.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
