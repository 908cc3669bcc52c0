"""What is measured in the single pass: one measure per file, in the order of the verdict and, among its kind, of the page."""

from vitling.diagnose.measures.channels import Channels
from vitling.diagnose.measures.distance import Distance
from vitling.diagnose.measures.diversity import Diversity
from vitling.diagnose.measures.entropy import Entropy
from vitling.diagnose.measures.locality import Locality
from vitling.diagnose.measures.measure import Measure
from vitling.diagnose.measures.probe import LinearProbe
from vitling.diagnose.measures.rank import Rank
from vitling.diagnose.measures.similarity import Similarity

MEASURES: list[type[Measure]] = [LinearProbe, Rank, Distance, Locality, Entropy, Similarity, Diversity, Channels]
