"""All that a GPU must show, in at most eight minutes: profiles, links, blocks, parity with DDP, waits, steps.

make gpu                                      records go to docs/data/gpu, or the folder that OUT names
python3 tools/gpu/run.py --sections "blocks,steps gpt2"    a part of it
python3 tools/gpu/run.py --rehearse           all of it on CPUs and gloo, with small models, to out/gpu-rehearsal

It needs root, Linux, one NVIDIA GPU with its MPS, PyTorch with CUDA and NCCL, and what
`pip install 'autobyte[gpu]'` brings. Four ranks share the card; their links are shaped. Each section has a time
limit, and each record is in its file as soon as it is known: what hangs or fails costs nobody else's results.
Exit status: 0, 1 if a section failed, 2 if something asked for cannot be, 3 where there is no GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path[:0] = [str(ROOT), str(HERE)]

from autobyte.bench.networks import SMALL, SPECS  # noqa: E402
from autobyte.bench.real import RealCell, told  # noqa: E402
from autobyte.bench.records import Records, provenance, say  # noqa: E402
from autobyte.bench.verdict import add_verdicts  # noqa: E402
from autobyte.errors import AutoByteError, InputError  # noqa: E402
from autobyte.testbed import Testbed, TestbedError  # noqa: E402
from autobyte.testbed.rig import STALL_S, Rig  # noqa: E402
from autobyte.testbed.validity import measure_links  # noqa: E402
from autobyte.units import KIB  # noqa: E402

COMMITTED = ROOT / "docs" / "data" / "gpu"
NO_GPU = 3
VERDICT_S = 10.0  # for doctor to think about what was measured
GBIT = 1.25e8  # bytes/s
Spec = dict[str, Any]

RESNET50 = RealCell(SPECS["resnet50"], 16, (1.0,), 128, tuners=(), steps=5, repeats=2, audition=150, servers=False)
GPT2 = RealCell(
    SPECS["gpt2"], 1, (1.0,), 8, tuners=("twin",), windows=4, steps=5, repeats=2, audition=60, offered=False
)
REHEARSED = RealCell(SMALL[0], ratios=(1.0,), most=64, tuners=("twin",), windows=1, steps=2, repeats=2, audition=24)


@dataclass(frozen=True)
class Section:
    """A part that may fail alone.

    Args:
        name: of the section; its first word is that of its file of records.
        limit_s: after which it is ended.
        run: does it; given the rest of its time (s).
        most_s: the same, where those before it have left some of their time.
    """

    name: str
    limit_s: float
    run: Callable[[float], None]
    most_s: float = 0.0


@dataclass
class Run:
    """One go at all sections.

    Args:
        out: folder of the records.
        rehearse: on CPUs, with small models.
        hosts: with a rank on each.
        limit_s: of everything.
        provenance: what stands in every record.
    """

    out: Path
    rehearse: bool
    hosts: int
    limit_s: float
    provenance: dict[str, str]
    began_s: float = field(default_factory=time.monotonic)
    spare_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Time that is left of the limit."""
        return self.began_s + self.limit_s - time.monotonic()

    def sections(self) -> list[Section]:
        """What is done, what is worth most first; steps get what the others leave. All limits together fit."""
        if self.rehearse:
            return [
                Section("profiles", 80, self.profiles),
                Section("blocks 1", 60, self.blocks(1.0)),
                Section("parity 2", 60, self.parity(2)),
                Section("parity 4", 60, self.parity(4)),
                Section("waits", 60, self.waits),
                Section("steps cnn", 120, self.steps("cnn", 1.0, REHEARSED)),
            ]
        return [
            Section("profiles", 70, self.profiles),
            Section("blocks 5", 35, self.blocks(5.0)),
            Section("blocks 10", 30, self.blocks(10.0)),
            Section("parity 2", 40, self.parity(2)),
            Section("parity 4", 40, self.parity(4)),
            Section("waits", 35, self.waits),
            Section("steps resnet50", 110, self.steps("resnet50", 5.0, RESNET50), most_s=170),
            Section("steps gpt2", 110, self.steps("gpt2", 10.0, GPT2), most_s=170),
        ]

    def profiles(self, limit_s: float) -> None:
        """Profile on the GPU, and measure links meanwhile, on cores that are free."""
        models = SMALL if self.rehearse else SPECS
        dtypes = ["float32"] if self.rehearse else ["float32", "bfloat16"]
        spec = self.spec("profiles") | {"models": [*models], "dtypes": dtypes, "warmup": 3, "repeats": 10}
        until = time.monotonic() + limit_s
        with _written(spec) as path, _process(HERE / "profiles.py", str(path)) as profiling:
            try:
                self.links()
            finally:  # a link that cannot be measured costs no profile
                failed = profiling.wait(max(1.0, until - time.monotonic()))
            if failed:
                raise TestbedError(f"profiles ended with status {failed}, the number of models that failed")

    def links(self) -> None:
        """Measure what links carry."""
        for gbit in (1.0,) if self.rehearse else (5.0, 10.0):
            with Testbed(self.hosts, rate=gbit * GBIT) as testbed:
                measured = [link.to_json() for link in measure_links(testbed)]
            self.records("profiles", file="links").add(gbit=gbit, links=measured)

    def blocks(self, gbit: float) -> Callable[[float], None]:
        """What blocks cost at a rate."""
        sizes = [(4 if self.rehearse else 64) * KIB << power for power in range(9)]
        return lambda limit_s: self.launch(f"blocks {gbit:g}", gbit, limit_s, {"sizes": sizes})

    def parity(self, ranks: int) -> Callable[[float], None]:
        """Parameters of some ranks beside DDP's: on two the same bits, on four another order of summing."""
        spec, gbit = {"steps": 5 if self.rehearse else 20}, 1.0 if self.rehearse else 10.0
        return lambda limit_s: self.launch(f"parity {ranks}", gbit, limit_s, spec, hosts=ranks)

    def waits(self, limit_s: float) -> None:
        """Whether a step waits for the device."""
        self.launch("waits", 1.0 if self.rehearse else 10.0, limit_s, {"steps": 5}, hosts=2)

    def steps(self, name: str, gbit: float, cell: RealCell) -> Callable[[float], None]:
        """Steps of a model."""

        def run(limit_s: float) -> None:
            try:
                self.launch(f"steps {name}", gbit, max(1.0, limit_s - VERDICT_S), cell.spec())
            finally:
                add_verdicts(self.file("steps"))

        return run

    def launch(self, section: str, gbit: float, limit_s: float, spec: Spec, *, hosts: int | None = None) -> None:
        """Run a section's ranks on shaped links, with an MPS of their own."""
        rig, out = self.rig(gbit), self.file(section)
        with told(rig, section, spec, out=out, provenance=self.provenance, limit_s=limit_s) as path:
            rig.run(
                [sys.executable, str(HERE / "rank.py"), str(path)],
                limit_s=limit_s,
                hosts=hosts,
                env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if section.startswith("parity") else {},
                show=lambda rank, line: sys.stdout.write(f"  [{rank}] {line}\n"),
                stall_s=STALL_S,
            )

    def rig(self, gbit: float) -> Rig:
        """Hosts with links of a rate."""
        return Rig(self.hosts, gbit * GBIT, self.rehearse)

    def file(self, section: str) -> Path:
        """Where records of a section go."""
        return self.out / f"{section.split(maxsplit=1)[0]}.jsonl"

    def spec(self, section: str) -> Spec:
        """What a process without ranks is told."""
        device = self.rig(1.0).device
        return {
            "section": section,
            "out": str(self.file(section)),
            "provenance": self.provenance,
            "device": device,
        }

    def records(self, section: str, *, file: str) -> Records:
        """Where this process records something of a section."""
        common = {"section": section, **self.provenance, "ranks_on_card": self.hosts}
        return Records(self.file(file), common)

    def go(self, wanted: list[str]) -> int:
        """Run the sections that are wanted, by their names or first words; exit status.

        Raises:
            InputError: there is no such section.
        """
        sections = self.sections()
        if unknown := {*wanted} - {word for one in sections for word in (one.name, one.name.split()[0])}:
            raise InputError(f"no section '{min(unknown)}'; there are: {', '.join(one.name for one in sections)}")
        chosen = [one for one in sections if not wanted or {one.name, one.name.split()[0]} & {*wanted}]
        self.out.mkdir(parents=True, exist_ok=True)
        self.forget({one.name for one in chosen} if wanted else None)
        with nullcontext() if self.rehearse else _process(HERE / "compiled.py"):  # on a core that is free
            return max(self.attempt(section) for section in chosen)

    def forget(self, sections: set[str] | None) -> None:
        """Remove records of earlier runs of these sections; None is all."""
        for path in self.out.glob("*.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if sections is not None and json.loads(line)["section"] not in sections]
            path.write_text("".join(kept))

    def attempt(self, section: Section) -> int:
        """Run one section, and record how it went; 1 if it failed. The time that it leaves, later ones may have."""
        own_s = max(section.limit_s, min(section.most_s, section.limit_s + self.spare_s))
        limit_s = min(own_s, self.left_s)
        began_s, status, why = time.monotonic(), 0, ""
        say(f"{section.name}: at most {limit_s:.0f} s of {self.left_s:.0f} s")
        try:
            if limit_s < 10:
                raise TestbedError("no time is left")
            section.run(limit_s)
        except (AutoByteError, OSError, subprocess.SubprocessError) as error:
            status, why = 1, str(error)
        took_s = time.monotonic() - began_s
        self.spare_s = max(0.0, self.spare_s + section.limit_s - took_s)
        self.records(section.name, file="sections").add(took_s=round(took_s, 1), failed=bool(status), why=why)
        say(f"{section.name}: {'failed' if status else 'done'} after {took_s:.0f} s {why}".rstrip())
        return status


@contextmanager
def _written(spec: Spec) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        yield path


@contextmanager
def _process(script: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A script that runs beside this one; at the end of the block it is gone, with all that it started."""
    process = subprocess.Popen([sys.executable, str(script), *arguments], start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="on CPUs and gloo, with small models")
    parser.add_argument("--sections", default="", help="names or first words of names, with commas between")
    parser.add_argument("--hosts", type=int, default=0, help="ranks, one on each host; 4, in a rehearsal 2")
    parser.add_argument("--limit", type=float, default=470.0, help="of everything (s)")
    options = parser.parse_args()
    out = Path(os.environ.get("OUT") or (ROOT / "out" / "gpu-rehearsal" if options.rehearse else COMMITTED))
    try:
        if options.rehearse and out.resolve() == COMMITTED:
            raise InputError(f"a rehearsal measures nothing: not into {out}; let OUT name another folder")
        hosts = options.hosts or (2 if options.rehearse else 4)
        gpu = Rig(hosts, GBIT, options.rehearse).find()
        wanted = [name for name in options.sections.split(",") if name]
        return Run(out.resolve(), options.rehearse, hosts, options.limit, provenance(gpu)).go(wanted)
    except InputError as error:
        sys.stderr.write(f"gpu: {error}\n")
        return 2
    except TestbedError as error:
        sys.stderr.write(f"gpu: {error}; --rehearse runs all of it on CPUs\n")
        return NO_GPU


if __name__ == "__main__":
    sys.exit(main())
