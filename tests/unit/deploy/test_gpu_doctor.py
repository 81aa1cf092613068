"""Tests of what the doctor reports of a GPU machine, on stand-in programs and recorded outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.deploy import gpu_doctor
from pipelines.deploy.check import Check
from pipelines.deploy.gpu_doctor import gpu_checks
from tests.support.stand_in_gpu_machine import H100, GpuMachine
from tests.unit.deploy.test_gpu_server import machine, native, remove

__all__ = ["machine", "native"]

T4 = "Tesla T4, 15360, 15352, 7.5, 580.95.05"
A100 = "NVIDIA A100-SXM4-80GB, 81920, 81150, 8.0, 580.95.05"


def checks(root: Path = Path("/nowhere")) -> dict[str, Check]:
    return {check.name: check for check in gpu_checks(root)}


def says(machine: GpuMachine, code: int, *lines: str) -> None:
    """Make ``nvidia-smi`` print a recorded output."""
    program = machine.programs / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {code}\n")


def test_the_doctor_lists_what_a_gpu_machine_has(native: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_doctor, "available_cores", lambda: 8)
    native.set_gpus(H100, A100, T4)
    builder = native.programs / "trtllm-build"
    builder.touch()
    builder.chmod(0o755)
    found = checks()
    assert found["GPU 0"].value == "NVIDIA H100 80GB HBM3, 80 GiB, SM 90, driver 580.95.05"
    assert found["GPU 0"].remedy == found["Cores for GPUs"].remedy == found["Container"].remedy == ""
    assert "FP8 needs SM 89" in found["GPU 1"].remedy
    assert "needs SM 80" in found["GPU 2"].remedy
    assert found["trtllm-build"].value == str(builder)
    assert found["NVIDIA's Triton"].value == str(native.triton / "bin" / "tritonserver")
    assert found["tensorrt_llm"].value == "engines can be built and served here"
    assert "Driver" not in found
    assert not any(check.stops for check in found.values())


def test_the_doctor_says_what_works_without_a_gpu(machine: GpuMachine) -> None:
    remove(machine, "nvidia-smi")
    found = checks()
    assert found["GPU"].value == "none; the embedded runtime needs none"
    works = found["tensorrt_llm"].value
    assert works.startswith("no GPU, no trtllm-build, no Triton with its backend: quantize, preflight, ")


def test_a_container_without_its_gpus_is_told_from_a_machine_without(
    machine: GpuMachine, tmp_path: Path
) -> None:
    remove(machine, "nvidia-smi")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert "--gpus all" in checks(tmp_path)["GPU"].remedy


WRONG = {
    "old driver": ("0, NVIDIA H100 80GB HBM3, 81559, 81004, 9.0, 570.86.15", "Driver", "driver 580 or newer"),
    "no driver's version": ("0, NVIDIA GB10, 81559, 81004, 12.1, [N/A]", "Driver", "says 580 or newer"),
    "used": (
        *("0, NVIDIA H100 80GB HBM3, 81559, 52011, 9.0, 580.95.05", "GPU 0"),
        "counts on 97% free: end other processes",
    ),
    "eight GPUs": ("".join(f"{i}, {H100}\n" for i in range(8)), "Cores for GPUs", "raise --cpus"),
    "bare machine": (f"0, {H100}", "Container", "tensorrt_llm.container"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_would_go_wrong_later_has_a_remedy(
    machine: GpuMachine, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, name, remedy = WRONG[case]
    monkeypatch.setattr(gpu_doctor, "available_cores", lambda: 16)
    says(machine, 0, *output.splitlines())
    found = checks()
    assert remedy in found[name].remedy
    others = [key for key, check in found.items() if check.remedy and key not in (name, "Container")]
    assert others == []


FAILURES = {
    "no module": (
        *(9, "NVIDIA-SMI has failed because it couldn\u2019t communicate with the NVIDIA driver."),
        "check that the driver is loaded",
    ),
    "update": (18, "Failed to initialize NVML: Driver/library version mismatch", "restart the machine"),
    "lost": (255, "Failed to initialize NVML: Unknown Error", "start it again"),
    "no GPU": (6, "No devices were found", "--gpus all"),
    "old": (2, 'Field "compute_cap" is not a valid field to query.', "install 580 or newer"),
    "MIG": (
        0,
        "0, NVIDIA H100 80GB HBM3, 81559, [Insufficient Permissions], 9.0, 580.95.05",
        "an undivided one",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_what_nvidia_smi_says_has_a_remedy(machine: GpuMachine, case: str) -> None:
    code, output, remedy = FAILURES[case]
    says(machine, code, output)
    [check] = [check for check in gpu_checks(Path("/nowhere")) if check.name == "GPU"]
    assert output.split()[0] in check.value
    assert remedy in check.remedy


def test_inside_a_container_its_version_is_shown(
    machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".dockerenv").touch()
    assert checks(tmp_path)["Container"].value == "one without NVIDIA's Triton"
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "25.12")
    assert checks(tmp_path)["Container"].value == "NVIDIA's Triton 25.12"
