"""A page on this computer to drop an image on: its class, where the model looks, and the training images most similar to it.

Nothing leaves the machine: no telemetry, no fonts or scripts from elsewhere, and the loopback address unless another is given.
"""

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitling.callbacks import Callback
from vitling.data.pipeline.reading import Reading
from vitling.data.sources.images import IMAGE_SUFFIXES, load_image
from vitling.deploy.hosts import Names, take_address, url_of
from vitling.deploy.neighbours import Neighbours, image_features, open_neighbours
from vitling.deploy.predictor import Predictor
from vitling.diagnose.overlay import attention_map, draw_overlay
from vitling.errors import UserError
from vitling.runs.run import Run, load_run

SHOWN_CLASSES = 5
SHOWN_NEIGHBOURS = 8
MOST_WAITING = 64  # images that are asked about at once
SHOWN_SIDE = 160  # smaller pictures are enlarged to about this
FONTS = ["system-ui", "sans-serif"]
# As many columns as fit: gradio counts them by the screen it was first drawn on.
CSS = (
    "#neighbours .grid-container { grid-template-columns: repeat(auto-fill, minmax(min(14rem, 45%), 1fr)) !important; }"
)
# gradio gives its image no description; whoever does not see it should know what it is.
DESCRIBE = """() => {
  const describe = () => document.querySelectorAll("#picture img:not([alt]), #picture img[alt='']").forEach((image) => {
    image.alt = "what the model sees of the image, and where it looks";
  });
  new MutationObserver(describe).observe(document.body, { childList: true, subtree: true });
}"""


@dataclass
class Answer:
    """What the page shows of one image."""

    probabilities: dict[str, float]
    picture: Image.Image  # what the model saw, beside its attention where there is one
    neighbours: list[tuple[Image.Image, str]]


@dataclass
class Viewer:
    """A run, ready to predict. `notes` lists what it cannot do."""

    run: Run
    predictor: Predictor
    neighbours: Neighbours | None
    has_attention: bool = True
    notes: list[str] = field(default_factory=list)

    def answer(self, path: str | Path) -> Answer:
        """Look at one image file."""
        fitted = self.predictor.fit(path, str(path))
        best = self.predictor.best(str(path), self.predictor.pixel_probabilities(fitted[None])[0], SHOWN_CLASSES)
        model, pixels = self.network, torch.tensor(fitted)
        images = self.predictor.preprocessing.normalize(pixels[None].to(next(model.parameters()).device))
        picture = draw_overlay(pixels, attention_map(model, images)[0]) if self.has_attention else _picture(pixels)
        return Answer(dict(zip(best.classes, best.probabilities, strict=True)), picture, self._nearest(images))

    @property
    def network(self) -> nn.Module:
        assert self.predictor.opened is not None  # a run, not an exported file
        return self.predictor.opened.module

    def _nearest(self, images: torch.Tensor) -> list[tuple[Image.Image, str]]:
        if self.neighbours is None:
            return []
        features = image_features(self.network, images)
        found = []
        for i, similarity in self.neighbours.nearest(features, SHOWN_NEIGHBOURS):
            seen = self.predictor.preprocessing
            pixels = torch.tensor(load_image(self.neighbours.images, i, **seen.fit_args()))
            name = self.predictor.class_names[self.neighbours.images.labels[i]]
            found.append((_picture(pixels), f"{name} · {similarity:.2f} · {self.neighbours.images.names[i]}"))
        return found


class _Noting(Callback):
    """Keeps for the page what is logged; progress is passed on to who waits for the page."""

    def __init__(self, waiting: Callback):
        self.notes: list[str] = []
        self.waiting = waiting

    def log(self, message: str) -> None:
        self.notes.append(message)

    def on_progress(self, task: str, done: int, total: int | None) -> None:
        self.waiting.on_progress(task, done, total)


def open_viewer(
    run: Run | str | Path, *, which: str = "best", reading: Reading | None = None, callback: Callback | None = None
) -> Viewer:
    """Load a run's model, its temperature and the features of its training images; both are computed once and kept."""
    run = run if isinstance(run, Run) else load_run(run)
    run.require_classes("the page shows")
    noting = _Noting(callback or Callback())
    predictor, notes = Predictor(run, which=which, reading=reading, callback=noting), noting.notes
    viewer = Viewer(run, predictor, None, notes=notes)
    seen, model = predictor.preprocessing, viewer.network
    try:
        attention_map(model, torch.zeros(1, seen.channels, *seen.size, device=next(model.parameters()).device))
    except UserError as error:
        viewer.has_attention = False
        notes.append(str(error))
    try:
        viewer.neighbours = open_neighbours(run, model, which=which, reading=reading, callback=callback)
    except UserError as error:
        notes.append(f"no training images are shown: {error}")
    return viewer


