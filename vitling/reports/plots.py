"""Charts as SVG text: the only file that imports matplotlib.

Backgrounds are transparent and text and axes are drawn in `currentColor`, so an SVG put into a page is right in light and dark.
Series colours were chosen for contrast against both. Text stays text: class names in any script are the browser's to draw.
"""

import io
import re
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.rcsetup import cycler
from matplotlib.ticker import FormatStrFormatter, FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

SERIES = ("#3987e5", "#d95926", "#199e70", "#c98500", "#9085e9", "#d55181", "#6b8e23", "#00a3a3")
FEW_CURVES = 5  # whose legend fits above them
LEGEND_WIDTH = 72  # characters of a row of it
INK = "#010203"  # stands for currentColor
MAP = "magma"
LABELLED = 24  # more rows or columns than this are numbered, not named
WIDTH, HEIGHT = 5.2, 3.3  # inches
STYLE: dict[Any, Any] = {  # Any: matplotlib's own type for the names of its settings is newer than what we support
    "svg.fonttype": "none",
    "text.parse_math": False,  # a class may be called $5
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.unicode_minus": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=SERIES),
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
}
DEPTH = LinearSegmentedColormap.from_list("depth", (SERIES[0], SERIES[5], SERIES[3]))  # seen on light and on dark
_numbers, _process = count(), secrets.token_hex(3)  # a page may keep charts that another process drew

# ---------------------------------------------------------------------------------------------------------------------
# Curves


def lines(
    xs: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    x: str,
    y: str,
    unit: bool = False,
    dashed: Mapping[str, float] | None = None,
) -> str:
    """Curves over common positions; `unit` shows shares in percent, from 0 to 100, `dashed` are named levels to compare with."""

    def draw(ax: Axes) -> None:
        for name, values in series.items():
            known = [np.nan if value is None else value * (100 if unit else 1) for value in values]
            ax.plot(xs[: len(values)], known, label=name, marker="o", markersize=3 if len(values) <= 30 else 0)
        if all(isinstance(at, int) for at in xs):  # there is no epoch 1.5
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        _levels(ax, {name: level * (100 if unit else 1) for name, level in (dashed or {}).items()})
        if unit:
            ax.set_ylim(-2, 102)
        _finish(ax, x, f"{y}, %" if unit else y, legend=len(series) > 1 or bool(dashed))

    return _draw(draw, zooms=True)


def layer_lines(
    series: Mapping[str, Sequence[float | None]],
    *,
    y: str,
    unit: bool = False,
    dashed: Mapping[str, float] | None = None,
) -> str:
    """Curves over depth, one point per layer. Networks of different depths share the axis from the first layer to the last."""

    def draw(ax: Axes) -> None:
        deepest = max(map(len, series.values()))
        for name, values in series.items():
            known = [np.nan if value is None else value for value in values]
            at = np.linspace(1, deepest, len(values)) if len(values) > 1 else [1]
            ax.plot(at, known, label=name, marker="o", markersize=3.5)
        _levels(ax, dashed)
        ax.set_xticks(_some(range(1, deepest + 1), 12))
        same = len({len(values) for values in series.values()}) == 1
        _finish(
            ax,
            "layer" if same else "depth (layers of the deeper network)",
            y,
            unit=unit,
            legend=len(series) > 1 or bool(dashed),
        )

    return _draw(draw)


def head_values(
    series: Mapping[str, Sequence[Sequence[float]]], *, y: str, dashed: Mapping[str, float] | None = None
) -> str:
    """One dot per head and layer, and the mean of each layer as a line."""

    def draw(ax: Axes) -> None:
        deepest = max(map(len, series.values()))
        for colour, (name, layers) in zip(_colours(len(series)), series.items(), strict=True):
            at = np.linspace(1, deepest, len(layers)) if len(layers) > 1 else [1]
            for place, heads in zip(at, layers, strict=True):
                ax.scatter([place] * len(heads), heads, s=14, color=colour, alpha=0.55, linewidths=0)
            ax.plot(at, [np.nanmean(heads) for heads in layers], color=colour, label=name)
        _levels(ax, dashed)
        ax.set_xticks(_some(range(1, deepest + 1), 12))
        ax.set_ylim(bottom=0)
        _finish(ax, "layer (a dot per head)", y, legend=len(series) > 1 or bool(dashed))

    return _draw(draw)


def best_match(match: Any, *, rows: str, columns: str) -> str:
    """Which depth of the other network each layer resembles most, and how much."""

    def draw(ax: Axes) -> None:
        depth = np.linspace(0, 1, len(match.peak))
        ax.plot([0, 1], [0, 1], color=INK, alpha=0.3, linewidth=1, linestyle="--", label="same depth")
        ax.plot(depth, match.soft_depth, color=SERIES[1], label="mean depth, weighted by CKA")
        ax.plot(depth, match.best_match_depth, color=SERIES[0], label="best match")
        ax.scatter(depth, match.best_match_depth, s=8 + 60 * np.clip(match.peak, 0, 1), color=SERIES[0], linewidths=0)
        ax.set_xlim(-0.03, 1.03)
        _finish(ax, f"depth of {rows}", f"depth of {columns}", unit=True, legend=True)

    return _draw(draw)


