"""Names that moved in 0.2: the old modules still answer, with a warning that says the new place. Deleted in 0.3."""

import sys
import warnings
from importlib import import_module
from types import ModuleType

# old module -> the modules in which its names are now, both inside vitling
MOVED = {
    "advice": "planning.rules",
    "app": "deploy.app",
    "build": "training.setup",
    "classifier": "deploy.predictor",
    "compare": "evaluation.comparison",
    "data.author_maps": "methods.token_labeling.author_maps",
    "data.boxes": "data.augment.boxes",
    "data.decode": "data.threads data.pipeline.decoding",
    "data.files": "data.sources.files",
    "data.images": "data.sources.images",
    "data.label_maps": "methods.token_labeling.label_maps",
    "data.loader": "data.pipeline.loader",
    "data.memory": "data.sources.memory",
    "data.mix": "methods.mixing",
    "data.named": "data.sources.named",
    "data.near_duplicates": "planning.near_duplicates",
    "data.pillow_ops": "data.augment.pillow_ops",
    "data.prepare": "data.pipeline.preprocessing data.pipeline.reading data.pipeline.training_data",
    "data.randaugment": "data.augment.randaugment",
    "data.survey": "planning.survey",
    "demo": "studies.demo",
    "diagnose.calibration": "evaluation.calibration",
    "diagnose.capture": "models.inspect",
    "diagnose.gradients": "models.inspect",
    "diagnose.plots": "reports.plots",
    "evaluate": "evaluation.metrics evaluation.loop runs.run evaluation.evaluation",
    "export": "deploy.export",
    "figures": "papers.figures",
    "hub": "runs.hub deploy.hub",
    "listener": "callbacks",
    "methods.label_transport": "methods.token_labeling.transport",
    "model_card": "deploy.model_card",
    "muon": "optim.muon",
    "neighbours": "deploy.neighbours",
    "onnx_model": "runs.onnx_model deploy.onnx",
    "pace": "planning.speed",
    "passport": "runs.metadata",
    "plan": "planning.plan",
    "predict": "deploy.prediction",
    "recipe": "recipes",
    "relabel": "methods.token_labeling.relabeling",
    "report": "reports.page diagnose.run_page",
    "reproduce": "papers.reproduction",
    "run": "runs.run",
    "study": "studies.study",
    "study_results": "studies.results",
    "temperature": "evaluation.temperature",
    "train": "training.settings training.signals training.loop",
    "weights": "models.weights",
}

# old name -> new one, where a thing was renamed when it moved
RENAMED = {"Classifier": "Predictor", "Passport": "ModelMetadata", "open_classifier": "open_predictor"}


class MovedModule(ModuleType):
    """Stands in for a module that is gone: whatever is asked of it is fetched from where it is now."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        for place in MOVED[self.__name__.removeprefix("vitling.")].split():
            new = RENAMED.get(name, name)
            if hasattr(module := import_module(f"vitling.{place}"), new):
                text = f"{self.__name__}.{name} is now vitling.{place}.{new}; the old name goes in vitling 0.3"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                return getattr(module, new)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


# Found by the import statement, and not set as attributes: `vitling.train` is the function.
for _name in MOVED:
    sys.modules.setdefault(f"vitling.{_name}", MovedModule(f"vitling.{_name}"))
