"""`vitling doctor`: the check-up of installation and machine."""

import json

import pytest
import torch
import typer
from command import error, vitling

from vitling.cli.commands.doctor import doctor
from vitling.planning import checkup
from vitling.planning.checkup import examine


def found(findings):
    return {finding.what: finding for finding in findings}


def test_a_working_installation_has_nothing_wrong(tmp_path):
    findings = examine(tmp_path)
    assert not [finding for finding in findings if finding.state == "bad"]
    assert {"vitling", "packages", "torchvision", "device", "threads", "speed", "memory", "disk", "training"} <= set(
        found(findings)
    )
    assert f"torch {torch.__version__}".partition("+")[0] in found(findings)["packages"].found


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch):
    given = [checkup.Requirement(text) for text in ("torch>=99", "no-such-package", "numpy>=1")]
    monkeypatch.setattr(checkup, "_requirements", lambda: given)
    packages = found(examine())["packages"]
    assert packages.state == "bad"
    assert "missing: no-such-package; torch" in packages.found
    assert "(needed: >=99)" in packages.found
    assert "numpy" not in packages.found
    assert packages.advice


def test_a_full_disk_and_a_small_machine_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(checkup, "LEAST_DISK", 1e30)
    monkeypatch.setattr(checkup, "LEAST_MEMORY", 1e30)
    findings = found(examine(tmp_path))
    assert findings["disk"].state == findings["memory"].state == "bad"
    assert str(tmp_path) in findings["disk"].found


def test_threads_that_the_environment_forbids_are_named(monkeypatch):
    monkeypatch.setattr(checkup.torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(checkup.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = found(examine())["threads"]
    assert threads.state == "note"
    assert "torch uses 1 of 8 processors, because OMP_NUM_THREADS=1" in threads.found


def test_the_command_shows_it_and_says_what_is_next():
    shown = vitling("doctor")
    assert "a step works on" in shown
    assert "next: vitling demo" in shown
    assert {"what", "found", "state", "advice"} == set(json.loads(vitling("doctor", "--json"))[0])
    assert "no such option" in error("doctor", "--fast")


def test_the_command_fails_where_something_will_not_work(monkeypatch):
    monkeypatch.setattr(checkup, "LEAST_DISK", 1e30)
    with pytest.raises(typer.Exit) as ended:
        doctor()
    assert ended.value.exit_code == 1
