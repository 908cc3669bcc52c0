import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Decoded images are kept on disk: ours must not fill the user's cache, nor be served from it.
os.environ["VITLING_CACHE"] = tempfile.mkdtemp(prefix="vitling-tests-")

import torch

import vitling  # noqa: F401  (before timm: where the torchvision wheel does not match torch, importing it cures that)

atexit.register(shutil.rmtree, os.environ["VITLING_CACHE"], ignore_errors=True)
torch.set_num_threads(1)  # tiny models run far faster on one thread, and two workers do not fight over cores
