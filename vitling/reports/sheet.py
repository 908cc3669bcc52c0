"""A sheet of pictures: rows of small images under the names of their columns, as one PNG."""

import io
from collections.abc import Sequence

from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont

from vitling.reports.page import as_picture

SIDE, GAP, TITLE = 112, 6, 20  # pixels
PAPER, INK = "white", "black"


def draw_sheet(columns: Sequence[str], rows: Sequence[Sequence[ArrayLike]]) -> bytes:
    """The PNG of (C, H, W) uint8 images; small ones are enlarged pixel by pixel."""
    tiles = [[_tile(pixels) for pixels in row] for row in rows]
    height = max(tile.height for row in tiles for tile in row)
    sheet = Image.new("RGB", (len(columns) * (SIDE + GAP) + GAP, TITLE + len(rows) * (height + GAP) + GAP), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for number, title in enumerate(columns):
        pen.text((GAP + number * (SIDE + GAP), GAP // 2), title, fill=INK, font=font)
    for y, row in enumerate(tiles):
        for x, tile in enumerate(row):
            sheet.paste(tile, (GAP + x * (SIDE + GAP), TITLE + GAP + y * (height + GAP)))
    sheet.save(buffer := io.BytesIO(), "PNG", optimize=True)
    return buffer.getvalue()


def _tile(pixels: ArrayLike) -> Image.Image:
    image = Image.fromarray(as_picture(pixels).pixels).convert("RGB")
    size = (SIDE, max(1, round(SIDE * image.height / image.width)))
    return image.resize(size, Image.Resampling.NEAREST if image.width < SIDE else Image.Resampling.BICUBIC)
