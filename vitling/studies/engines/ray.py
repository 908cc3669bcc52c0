"""Runs of a study on a Ray cluster that there is already: each in a process on the node that Ray chooses."""

import logging
import os
import queue
import threading
from pathlib import Path
from typing import Any

from vitling.callbacks import Callback
from vitling.errors import UserError, first_line
from vitling.studies.engines.base import Engine, Job, Lost, import_engine, relay
from vitling.studies.engines.process import TrialProcess

POLL_SECONDS = 1.0
CONNECT_SECONDS = 20


class Trial:
    """An actor: the run's process on its node, and what it reported since it was last asked."""

    def __init__(self, job: str):
        self.process, self.reported = TrialProcess(job), queue.SimpleQueue[list]()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for event in self.process.events():
            self.reported.put(event)

    def poll(self) -> list[list]:
        """The next events; waits a moment for the first."""
        try:
            events = [self.reported.get(timeout=POLL_SECONDS)]
        except queue.Empty:
            return []
        while not self.reported.empty():
            events.append(self.reported.get())
        return events

    def stop(self) -> None:
        self.process.stop()


class RayEngine(Engine):
    """Starts an actor for each run; the cluster says when there is room for it."""

    def __init__(self, address: str = "ray", gpus_per_trial: float | None = None) -> None:
        super().__init__(gpus_per_trial)
        if address != "ray" and not address.startswith("ray://"):
            raise UserError(
                f"unknown engine '{address}'; write ray for the cluster of this machine, or ray://HOST:10001."
            )
        self.address = "auto" if address == "ray" else address
        self.ray: Any = import_engine("ray", "ray")
        self.connected = False

    def open(self, folder: Path) -> None:
        if self.ray.is_initialized():  # whoever calls us is part of a cluster
            return
        os.environ.setdefault("RAY_grpc_client_connection_timeout_s", str(CONNECT_SECONDS))
        try:
            self.ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            found = "no Ray cluster is running here" if self.address == "auto" else f"no Ray cluster at {self.address}"
            raise UserError(
                f"{found} ({first_line(error)[:-1]}); start one with `ray start`, or give ray://HOST:10001 of one."
            ) from None
        self.connected = True

    def close(self) -> None:
        if self.connected:
            self.ray.shutdown()
            self.connected = False

    def attempt(self, job: Job, callback: Callback) -> str:
        asked = {"num_cpus": job.threads, "num_gpus": self.gpus or 0}
        self._warn_of_room(asked, callback)
        actor = self.ray.remote(Trial).options(**asked, max_restarts=0).remote(job.to_json())
        try:
            return self._watch(actor, callback)
        except self.ray.exceptions.RayTaskError:
            raise  # ours
        except self.ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):  # it would fail again
                reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
                raise UserError(
                    f"a Ray node could not begin the run ({reason}); install vitling and its packages on every node, in the versions of this machine."
                ) from None
            raise Lost(f"the Ray node that trained it died ({type(error).__name__})") from None
        finally:
            if self.ray.is_initialized():
                self.ray.kill(actor)

    def _watch(self, actor: Any, callback: Callback) -> str:
        """Relay what the run reports until its outcome."""
        told, begun = False, False
        asked = actor.poll.remote()
        while True:
            ready, _ = self.ray.wait([asked], timeout=POLL_SECONDS)
            if self.stopping and not begun and not ready:
                return "interrupted"  # it waits for room: there is nothing to save
            if self.stopping and not told:
                actor.stop.remote()
                told = True
            if not ready:
                continue
            events, begun = self.ray.get(asked), True
            for event in events:
                if outcome := relay(event, callback):
                    return outcome
            asked = actor.poll.remote()

    def _warn_of_room(self, asked: dict[str, float], callback: Callback) -> None:
        """A cluster may grow, so that a run which fits nowhere waits; whoever waits with it should know."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        fits = any(
            node.get("CPU", 0) >= asked["num_cpus"] and node.get("GPU", 0) >= asked["num_gpus"] for node in nodes
        )
        if not fits:
            callback.log(
                f"no node of the cluster has {asked['num_cpus']} CPUs and {asked['num_gpus']:g} GPUs for a run; waiting for one"
            )