def gradient_norms(records: Sequence[dict]) -> str:
    """Gradient norm of every layer (colour: depth) over the steps, on a logarithmic axis."""

    def draw(ax: Axes) -> None:
        layers = list(records[-1]["norms"])
        colours = DEPTH(np.linspace(0, 1, len(layers)))
        named = set(_some(layers, 6))
        for colour, layer in zip(colours, layers, strict=True):
            norms = [record["norms"].get(layer, np.nan) or np.nan for record in records]
            steps = [record["step"] for record in records]
            ax.plot(
                steps,
                norms,
                color=colour,
                label=layer if layer in named else None,
                linewidth=1.3,
                marker="o",
                markersize=2,
            )
        if any(norm > 0 for record in records for norm in record["norms"].values()):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(
                FormatStrFormatter("%g")
            )  # the default one writes TeX, which is only text here
            ax.yaxis.set_minor_formatter(FuncFormatter(_between_decades(*ax.get_ylim())))
        _finish(ax, "step", "gradient norm", legend=True)

    return _draw(draw, zooms=True)


def bands(
    series: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    dots: bool = False,
) -> str:
    """Curves with a band around each: positions, values, lower and upper bounds. More curves than colours are dashed."""

    def draw(ax: Axes) -> None:
        for number, (name, (at, values, low, high)) in enumerate(series.items()):
            colour, style = SERIES[number % len(SERIES)], ("-", "--", ":", "-.")[number // len(SERIES) % 4]
            ax.plot(at, values, style, color=colour, label=_short(name, 40), marker="o" if dots else None, markersize=4)
            ax.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        if dots:
            places = sorted({place for at, *_ in series.values() for place in at})
            ax.set_xscale("log")
            ax.set_xticks(places, [f"{place:g}" for place in places])
            ax.minorticks_off()
        _finish(ax, x, y, legend=len(series) > 1 and not many)
        if many:  # below: inside, it would hide the curves
            ax.figure.legend(loc="outside lower center", ncol=2)

    many = len(series) > FEW_CURVES
    return _draw(draw, height=HEIGHT + 0.1 * len(series) * many, zooms=not dots)


def intervals(rows: Sequence[tuple[str, float, float]], *, x: str, zero: bool = False) -> str:
    """A value with its interval per name, from top to bottom; `zero` draws the line of no difference."""

    def draw(ax: Axes) -> None:
        places = np.arange(len(rows))[::-1]
        values, halves = np.array([row[1:] for row in rows], dtype=float).T
        if zero:
            ax.axvline(0, color=INK, alpha=0.5, linewidth=1, linestyle="--")
        ax.errorbar(values, places, xerr=np.nan_to_num(halves), fmt="o", color=SERIES[0], markersize=4, elinewidth=1.3)
        ax.set_yticks(places, [_short(row[0], 34) for row in rows])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        _finish(ax, x, "")

    return _draw(draw, height=max(1.6, 0.7 + 0.26 * len(rows)))


def tree(
    columns: Sequence[tuple[str, Sequence[tuple[str, float | None]]]], branches: Sequence[tuple[int, str, str]]
) -> str:
    """Names with values in columns from left to right, the best on top; a branch joins a name of a column with one of the next.

    What has no branch to the right ends there. A value of None has no number beside its name.
    """
    places = {
        (number, name): (number, -row) for number, (_, rows) in enumerate(columns) for row, (name, _) in enumerate(rows)
    }
    deepest = max(len(rows) for _, rows in columns)

    def draw(ax: Axes) -> None:
        going_on = {(number, name) for number, name, _ in branches}
        for number, name, following in branches:
            (x0, y0), (x1, y1) = places[number, name], places[number + 1, following]
            middle = x0 + 0.82
            ax.plot([x0, middle, x1], [y0, y0, y1], color=SERIES[0], linewidth=1.2, alpha=0.7, zorder=1)
        for number, (_, rows) in enumerate(columns):
            for name, value in rows:
                x, y = places[number, name]
                last = number == len(columns) - 1 or (number, name) in going_on
                text = _short(name, 30) + ("" if value is None else f"  {value:.1f}")
                ax.plot([x], [y], marker="o", markersize=4, color=SERIES[0] if last else INK, alpha=1 if last else 0.4)
                ax.annotate(text, (x, y), (4, 4), textcoords="offset points", fontsize=7, alpha=1 if last else 0.6)
        for number, (title, _) in enumerate(columns):
            ax.annotate(title, (number, 0.9), (0, 4), textcoords="offset points", fontsize=8, fontweight="bold")
        ax.set_xlim(-0.1, len(columns) - 0.05)
        ax.set_ylim(-deepest + 0.3, 1.6)
        ax.axis("off")

    return _draw(draw, height=0.7 + 0.32 * deepest, width=max(WIDTH, 1.9 * len(columns)))


def sizes(
    series: Mapping[str, Sequence[tuple[float, float, str, bool]]], *, x: str, y: str, loose: Sequence[str] = ()
) -> str:
    """Networks by size and accuracy, with their names; hollow dots mark those flagged False. Series but the loose are joined."""

    def draw(ax: Axes) -> None:
        for number, (name, points) in enumerate(series.items()):
            colour = SERIES[number % len(SERIES)]
            at, values = [point[0] for point in points], [point[1] for point in points]
            if name not in loose:
                ax.plot(at, values, color=colour, linewidth=1, alpha=0.6)
            filled = [colour if point[3] else "none" for point in points]
            ax.scatter(at, values, s=22, c=filled, edgecolors=colour, label=name, zorder=3)
        # Names above and below in turns, from left to right: neighbours seldom meet.
        for number, (place, value, label, _) in enumerate(
            sorted(point for points in series.values() for point in points)
        ):
            shift = (2, 4) if number % 2 else (2, -8)
            ax.annotate(_short(label), (place, value), shift, textcoords="offset points", fontsize=5.5, alpha=0.8)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        ax.margins(x=0.14)
        _finish(ax, x, y)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=3)  # below: points may lie anywhere

    return _draw(draw, height=4.8)


