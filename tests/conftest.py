import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import vitling  # noqa: F401  (before timm: where the torchvision wheel does not match torch, importing it cures that)

torch.set_num_threads(1)  # tiny models run far faster on one thread, and two workers do not fight over cores
