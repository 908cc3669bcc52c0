"""The result of a diagnosis."""

from dataclasses import dataclass, field

from torch import Tensor

from vitling.data.pipeline.loader import Resident
from vitling.diagnose.cka import CkaMatrix
from vitling.diagnose.evidence import Evidence
from vitling.diagnose.growth import LearningCurve
from vitling.diagnose.health import Gap
from vitling.diagnose.match import Match
from vitling.diagnose.measurements import Measurements
from vitling.diagnose.subject import Pictures, Subject
from vitling.diagnose.suspects import SuspectLabels
from vitling.evaluation.calibration import Reliability
from vitling.evaluation.metrics import Evaluation
from vitling.runs.device import default_device


@dataclass
class Diagnosis:
    """Everything measured on one model."""

    subject: Subject
    pictures: Pictures
    pixels: Resident  # the pictures as this model takes them, before normalisation
    measurements: Measurements
    works: dict[str, str | None]  # parts of the diagnosis; the reason where one cannot be done
    evidence: Evidence | None = None  # of a run on its own data: its course, its images, what it says of them
    learning_curve: LearningCurve | None = None  # where parts of the data were trained on
    label_errors: SuspectLabels | None = None  # images whose label is probably wrong
    evaluation: Evaluation | None = None  # None where labels and outputs do not name the same classes
    reliability: Reliability | None = None
    gap: Gap | None = None
    sharpness: float | None = None  # of the loss on training pictures
    match: Match | None = None  # how its layers meet those of the other model
    findings: list = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.subject.name

    @property
    def cka(self) -> CkaMatrix | None:
        return self.measurements.cka

    @property
    def has_attention(self) -> bool:
        return bool(self.measurements.attention)

    def normalized(self, index: Tensor) -> Tensor:
        """Some of the pictures, as the model takes them."""
        return self.subject.preprocessing.normalize(self.pixels.images[index].to(default_device()))