# ---------------------------------------------------------------------------------------------------------------------
# Matrices


def cka_heat_map(
    matrix: ArrayLike, rows: Sequence[str], columns: Sequence[str], *, row_title: str, column_title: str
) -> str:
    """CKA of every pair of layers; depth grows upwards and to the right, as in the paper. Undefined pairs stay empty."""

    def draw(ax: Axes) -> None:
        image = ax.imshow(np.asarray(matrix), cmap=MAP, vmin=0, vmax=1, origin="lower", aspect="auto")
        _name_axis(ax.set_xticks, columns, rotate=True)
        _name_axis(ax.set_yticks, rows)
        _bar(ax, image, "CKA")
        _frame(ax, column_title, row_title)

    return _draw(draw, height=4.2)


def confusion(counts: np.ndarray, class_names: Sequence[str]) -> str:
    """Shares of each true class; numbers are written in where there is room."""

    def draw(ax: Axes) -> None:
        totals = counts.sum(axis=1, keepdims=True)
        shares = counts / np.maximum(totals, 1)
        image = ax.imshow(shares, cmap=MAP, vmin=0, vmax=1)
        _name_axis(ax.set_xticks, class_names, rotate=True)
        _name_axis(ax.set_yticks, class_names)
        if len(counts) <= 12:
            for (i, j), number in np.ndenumerate(counts):
                if number:
                    ink = "#000000" if shares[i, j] > 0.6 else "#ffffff"
                    ax.text(j, i, str(number), ha="center", va="center", fontsize=7, color=ink)
        _bar(ax, image, "share of the true class")
        _frame(ax, "prediction", "truth")

    return _draw(draw, height=4.2)


# ---------------------------------------------------------------------------------------------------------------------
# Predictions


def reliability(curve: Any) -> str:
    """Accuracy against confidence: bars below the diagonal are overconfident. The dots' size is the number of images."""

    def draw(ax: Axes) -> None:
        bins = len(curve.counts)
        centres = 100 * (np.arange(bins) + 0.5) / bins
        used = np.asarray(curve.counts) > 0
        accuracy, confidence = 100 * np.asarray(curve.accuracy), 100 * np.asarray(curve.confidence)
        ax.bar(centres[used], accuracy[used], width=90 / bins, color=SERIES[0], alpha=0.55, label="accuracy")
        sizes = 10 + 120 * np.asarray(curve.shares)[used]
        ax.scatter(
            confidence[used], accuracy[used], s=sizes, color=SERIES[1], linewidths=0, zorder=3, label="mean of a bin"
        )
        ax.plot([0, 100], [0, 100], color=INK, alpha=0.5, linewidth=1, linestyle="--", label="calibrated")
        ax.set_xlim(0, 100)
        ax.set_ylim(-2, 102)
        _finish(ax, "confidence, %", "accuracy, %", legend=True)

    return _draw(draw)


