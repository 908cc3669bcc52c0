"""Memory that a training process frees is its own again."""

import platform
import subprocess
import sys

import pytest

PAGES_OF_A_BLOCK = 2**23 // 4096
SCRIPT = """
import ctypes, resource, sys
import torch
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: where pages may be huge, a block is few of them
ctypes.CDLL(None).mallopt(-3, 2**17)  # M_MMAP_THRESHOLD as glibc begins: else it rises, and what is kept is a matter of luck
if sys.argv[1] == "keep":
    from vitling.training.allocation import keep_freed_memory
    assert keep_freed_memory()
def step():  # its activations, together more than glibc keeps by itself
    blocks = [torch.zeros(2**23, dtype=torch.uint8) for _ in range(32)]
step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_a_step_frees_the_next_one_takes_without_asking_the_system():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("keep") < 4 * PAGES_OF_A_BLOCK < faults("return")
