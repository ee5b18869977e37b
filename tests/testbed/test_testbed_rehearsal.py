"""`make gpu` without a GPU: what it says, and all of it on CPUs and gloo."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from beds import needs_namespaces

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "gpu"


def say(out: Path, *words: str, program: str = "run.py") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OUT": str(out)}
    command = [sys.executable, str(TOOL / program), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)


def records(out: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"{file}.jsonl").read_text().splitlines()]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; what it puts into the environment goes again."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("gpu_run", TOOL / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_run", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ends(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the script here; what comes back are its status, and what it writes to stdout and stderr."""

    def run(out: Path, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("OUT", str(out))
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        capsys.readouterr()
        return (tool.main(), *capsys.readouterr())

    return run


def test_without_a_gpu_it_ends_with_a_status_of_its_own(
    ends: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = "gpu: no GPU on this machine: nvidia-smi does not run; --rehearse runs all of it on CPUs\n"
    assert ends(tmp_path / "out") == (3, "", line)
    assert not (tmp_path / "out").exists()


def test_a_rehearsal_is_not_written_where_measurements_are(ends: Callable[..., tuple[int, str, str]]) -> None:
    committed = ROOT / "docs" / "data" / "gpu"
    before = sorted(committed.glob("*"))
    status, _, said = ends(committed, "--rehearse")
    assert (status, said.startswith("gpu: a rehearsal measures nothing: not into")) == (2, True)
    assert sorted(committed.glob("*")) == before


def test_an_unknown_section_is_named(ends: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    status, _, said = ends(tmp_path, "--rehearse", "--sections", "parity,blok")
    assert (status, "no section 'blok'; there are: profiles, blocks 1" in said) == (2, True)


@needs_namespaces
def test_all_of_it_runs(tmp_path: Path) -> None:
    done = say(tmp_path, "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    names = ("profiles", "links", "blocks", "parity", "waits", "steps", "sections")
    files = {file: records(tmp_path, file) for file in names}
    assert {row["what"] for rows in files.values() for row in rows} == {"rehearsal"}
    assert {row["card"] for rows in files.values() for row in rows} == {"none: CPUs and gloo"}
    assert {row["ranks_on_card"] for row in [*files["blocks"], *files["links"], *files["steps"]]} == {2}
    assert [row["failed"] for row in files["sections"]] == [False] * 6
    assert [row["model"] for row in files["profiles"] if row["forward_s"] > 0] == ["small:cnn", "small:transformer"]
    assert [row["by"] for row in files["blocks"]] == ["PyTorch"] * 10 + ["AutoByte, ordered"] * 10
    assert [row["s_per_byte"] > 0 for row in files["blocks"] if row.get("fit")] == [True, True]
    check_parity(files["parity"])
    assert [(row["arm"], row["steps"], row["waiting_calls"]) for row in files["waits"]] == [
        (arm, 5, {}) for _ in range(2) for arm in ("compute", "DDP default", "AutoByte")
    ]
    check_steps(files["steps"])
    page = say(tmp_path, str(tmp_path), program="tables.py").stdout
    assert page.startswith("what rehearsal, card none: CPUs and gloo, torch")
    for title in ("Profiles", "Links", "All-reduce", "Parity", "Waits", "Steps", "Doctor", "Sections"):
        assert f"## {title}" in page


def check_parity(rows: list[dict[str, Any]]) -> None:
    """On two ranks bits are DDP's; on four as far from them as those of DDP with other buckets."""
    assert {row["engine"] for row in rows} == {"ordered"}  # which stands for nccl
    two, four = ([row for row in rows if row["ranks"] == ranks] for ranks in (2, 4))
    assert [row["largest_difference"] for row in two] == [0.0] * 12
    assert max(row["largest_difference"] for row in four if row["compared"] == "DDP again") == 0.0
    assert max(row["largest_difference"] for row in four) < 1e-3


def check_steps(rows: list[dict[str, Any]]) -> None:
    """Every way is measured, and again what counts: of DDP the default and the fastest."""
    assert {row["engine"] for row in rows if row.get("scheduler") == "autobyte"} <= {"ordered", "allreduce", "ps"}
    assert [row["bound_s"] > 0 for row in rows if "bound_s" in row] == [True]
    (doctor,) = [row["doctor"] for row in rows if "doctor" in row]
    assert doctor["verdict"] in ("gain", "keep DDP", "unknown")
    assert doctor["method"].startswith("AutoByte")
    first, again = ([row["arm"] for row in rows if row.get("repeat") == repeat] for repeat in (0, 1))
    ddp = [arm for arm in first if arm.startswith("DDP")]
    assert ddp[:5] == ["DDP default", "DDP 1 MiB", "DDP 4 MiB", "DDP 25 MiB", "DDP 100 MiB"]
    assert {"copies batched", "static graph"} <= {arm.rpartition(", ")[2] for arm in ddp}
    ours = ["AutoByte", "AutoByte auto", "AutoByte twin", "AutoByte over host memory", "AutoByte servers"]
    assert [arm for arm in first if arm not in ddp] == ["compute", *ours]
    assert [arm for arm in again if arm not in ddp] == ["compute", *ours]
    assert "DDP default" in again
    assert len(again) in (len(ours) + 2, len(ours) + 3)  # the default may be the fastest


def test_a_call_in_which_the_host_waits_counts_within_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOL))
    spec = importlib.util.spec_from_file_location("gpu_rank", TOOL / "rank.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    events = [("aten::mul", 1.0), ("cudaStreamSynchronize", 1.5), ("cudaLaunchKernel", 1.6)]
    events += [("cudaStreamSynchronize", 2.0), ("cudaEventSynchronize", 3.5), ("cudaStreamSynchronize", 3.6)]
    found = module.waiting_calls(events, [(1.0, 2.0), (3.0, 4.0)])
    assert found == {"cudaStreamSynchronize": 2, "cudaEventSynchronize": 1}


@pytest.mark.parametrize("rehearse", [True, False])
def test_the_limits_of_all_sections_are_under_eight_minutes(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rehearse: bool
) -> None:
    """Whatever hangs, each section has its time; and what some leave, steps may take, and no more than that."""
    now = [0.0]
    monkeypatch.setattr(tool.time, "monotonic", lambda: now[0])
    for part in (1.0, 0.5, 0.0):
        now[0], granted = 0.0, dict[str, float]()
        known = {"rehearse": rehearse, "hosts": 2, "limit_s": 470.0, "provenance": {"what": "rehearsal"}}
        run = tool.Run(tmp_path, **known, began_s=0.0)
        for section in run.sections():
            work = partial(_work, now, granted, section.name, 1.0 if section.most_s else part)
            assert run.attempt(tool.Section(section.name, section.limit_s, work, section.most_s)) == 0
            assert granted[section.name] >= section.limit_s
        assert now[0] <= 470.0
        assert rehearse or (granted["steps resnet50"] > 110) is (part < 1)


def _work(now: list[float], granted: dict[str, float], name: str, part: float, limit_s: float) -> None:
    """Take a part of the time that a section is given."""
    granted[name] = limit_s
    now[0] += part * limit_s


@needs_namespaces
def test_ranks_that_hang_cost_no_more_than_their_section(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setattr(tool, "HERE", tmp_path)
    monkeypatch.setattr(tool, "STALL_S", 1.0)
    run = tool.Run(tmp_path, rehearse=True, hosts=2, limit_s=60.0, provenance={"what": "rehearsal"})
    assert run.attempt(tool.Section("blocks 1", 30.0, run.blocks(1.0))) == 1
    monkeypatch.setattr(tool, "STALL_S", 60.0)
    assert run.attempt(tool.Section("parity", 30.0, lambda limit_s: run.parity(2)(1.0))) == 1
    stalled, late = records(tmp_path, "sections")
    assert stalled["why"] == "no rank has said anything for 1 s; ended"
    assert late["why"] == "after 1 s still running, and ended: rank 0 on host 0, rank 1 on host 1"


def test_records_of_a_section_that_runs_anew_are_replaced(tool: ModuleType, tmp_path: Path) -> None:
    lines = [json.dumps({"section": section}) + "\n" for section in ("steps vgg16", "steps gpt2", "steps vgg16")]
    (tmp_path / "steps.jsonl").write_text("".join(lines))
    run = tool.Run(tmp_path, rehearse=True, hosts=2, limit_s=60.0, provenance={"what": "rehearsal"})
    run.forget({"steps vgg16"})
    assert records(tmp_path, "steps") == [{"section": "steps gpt2"}]
    run.forget(None)
    assert records(tmp_path, "steps") == []


def command(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "autobyte", *words]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=280, check=False)


@needs_namespaces
def test_the_bench_runs_on_cpus(tmp_path: Path) -> None:
    words = ["--hosts", "2", "--batch", "2", "--steps", "2", "--windows", "1", "--repeats", "1", "--wire", "bf16"]
    done = command("bench", "--rehearse", *words, "--tuner", "default", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["what"], told["ranks_on_card"], told["failures"]) == ("rehearsal", 2, [])
    (cell,) = told["cells"]
    methods = {row["method"]: row for row in cell["rows"]}
    assert {"compute", "DDP default, bf16", "DDP 1 MiB, bf16", "AutoByte, bf16"} <= methods.keys()
    assert methods["AutoByte, bf16"]["over_bound"] > 0
    assert (cell["doctor"]["measured_gain"], cell["doctor"]["right"]) == (None, None)  # of bf16 it says nothing
    assert [row["arm"] for row in records(tmp_path, "small-cnn-1000Mbit") if "arm" in row] == [*methods]


@needs_namespaces
def test_doctor_and_probe_run_on_cpus() -> None:
    done = command("doctor", "--rehearse", "--hosts", "2", "small:cnn", "--batch", "4", "--json")
    assert done.returncode in (0, 3, 4), done.stderr
    assert json.loads(done.stdout)["measured"]["workers"] == 2
    done = command("probe", "--rehearse", "--hosts", "2", "--sizes", "64KiB", "--iterations", "2", "--json")
    told = json.loads(done.stdout)
    assert (told["what"], told["ranks"]) == ("rehearsal", 2)
    assert [(row["engine"], row["wrong"]) for row in told["rows"]] == [("ordered", 0), ("allreduce", 0), ("ps", 0)]
