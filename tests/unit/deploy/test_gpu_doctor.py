"""Tests of what the doctor reports of a GPU machine, on stand-in programs."""

from __future__ import annotations

from pipelines.deploy.doctor import gpu_findings
from tests.support.stand_in_gpu_machine import H100, GpuMachine
from tests.unit.deploy.test_gpu_server import break_driver, machine, native, remove

__all__ = ["machine", "native"]


def test_the_doctor_lists_what_a_gpu_machine_has(native: GpuMachine) -> None:
    native.set_gpus(H100, "NVIDIA A100-SXM4-80GB, 81920, 8.0, 570.86.15", "Tesla T4, 15360, 7.5, 570.86.15")
    builder = native.programs / "trtllm-build"
    builder.touch()
    builder.chmod(0o755)
    findings = {finding.name: finding for finding in gpu_findings()}
    assert findings["GPU 0"].value == "NVIDIA H100 80GB HBM3, 80 GiB, SM 90, driver 570.86.15"
    assert findings["GPU 0"].remedy == ""
    assert "FP8 needs SM 89" in findings["GPU 1"].remedy
    assert "needs SM 80" in findings["GPU 2"].remedy
    assert findings["trtllm-build"].value == str(builder)
    assert findings["NVIDIA's Triton"].value == str(native.triton / "bin" / "tritonserver")
    assert findings["tensorrt_llm"].value == "engines can be built and served here"
    assert not any(finding.stops for finding in findings.values())


def test_the_doctor_says_what_works_without_a_gpu(machine: GpuMachine) -> None:
    remove(machine, "nvidia-smi")
    findings = {finding.name: finding for finding in gpu_findings()}
    assert findings["GPU"].value == "none; the embedded runtime needs none"
    works = findings["tensorrt_llm"].value
    assert works.startswith("no GPU, no trtllm-build, no Triton with its backend: quantize, preflight, ")


def test_a_driver_that_fails_is_shown_as_such(machine: GpuMachine) -> None:
    break_driver(machine)
    [finding] = [finding for finding in gpu_findings() if finding.name == "GPU"]
    assert "couldn't communicate" in finding.value
    assert finding.remedy
