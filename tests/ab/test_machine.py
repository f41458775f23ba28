"""Counters of the machine around a launch: from the kernel's files and nvidia-smi, recorded or played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.profiler.ab import machine
from perfscope.profiler.ab.machine import (
    Gpus,
    MachineCounters,
    MachineWatch,
    Sources,
    counter_rates,
    gpu_counters,
    machine_facts,
    parse_nvidia_smi,
    read_counters,
    visible_gpus,
)

RECORDED = (
    "0, GPU-8f1c0c8e-aaaa-bbbb-cccc-000000000000, NVIDIA H200, 570.86.15, 1980, 41, 402.55, 0x0000000000000004\n"
    "1, GPU-11111111-aaaa-bbbb-cccc-000000000000, NVIDIA H200, 570.86.15, 345, 28, 75.10, 0x0000000000000001\n"
)
"""Output of a 570 series driver with ``--format=csv,noheader,nounits``."""


def kernel(folder: Path, *, stat: str, throttled: int = 0, psi: int = 0) -> Sources:
    """The kernel's files with these counters."""
    (folder / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "pressure").mkdir(exist_ok=True)
    (folder / "proc" / "stat").write_text(f"cpu  {stat}\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n")
    (folder / "proc" / "cpuinfo").write_text(
        "processor\t: 0\ncpu MHz\t\t: 2000.5\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.5\n"
    )
    for name in ("cpu", "memory", "io"):
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={psi}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
        (folder / "proc" / "pressure" / name).write_text(text)
    (folder / "proc" / "self" / "cgroup").write_text("0::/job/a\n")
    (folder / "cgroup" / "job" / "a").mkdir(parents=True, exist_ok=True)
    stats = f"usage_usec 5\nnr_periods 100\nnr_throttled {throttled}\nthrottled_usec 7\n"
    (folder / "cgroup" / "job" / "a" / "cpu.stat").write_text(stats)
    return Sources(proc=folder / "proc", cgroup=folder / "cgroup")


def test_what_the_kernel_says_is_read(tmp_path: Path) -> None:
    held = read_counters(kernel(tmp_path, stat="100 10 20 500 5 1 2 30 50 0", throttled=4, psi=900))
    assert held.ticks == {"busy": 133, "steal": 30, "all": 668}
    assert held.pressure_us == {"cpu": 900, "memory": 900, "io": 900}
    assert (held.periods, held.throttled) == (100, 4)
    assert machine.cpu_mhz(Sources(proc=tmp_path / "proc")) == 2500.5


def test_what_grew_between_two_readings() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    before = MachineCounters(clock_s=10.0, ticks={"busy": 0, "steal": 0, "all": 0}, pressure_us={"cpu": 0, "memory": 5},
                  periods=100, throttled=10, own_s=3.0)  # fmt: skip
    after = MachineCounters(clock_s=14.0, ticks={"busy": 6 * tick, "steal": 2 * tick, "all": 8 * tick},
                 pressure_us={"cpu": 2_000_000, "memory": 5}, periods=120, throttled=15, own_s=7.0)  # fmt: skip
    assert counter_rates(before, after) == pytest.approx({
        "own_cpus": 1.0, "others_share": 0.25, "steal_share": 0.25, "cpu_pressure": 0.5, "memory_pressure": 0.0,
        "throttled_share": 0.25,
    })  # fmt: skip


def test_a_kernel_that_says_nothing_gives_nothing(tmp_path: Path) -> None:
    sources = Sources(proc=tmp_path, cgroup=tmp_path)
    held = read_counters(sources)
    assert (held.ticks, held.pressure_us, held.periods) == ({}, {}, None)
    assert set(counter_rates(held, read_counters(sources))) == {"own_cpus"}
    assert machine.cpu_mhz(sources) is None
    (tmp_path / "stat").write_text("cpu a b c d e f g h\n")
    (tmp_path / "cpuinfo").write_text("cpu MHz : fast\n")
    assert (read_counters(sources).ticks, machine.cpu_mhz(sources)) == ({}, None)


def test_a_launch_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real kernel of this machine and a real process; only guaranteed values are checked."""
    monkeypatch.setattr(machine, "PERIOD_S", 0.05)
    with MachineWatch(Gpus("")) as watch:
        subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    found = watch.counters()
    assert found["own_cpus"] > 0
    assert {"load_before"} <= set(found)
    assert not any(name.startswith("gpu") for name in found)
    if Path("/proc/stat").exists():
        assert 0 <= found["others_share"] <= 1
        assert 0 <= found["steal_share"] <= 1


class TestGpus:
    def fake(self, folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def test_what_was_recorded_is_read(self) -> None:
        first, second = parse_nvidia_smi(RECORDED)
        assert (first.name, first.driver, first.sm_mhz, first.celsius, first.watts, first.reasons) == (
            "NVIDIA H200", "570.86.15", 1980.0, 41.0, 402.55, 4,
        )  # fmt: skip
        assert second.reasons == 1

    def test_what_a_device_does_not_say_is_left_out(self) -> None:
        (one,) = parse_nvidia_smi(
            "0, GPU-1, Tesla K80, 470.1, [N/A], [Not Supported], [N/A], [Not Supported]\nan error, of sorts\n"
        )
        assert (one.sm_mhz, one.celsius, one.watts, one.reasons) == (None, None, None, None)
        assert gpu_counters([one], [one]) == {}

    def test_nvidia_smi_looks_while_the_launch_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = f"case \"$*\" in *--loop-ms*) while true; do printf '{RECORDED}'; sleep 0.02; done; esac"
        self.fake(tmp_path, monkeypatch, f"{loop}\nprintf '{RECORDED}'")
        gpus = Gpus()
        held = machine_facts(gpus)
        assert held["gpu"] == "2x NVIDIA H200"
        assert held["driver"] == "570.86.15"
        with MachineWatch(gpus) as watch:
            subprocess.run(["sleep", "0.5"], check=True)
        found = watch.counters()
        assert (found["gpu_mhz"], found["gpu_celsius"], found["gpu_watts"]) == ((1980 + 345) / 2, 34.5, 238.825)
        assert (found["gpu_capped_share"], found["gpu_slowed_share"]) == (0.5, 0.0)

    def test_older_drivers_know_the_reasons_by_another_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse = 'case "$*" in *clocks_event_reasons*) echo "Field is not a valid field to query."; exit 2;; esac'
        self.fake(tmp_path, monkeypatch, f"{refuse}\nprintf '{RECORDED.replace('0000000004', '0000000048')}'")
        gpus = Gpus("0")
        (one,) = gpus.look()
        assert one.reasons == 0x48
        assert gpu_counters([one], [one])["gpu_slowed_share"] == 1.0

    @pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed'; exit 0"])
    def test_without_a_device_nobody_is_asked_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
    ) -> None:
        self.fake(tmp_path, monkeypatch, f"echo x >> {tmp_path}/asked\n{script}")
        gpus = Gpus()
        asked = (tmp_path / "asked").read_text()
        assert gpus.look() == ()
        assert (tmp_path / "asked").read_text() == asked
        assert not {"gpu", "driver"} & set(machine_facts(gpus))

    @pytest.mark.parametrize(
        ("visible", "seen"),
        [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("GPU-1111", [1]), ("0,7,1", [0]), ("-1", []),
         ("MIG-aaaa", [0, 1])],
    )  # fmt: skip
    def test_only_what_programs_see_counts(self, visible: str | None, seen: list[int]) -> None:
        assert [one.index for one in visible_gpus(parse_nvidia_smi(RECORDED), visible)] == seen