def create_page(viewer: Viewer, folder: str | Path, *, hosts: Sequence[str] = ()) -> Any:  # Gate, of the extra app
    """The page, as an ASGI application: for this computer and under the names `hosts`. What it is given lies in `folder`."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import, which would ask for the newest version
    os.environ["GRADIO_TEMP_DIR"] = str(folder)  # read when components are made
    import gradio
    from fastapi import FastAPI

    from vitling.deploy.gate import UPLOAD_BYTES, Gate  # which imports what only the extra app brings

    def look(file: dict | None):
        if file is None:
            return None, None, None
        path = file["path"]
        try:
            answer = viewer.answer(path)
        except UserError as error:
            raise gradio.Error(str(error).replace(path, Path(path).name), print_exception=False) from None
        return answer.probabilities, answer.picture, answer.neighbours

    info = viewer.run.info
    about = f"{viewer.run.recipe.model}, trained on {info['data']['train_images']:,} images of {info['data']['name']}"
    if "best" in info:
        about += f"; {100 * info['best']['val_top1']:.1f} % correct on {info['data']['val_images']:,} validation images"
    calibrated = " (calibrated)" if viewer.predictor.calibrated else ""
    title = f"{viewer.run.path.name} · vitling"
    shown = dict(interactive=False, show_label=False, buttons=[], format="png")
    kept = (600, 3600)  # every ten minutes, what is older than an hour is deleted
    with gradio.Blocks(title=title, analytics_enabled=False, delete_cache=kept) as blocks:
        gradio.Markdown(
            f"# {_plain(viewer.run.path.name)}\n{_plain(about)}. Images go to the computer that runs vitling, and nowhere else."
        )
        for note in viewer.notes:
            gradio.Markdown(_plain(f"Note: {note}"))
        with gradio.Row():
            with gradio.Column():
                file = gradio.File(label="Drop an image here", file_types=["image", *sorted(IMAGE_SUFFIXES)])
                looks = ", and where it looks" if viewer.has_attention else ""
                gradio.Markdown(f"### What the model sees{looks}")
                picture = gradio.Image(**shown, elem_id="picture")
            with gradio.Column():
                label = gradio.Label(label=f"Probabilities{calibrated}", elem_id="classes")
        with gradio.Column(visible=viewer.neighbours is not None):
            gradio.Markdown("### The training images that it finds most similar")
            gallery = gradio.Gallery(**shown, object_fit="contain", height="auto", elem_id="neighbours")
        # Not preprocessed: gradio would refuse other suffixes with a traceback, where reading says what is wrong in a line.
        file.change(look, file, [label, picture, gallery], api_visibility="private", preprocess=False)
    theme = gradio.themes.Default(font=FONTS, font_mono=["ui-monospace", "monospace"])
    page = gradio.mount_gradio_app(
        FastAPI(),
        blocks.queue(max_size=MOST_WAITING),
        path="/",
        theme=theme,
        css=CSS,
        js=DESCRIBE,
        footer_links=[],
        max_file_size=UPLOAD_BYTES,  # so that the browser says it before sending
        ssr_mode=False,
        run_history=False,
        pwa=False,
    )
    return Gate(page, folder, names=Names(*hosts), functions=set(blocks.fns))


def serve(
    viewer: Viewer, listener: socket.socket, *, host: str | None = None, ready: Callable[[str, list[str]], None]
) -> None:
    """Serve the page until interrupted, under the name `host` too where the listener's address has one.

    `ready` gets its address, and what the page cannot do.
    """
    import uvicorn  # of the extra app

    with tempfile.TemporaryDirectory(
        prefix="vitling-app-"
    ) as folder:  # what is dropped on the page is gone when it ends
        address = listener.getsockname()[0]
        page = create_page(viewer, folder, hosts=[address, host or address])
        ready(url_of(listener), viewer.notes)
        uvicorn.Server(uvicorn.Config(page, log_level="warning", ws="none")).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address, once it is known that there can be a page."""
    if find_spec("gradio") is None:
        raise UserError('vitling app needs the package gradio: pip install "vitling[app]".')
    return take_address(host, port)


def _picture(pixels: torch.Tensor) -> Image.Image:
    """Pixels of any number of channels as a picture that is large enough to see."""
    shown = np.ascontiguousarray(pixels[:3].permute(1, 2, 0)) if len(pixels) >= 3 else pixels[0].numpy()
    factor = max(1, SHOWN_SIDE // min(shown.shape[:2]))
    return Image.fromarray(np.repeat(np.repeat(shown, factor, axis=0), factor, axis=1))


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is: a class or a folder may be called *x*."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]()#+-.!|<>~&" else c for c in text)
