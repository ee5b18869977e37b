"""Where real models are measured: ranks that share this machine's GPU, on shaped links; or its CPUs, to rehearse."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from autobyte.testbed.gpu import SharedGpu, find_gpu
from autobyte.testbed.hosts import Testbed
from autobyte.testbed.launch import Finished, Launch, Show
from autobyte.testbed.namespaces import TestbedError

STALL_S = 60.0  # without a word from any rank, it hangs
GRACE_S = 3.0  # for the others when a rank has failed


@dataclass(frozen=True)
class Rig:
    """Hosts with a rank on each, all on one GPU.

    >>> Rig(4, rate=6.25e8).run(["python", "train.py"], limit_s=60)

    A rehearsal runs the same on CPUs: gloo stands for NCCL, and the engine `ordered`, whose streams are threads, for
    the engine `nccl`. It shows that all of it runs, and measures nothing.

    Args:
        hosts: how many.
        rate: of every link in both directions, nominal (bytes/s).
        rehearse: on CPUs.
    """

    hosts: int
    rate: float
    rehearse: bool = False

    @property
    def device(self) -> str:
        """Where ranks compute."""
        return "cpu" if self.rehearse else "cuda:0"

    @property
    def backend(self) -> str:
        """Of torch.distributed's default group."""
        return "gloo" if self.rehearse else "nccl"

    @property
    def engine(self) -> str:
        """AutoByte's engine on this device."""
        return "ordered" if self.rehearse else "nccl"

    def find(self) -> tuple[str, str] | None:
        """The GPU's name and its driver's version; None in a rehearsal.

        Raises:
            TestbedError: there is no GPU.
        """
        return None if self.rehearse else find_gpu()

    @contextmanager
    def start(
        self,
        command: Sequence[str],
        *,
        hosts: int | None = None,
        env: Mapping[str, str] | None = None,
        show: Show | None = None,
    ) -> Iterator[Launch]:
        """Start a command on every host, for as long as the block lasts; the GPU's daemon is this launch's alone.

        Args:
            command: the program and its arguments.
            hosts: how many; None is all.
            env: more variables.
            show: called with rank and line, as lines are written.

        Raises:
            TestbedError: there is no GPU, no MPS, or no right to make hosts.
        """
        with (
            nullcontext() if self.rehearse else SharedGpu() as gpu,
            Testbed(hosts or self.hosts, rate=self.rate) as testbed,
            testbed.start(command, env=env, show=show, gpu=gpu) as launch,
        ):
            yield launch

    def run(
        self,
        command: Sequence[str],
        *,
        limit_s: float,
        hosts: int | None = None,
        env: Mapping[str, str] | None = None,
        show: Show = lambda rank, line: None,
        stall_s: float = STALL_S,
    ) -> list[Finished]:
        """Run a command to its end; ranks that hang are ended.

        Args:
            command, hosts, env, show: as for `start`.
            limit_s: after which all are ended.
            stall_s: likewise, if no rank says anything for so long.

        Raises:
            LaunchError: a rank failed, or time is up.
            TestbedError: no rank said anything for too long, or as for `start`.
        """
        heard_s = time.monotonic()

        def hear(rank: int, line: str) -> None:
            nonlocal heard_s
            heard_s = time.monotonic()
            show(rank, line)

        def listen() -> None:
            if time.monotonic() - heard_s > stall_s:
                raise TestbedError(f"no rank has said anything for {stall_s:g} s; ended")

        with self.start(command, hosts=hosts, env=env, show=hear) as launch:
            return launch.wait(timeout_s=limit_s, grace_s=GRACE_S, meanwhile=listen)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package, with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
