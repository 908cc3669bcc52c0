import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)  # tiny models run far faster on one thread, and two workers do not fight over cores
