"""Folders: a model with its card, for timm, and for the Hugging Face hub."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from vitling.deploy.model_card import hub_header, render_card
from vitling.deploy.target import Export, Target, new_folder
from vitling.files import read_file, write_bytes, write_text
from vitling.runs.opening import open_model
from vitling.runs.timm_folder import read_config


class TimmFolder(Target):
    """What `timm.create_model("local-dir:FOLDER", pretrained=True)` loads."""

    default_name = "timm"

    @contextmanager
    def writing(self, export: Export) -> Iterator[Callable[[Tensor], Tensor]]:
        with new_folder(export.out) as folder:
            saved = export.run.path / export.which
            config = {**read_config(saved, str(saved)), "vitling": export.metadata.to_dict()}
            config.get("model_args", {}).pop("num_classes", None)  # twice in runs of 0.1, which transformers refuses
            write_bytes(folder / "model.safetensors", read_file(saved / "model.safetensors"))
            write_text(folder / "config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")
            write_text(folder / "README.md", self._card(export))
            yield open_model(folder, device="cpu").logits

    def _card(self, export: Export) -> str:
        place = f"hf-hub:{export.push}" if export.push else f"local-dir:{export.out.resolve().name}"
        return render_card(export.run, export.which, export.metadata, export.calibration, place)


class HubFolder(TimmFolder):
    """The same with the card's header that the Hugging Face hub reads."""

    default_name = "hf"
    can_be_pushed = True

    def _card(self, export: Export) -> str:
        return hub_header(export.run, export.which, export.metadata) + super()._card(export)