def scatter(xs: ArrayLike, ys: ArrayLike, *, x: str, y: str, most: int = 3000) -> str:
    """A dot per image, and the line on which both are equal; of very many images, evenly chosen ones."""
    xs, ys = np.asarray(xs, float), np.asarray(ys, float)
    shown = np.unique(np.linspace(0, len(xs) - 1, min(most, len(xs))).astype(int))

    def draw(ax: Axes) -> None:
        low, high = min(xs.min(), ys.min()), max(xs.max(), ys.max())
        ax.plot([low, high], [low, high], color=INK, alpha=0.5, linewidth=1, linestyle="--", label="exact")
        size, alpha = (14, 0.6) if len(shown) <= 300 else (8, 0.35)
        ax.scatter(xs[shown], ys[shown], s=size, color=SERIES[0], alpha=alpha, linewidths=0, label="an image")
        _finish(ax, x, y, legend=True)

    return _draw(draw)


def class_accuracy(per_class: Sequence[dict], *, shown: int = 20) -> str:
    """Accuracy per class with its interval, the worst classes first."""
    rows = sorted((row for row in per_class if row["images"]), key=lambda row: row["accuracy"])[:shown]

    def draw(ax: Axes) -> None:
        places = np.arange(len(rows))[::-1]
        values = 100 * np.array([row["accuracy"] for row in rows])
        low, high = 100 * np.array([row["interval"] for row in rows]).T
        spread = np.maximum([values - low, high - values], 0)  # rounding can put a bound a hair inside
        ax.errorbar(values, places, xerr=spread, fmt="o", color=SERIES[0], markersize=4, elinewidth=1.3)
        ax.set_yticks(places, [_short(row["name"]) for row in rows])
        ax.set_xlim(-2, 102)
        _finish(ax, "accuracy, %", "")

    return _draw(draw, height=max(1.6, 0.55 + 0.24 * len(rows)))


# ---------------------------------------------------------------------------------------------------------------------
# Drawing


def _draw(draw: Callable[[Axes], None], *, height: float = HEIGHT, width: float = WIDTH, zooms: bool = False) -> str:
    """An SVG for a page: ids that no other chart has, text in the page's colour, no size but its proportions.

    One that `zooms` says what lies at the ends of its axes, which page.js needs.
    """
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # measured with a font that lacks it; the browser has others
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(ax := figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1), count=1
    )
    svg = re.sub(r"(-?\d+\.\d{2})\d+", r"\1", svg)
    if zooms:
        ends = {
            name: " ".join(f"{end:.8g}" for end in limits)
            for name, limits in (("x", ax.get_xlim()), ("y", ax.get_ylim()))
        }
        log = " ".join(name for name, how in (("x", ax.get_xscale()), ("y", ax.get_yscale())) if how == "log")
        svg = svg.replace("<svg", f'<svg data-x="{ends["x"]}" data-y="{ends["y"]}" data-log="{log}"', 1)
    prefix = f"c{_process}{next(_numbers)}-"
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}", svg)


def _finish(ax: Axes, x: str, y: str, *, unit: bool = False, legend: bool = False) -> None:
    if unit:
        ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(alpha=0.15, linewidth=0.8)
    ax.set_axisbelow(True)
    if legend:  # above: inside, it would lie over the curves
        _, labels = ax.get_legend_handles_labels()
        columns = max(1, min(len(labels), LEGEND_WIDTH // (max(map(len, labels), default=1) + 5)))
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=columns, borderaxespad=0.3)


def _between_decades(low: float, high: float) -> Callable[[float, int], str]:
    """Labels of a logarithmic axis between powers of ten: 2 and 5, where these powers are few."""
    few = high / low < 50
    return lambda value, _: f"{value:g}" if few and f"{value:e}"[0] in "25" else ""


def _frame(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[:].set_visible(False)


def _bar(ax: Axes, image: AxesImage, label: str) -> None:
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(label)


def _levels(ax: Axes, dashed: Mapping[str, float] | None) -> None:
    for (name, level), style in zip((dashed or {}).items(), ("--", ":", "-."), strict=False):
        ax.axhline(level, color=INK, alpha=0.5, linewidth=1, linestyle=style, label=name)


def _name_axis(set_ticks: Callable, names: Sequence[str], *, rotate: bool = False) -> None:
    if len(names) <= LABELLED:
        set_ticks(
            range(len(names)), [_short(name) for name in names], fontsize=7, **(dict(rotation=90) if rotate else {})
        )
    else:
        places = _some(range(len(names)), 8)
        set_ticks(places, [str(place + 1) for place in places])


def _short(name: str, limit: int = 22) -> str:
    return name if len(name) <= limit else f"{name[: limit // 2]}…{name[-(limit // 2 - 1) :]}"


def _some(items: Sequence, most: int) -> list:
    """At most so many of the items, spread evenly, the first and the last among them."""
    items = list(items)
    if len(items) <= most:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)]


def _colours(number: int) -> list[str]:
    return [SERIES[i % len(SERIES)] for i in range(number)]
