"""Results as pandas DataFrames, where pandas is installed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitling.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame


def make_frame(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> "DataFrame":
    """A table with a row per dict; `columns` are its columns where there may be no rows."""
    try:
        from pandas import DataFrame  # an extra
    except ImportError:
        raise UserError("to_frame needs the package pandas: pip install pandas.") from None
    return DataFrame(list(rows), columns=None if columns is None else list(columns))
