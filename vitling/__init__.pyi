"""What type checkers see of `vitling`: its names load on first use, which they cannot follow. A test holds it equal."""

from vitling import data as data
from vitling import diagnose as diagnose
from vitling import methods as methods
from vitling import models as models
from vitling import recipes as recipes
from vitling.callbacks import Callback as Callback
from vitling.cli.terminal.notebook import NotebookProgress as NotebookProgress
from vitling.deploy.export import export as export
from vitling.deploy.prediction import predict as predict
from vitling.deploy.predictor import Predictor as Predictor
from vitling.diagnose.paged import evaluate as evaluate
from vitling.diagnose.paged import train as train
from vitling.diagnose.paged import train_more as train_more
from vitling.ensembles.folds import train_folds as train_folds
from vitling.errors import UserError as UserError
from vitling.estimator import ViTClassifier as ViTClassifier
from vitling.estimator import ViTRegressor as ViTRegressor
from vitling.improvement.improvement import improve as improve
from vitling.methods.token_labeling.relabeling import relabel as relabel
from vitling.models.weights import load_weights as load_weights
from vitling.models.weights import save_weights as save_weights
from vitling.papers.reproduction import reproduce as reproduce
from vitling.planning.checkup import examine as examine
from vitling.planning.plan import plan as plan
from vitling.planning.pretraining import pretrain as pretrain
from vitling.plugins import import_plugin as import_plugin
from vitling.recipes import Recipe as Recipe
from vitling.recipes import load_recipe as load_recipe
from vitling.recipes import override as override
from vitling.runs.opening import open_model as open_model
from vitling.runs.run import load_run as load_run
from vitling.studies.study import study as study
from vitling.training.settings import Settings as Settings

__version__: str
__all__: list[str]

def register_models() -> None: ...
