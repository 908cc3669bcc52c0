"""Images per second and memory of streamed training data, beside a plain torch DataLoader and WebDataset's own loader.

    python benchmarks/big_data.py [--images 100000] [--side 64] [--workers 2] [--write]

JPEGs are generated into a temporary folder (a class per folder) and, from the same bytes, tar shards, a zip and a parquet table. Each way to read them runs in a
process of its own: a warm-up of 10 batches, then one epoch in shuffled batches of 128, fitted to 32 pixels. Memory is the largest resident set of the
process and of its readers together. `start` is opening and, for ours with the cache, a second start: until the first batch can be asked for.
With --write the table goes into docs/data.md.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

SIZE, BATCH, CLASSES, PER_SHARD, WARM = 32, 128, 10, 5000, 10
MARKS = "<!-- big_data begin -->", "<!-- big_data end -->"
DOCS = Path(__file__).parents[1] / "docs" / "data.md"


def generate(folder: Path, images: int, side: int) -> None:
    """The same JPEGs as files, shards, a zip and a table."""
    rng = np.random.default_rng(0)
    shard, table = None, {"image": [], "label": []}
    with zipfile.ZipFile(folder / "photos.zip", "w", zipfile.ZIP_STORED) as archive:
        for i in range(images):
            coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            stream = io.BytesIO()
            Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
            data, label, name = stream.getvalue(), i % CLASSES, f"{i:07}"
            path = folder / "files" / str(label) / f"{name}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            archive.writestr(f"{label}/{name}.jpg", data)
            if i % PER_SHARD == 0:
                if shard:
                    shard.close()
                (folder / "shards").mkdir(exist_ok=True)
                shard = tarfile.open(folder / "shards" / f"train-{i // PER_SHARD:05}.tar", "w")  # noqa: SIM115 (closed when it is full)
            for ending, content in (("jpg", data), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{name}.{ending}")
                info.size = len(content)
                shard.addfile(info, io.BytesIO(content))
            table["image"].append(data)
            table["label"].append(label)
    shard.close()
    if find_spec("pyarrow"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(table), folder / "photos.parquet", row_group_size=1000)


def ours(data: Path, workers: int, cache: bool) -> Callable[[], Iterator[Any]]:
    from vitling.data import open_dataset
    from vitling.data.pipeline.loader import epoch_order, generator_for
    from vitling.data.pipeline.reading import Reading, load_split

    train = open_dataset(data).splits["train"]
    reading = Reading(memory_gb=0, workers=workers, cache=cache)
    source = load_split(train, "train", size=(SIZE, SIZE), fit="resize", channels=3, max_value=255, reading=reading)
    order = epoch_order(source.labels, generator=generator_for(0))
    return lambda: source.batches(list(order.split(BATCH)))


def fitted(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))).permute(
        2, 0, 1
    )


def plain(data: Path, workers: int) -> Callable[[], Iterator[Any]]:
    import vitling  # noqa: F401  # isort: skip (first: it cures a torchvision wheel that does not match torch)
    from torchvision.datasets import ImageFolder

    loader = torch.utils.data.DataLoader(
        ImageFolder(data, fitted), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: iter(loader)


def fitted_bytes(data: bytes) -> torch.Tensor:
    return fitted(Image.open(io.BytesIO(data)))


def web(data: Path, workers: int) -> Callable[[], Iterator[Any]]:
    import webdataset

    shards = sorted(map(str, data.glob("*.tar")))
    stream = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(8192)
    loader = webdataset.WebLoader(
        stream.to_tuple("jpg", "cls").map_tuple(fitted_bytes, int).batched(BATCH),
        batch_size=None,
        num_workers=min(workers, len(shards)),
    )
    return lambda: iter(loader)


WAYS: dict[str, tuple[str, Callable[[Path, int], Callable[[], Iterator[Any]]]]] = {
    "torch DataLoader, files": ("files", plain),
    "WebDataset's loader, tar shards": ("shards", web),
    "vitling, files, no cache": ("files", lambda data, workers: ours(data, workers, False)),
    "vitling, tar shards, no cache": ("shards", lambda data, workers: ours(data, workers, False)),
    "vitling, zip, no cache": ("photos.zip", lambda data, workers: ours(data, workers, False)),
    "vitling, parquet, cache, first start": ("photos.parquet", lambda data, workers: ours(data, workers, True)),
    "vitling, files, cache, first start": ("files", lambda data, workers: ours(data, workers, True)),
    "vitling, files, cache, second start": ("files", lambda data, workers: ours(data, workers, True)),
}


def measure(way: str, folder: Path, workers: int) -> None:
    """In a process of its own: print what was measured."""
    torch.set_num_threads(1)
    place, begin = WAYS[way]
    began = time.perf_counter()
    start = begin(folder / place, workers)
    started = time.perf_counter() - began
    shown, timed = 0, 0.0
    for number, batch in enumerate(start()):
        if number == WARM:
            timed = time.perf_counter()
        if number >= WARM:
            shown += len(batch["label"] if isinstance(batch, dict) else batch[1])
    seconds = time.perf_counter() - timed
    del start  # readers end, and their memory is counted
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kilobytes += workers * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of the largest child
    print(json.dumps({"start": started, "rate": shown / seconds, "memory": kilobytes / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the table into docs/data.md")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure[0], Path(args.measure[1]), args.workers)
    with tempfile.TemporaryDirectory() as name:
        generate(Path(name), args.images, args.side)
        rows = [
            f"{args.images:,} generated JPEGs of {args.side} px, fitted to {SIZE} px, {args.workers} reading processes, {os.cpu_count()} cores:\n",
            "| | start, s | images/s | memory, MB |",
            "|---|---:|---:|---:|",
        ]
        environment = {**os.environ, "VITLING_CACHE": str(Path(name, "cache")), "OMP_NUM_THREADS": "1"}
        for way, (place, _) in WAYS.items():
            if ("WebDataset" in way and not find_spec("webdataset")) or not Path(name, place).exists():
                rows.append(f"| {way} | not installed | | |")
                continue
            command = [sys.executable, __file__, "--workers", str(args.workers), "--measure", way, name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{way} failed: {done.stderr[-2000:]}")
            found = json.loads(done.stdout.splitlines()[-1])
            rows.append(f"| {way} | {found['start']:.1f} | {found['rate']:,.0f} | {found['memory']:,.0f} |")
            print(rows[-1], flush=True)
        table = "\n".join(rows)
    print(table)
    if args.write:
        before, rest = DOCS.read_text().split(MARKS[0])
        DOCS.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")
    return None


if __name__ == "__main__":
    main()
