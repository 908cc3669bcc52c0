"""What a server counts, in the text that Prometheus reads."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Counts:
    """A counter, by the value of one label."""

    def __init__(self, name: str, about: str, label: str):
        self.name, self.about, self.label = name, about, label
        self.values: dict[str, int] = defaultdict(int)

    def add(self, value: str, count: int = 1) -> None:
        self.values[value] += count

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.about, "counter")
        for value, count in sorted(self.values.items()):
            yield f'{self.name}{{{self.label}="{_escape(value)}"}} {count}'


class Histogram:
    """How often a number was up to each of some bounds."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]):
        self.name, self.about, self.bounds = name, about, bounds
        self.counts, self.total = [0] * (len(bounds) + 1), 0.0

    def add(self, number: float) -> None:
        self.counts[bisect_left(self.bounds, number)] += 1
        self.total += number

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.about, "histogram")
        so_far = 0
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            so_far += count
            yield f'{self.name}_bucket{{le="{bound}"}} {so_far}'
        yield f"{self.name}_sum {self.total:.9g}"
        yield f"{self.name}_count {so_far}"


class Metrics:
    """All that a server counts. Used in its event loop only, so that nothing has to be locked."""

    def __init__(self, model: str, version: str, waiting: Callable[[], int]):
        self.requests = Counts("vitling_requests_total", "Requests that were answered, by HTTP status.", "status")
        self.images = Counts("vitling_images_total", "Images, by what became of them.", "outcome")
        self.seconds = Histogram("vitling_request_seconds", "Seconds from a request's head to its answer.", SECONDS)
        self.batches = Histogram("vitling_batch_images", "Images per batch.", SIZES)
        self.info = f'vitling_info{{model="{_escape(model)}",version="{_escape(version)}"}} 1'
        self.waiting = waiting

    def render(self) -> str:
        lines = [
            *_head("vitling_info", "The model that is served.", "gauge"),
            self.info,
            *_head("vitling_waiting_images", "Images that wait for the model.", "gauge"),
            f"vitling_waiting_images {self.waiting()}",
        ]
        for part in (self.requests, self.images, self.seconds, self.batches):
            lines += part.lines()
        return "\n".join(lines) + "\n"


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
