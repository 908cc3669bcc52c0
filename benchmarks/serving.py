"""Requests per second of `vitling serve` beside bare onnxruntime on the same core, latencies, and what bad uploads do to both.

    python benchmarks/serving.py [--seconds 5] [--turns 2] [--connections 32] [--write]

The server is pinned to one core, and so is the bare loop, which calls `session.run` on arrays that are decoded already; the clients have
another core to themselves. Both take turns, so that they share the machine's noise. A request is one JPEG in the model's size; the server
also parses HTTP, decodes, fits, and answers in JSON. Weights are random: they change no time. `--write` puts the table into docs/serving.md.
"""

import vitling  # noqa: F401  # isort: skip (before timm: it cures a torchvision wheel that does not match torch)

import argparse
import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import timm
from PIL import Image
from results_page import fill

from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.deploy.onnx import to_onnx
from vitling.runs.metadata import ModelMetadata

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
MODELS = (("hybrid_vit_nano", 32), ("hybrid_vit_small", 64), ("vit_small_patch16_224", 224))
BAD = (b"no image", b"\xff\xd8\xff\xe0 cut short", b"")  # 422, 422, 400
BARE = """
import json, sys, time
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
shape, rates = session.get_inputs()[0].shape[1:], {}
for batch in (1, 32):
    pixels = np.random.default_rng(0).integers(0, 256, (batch, *shape), dtype=np.uint8)
    session.run(["logits"], {"image": pixels})
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < float(sys.argv[2]):
        session.run(["logits"], {"image": pixels})
        done += batch
    rates[batch] = done / (time.perf_counter() - begin)
print(json.dumps(rates))
"""


@dataclass
class Load:
    """What clients measured: seconds of each good request, and how often each status came."""

    elapsed: float = 0.0
    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.elapsed

    def percentiles(self) -> str:
        return " / ".join(f"{1000 * p:.1f}" for p in np.percentile(self.seconds, [50, 95, 99]))


def write_model(name: str, size: int, folder: Path) -> Path:
    network = timm.create_model(name, num_classes=10, img_size=size).eval()
    seen = Preprocessing((size, size), 3, "resize", 255, (0.5,) * 3, (0.25,) * 3)
    metadata = ModelMetadata(name, [f"class {i}" for i in range(10)], seen, 1.0)
    path = folder / f"{name}-{size}.onnx"
    path.write_bytes(to_onnx(network, metadata))
    return path


def jpeg(size: int) -> bytes:
    y, x = np.mgrid[:size, :size] / size
    pixels = np.stack([255 * x, 255 * y, 127 + 127 * np.sin(9 * x * y)], axis=-1).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def pinned(core: int):
    return lambda: os.sched_setaffinity(0, {core})


def measure_bare(path: Path, seconds: float, core: int) -> dict[int, float]:
    command = [sys.executable, "-c", BARE, str(path), str(seconds)]
    result = subprocess.run(command, preexec_fn=pinned(core), capture_output=True, text=True, check=True)
    return {int(batch): rate for batch, rate in json.loads(result.stdout).items()}


async def ask(port: int, bodies: list[bytes], load: Load, until: float) -> None:
    """One connection that sends the next request when the last is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    requests = [
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(b), b) for b in bodies
    ]
    turn = 0
    while time.perf_counter() < until:
        begin = time.perf_counter()
        writer.write(requests[turn % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head.lower())[1]))
        status = int(head[9:12])
        load.statuses[status] = load.statuses.get(status, 0) + 1
        if status == 200:
            load.seconds.append(time.perf_counter() - begin)
        turn += 1
    writer.close()


async def measure_load(port: int, bodies: list[bytes], connections: int, seconds: float) -> Load:
    load, begin = Load(), time.perf_counter()
    await asyncio.gather(*(ask(port, bodies, load, begin + seconds) for _ in range(connections)))
    load.elapsed = time.perf_counter() - begin
    return load


class Server:
    def __init__(self, path: Path, core: int):
        command = [sys.executable, "-m", "vitling", "serve", str(path), "--port", "0"]
        self.process = subprocess.Popen(command, preexec_fn=pinned(core), stdout=subprocess.PIPE, text=True)
        line = next(line for line in self.process.stdout if line.startswith("serving"))
        self.port = int(re.search(r":(\d+) ", line)[1])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *failure) -> None:
        self.process.terminate()
        self.process.wait()


def first_prediction(path: Path, image: bytes, folder: Path) -> float:
    """Seconds from the start of Python to the first prediction of an ONNX file; the median of five."""
    (folder / "image.jpg").write_bytes(image)
    code = "import sys, vitling; vitling.Predictor(sys.argv[1])(sys.argv[2]); assert 'torch' not in sys.modules"
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        command = [sys.executable, "-c", code, str(path), str(folder / "image.jpg")]
        subprocess.run(command, check=True)
        times.append(time.perf_counter() - begin)
    return median(times)


def measure(name: str, size: int, folder: Path, args: argparse.Namespace, cores: list[int]) -> str:
    path, image = write_model(name, size, folder), jpeg(size)
    bare: list[dict[int, float]] = []
    busy: list[Load] = []
    with Server(path, cores[0]) as server:
        asyncio.run(measure_load(server.port, [image], 4, 1.0))
        alone = asyncio.run(measure_load(server.port, [image], 1, args.seconds))
        for _ in range(args.turns):
            bare.append(measure_bare(path, args.seconds / 2, cores[0]))
            busy.append(asyncio.run(measure_load(server.port, [image], args.connections, args.seconds)))
        mixed = asyncio.run(measure_load(server.port, [image] * 7 + list(BAD), args.connections, args.seconds))
    one, many, served = median(b[1] for b in bare), median(b[32] for b in bare), median(b.rate for b in busy)
    statuses = ", ".join(f"{count:,} x {status}" for status, count in sorted(mixed.statuses.items()))
    print(f"{name}: {served:,.0f} requests/s of {one:,.0f} ({many:,.0f}); {statuses}", flush=True)
    start = first_prediction(path, image, folder)
    return (
        f"| {name}, {size} px | {one:,.0f} | {many:,.0f} | {served:,.0f} | **{served / one:.2f}** | {served / many:.2f} | "
        f"{alone.percentiles()} | {busy[-1].percentiles()} | {mixed.rate:,.0f} ({statuses}) | {start:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for the server, one for its clients.")
    os.sched_setaffinity(0, {cores[1]})
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, size, Path(folder), args, cores) for name, size in MODELS]
    lines = [
        "| model | bare, batches of 1 | bare, of 32 | served | share of 1 | share of 32 | latency alone, ms (50 / 95 / 99 %) | "
        f"latency, {args.connections} connections | good requests/s with 3 of 10 bad | seconds to a first prediction, without torch |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    print("\n".join(lines))
    if args.write:
        fill("serving", "\n".join(lines), PAGE)


if __name__ == "__main__":
    main()
