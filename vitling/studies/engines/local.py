"""The embedded engine: each run of a study in a process of its own on this machine."""

import os
import queue
from threading import Lock

import torch

from vitling.callbacks import Callback
from vitling.errors import UserError
from vitling.studies.engines.base import MOST_AT_ONCE, Engine, Job, relay
from vitling.studies.engines.process import TrialProcess


class LocalEngine(Engine):
    """Starts children and can ask all of them to save and end."""

    is_here = True

    def __init__(self, gpus_per_trial: float | None = None) -> None:
        super().__init__(gpus_per_trial)
        self.processes: set[TrialProcess] = set()
        self.lock = Lock()
        self.devices: queue.Queue[str] = queue.Queue()
        if self.gpus:
            for device in _share(self.gpus):
                self.devices.put(device)
            self.slots = min(self.devices.qsize(), MOST_AT_ONCE)

    def attempt(self, job: Job, callback: Callback) -> str:
        device = self.devices.get() if self.gpus else ""
        environment = {"CUDA_VISIBLE_DEVICES": device} if self.gpus is not None else {}
        process = TrialProcess(job.to_json(), environment)
        with self.lock:
            self.processes.add(process)
            if self.stopping:  # asked in the moment before
                process.stop()
        outcome = ""
        try:
            for event in process.events():
                outcome = relay(event, callback)
        finally:
            process.kill()
            self.processes.discard(process)
            if self.gpus:
                self.devices.put(device)
        return outcome

    def stop(self) -> None:
        with self.lock:
            self.stopping = True
            for process in self.processes:
                process.stop()


def _share(gpus: float) -> list[str]:
    """The devices of each run, as CUDA_VISIBLE_DEVICES names them: so many runs at once."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = named.split(",")[:count] if named else [str(number) for number in range(count)]
    if gpus > count:
        raise UserError(f"gpus_per_trial={gpus:g}, but this machine has {count} GPUs; give fewer, or another engine.")
    if gpus <= 1:
        return devices * int(1 / gpus)
    whole = int(gpus)
    return [",".join(devices[first : first + whole]) for first in range(0, count - whole + 1, whole)]
