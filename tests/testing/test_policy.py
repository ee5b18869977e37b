"""Every policy of the table keeps the contract, and the contract tells a policy that does not."""

from dataclasses import replace
from typing import Any

import pytest

from autobyte.config import Config, Space
from autobyte.errors import InputError
from autobyte.job import Job
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import POLICIES, Policy
from autobyte.scheduler.policies.bytescheduler import ByteScheduler
from autobyte.scheduler.policies.ddp import Ddp
from autobyte.scheduler.policies.dear import Dear
from autobyte.scheduler.policies.fifo import Fifo
from autobyte.scheduler.policies.horovod import Horovod
from autobyte.scheduler.policies.megatron import Megatron
from autobyte.scheduler.policies.mgwfbp import MgWfbp
from autobyte.scheduler.policies.p3 import P3Policy
from autobyte.scheduler.policies.tictac import TicTac
from autobyte.scheduler.policies.usbyte import UsByte
from autobyte.scheduler.policies.wfbp import Wfbp
from autobyte.scheduler.tiling import cut
from autobyte.testing import PolicyContract


class TestFifo(PolicyContract):
    policy = Fifo


class TestWfbp(PolicyContract):
    policy = Wfbp


class TestDdp(PolicyContract):
    policy = Ddp


class TestP3(PolicyContract):
    policy = P3Policy


class TestByteScheduler(PolicyContract):
    policy = ByteScheduler


class TestMgWfbp(PolicyContract):
    policy = MgWfbp


class TestHorovod(PolicyContract):
    policy = Horovod


class TestTicTac(PolicyContract):
    policy = TicTac


class TestMegatron(PolicyContract):
    policy = Megatron


class TestDear(PolicyContract):
    policy = Dear
    architectures = ("allreduce",)


class TestUsByte(PolicyContract):
    policy = UsByte


def test_every_policy_of_the_table_has_its_contract_test() -> None:
    tested = {cls.policy for cls in PolicyContract.__subclasses__() if cls.__name__.startswith("Test")}
    assert tested == {POLICIES[name] for name in POLICIES.names()}


class NamesAnother(ByteScheduler):
    """Its space is ByteScheduler's."""


class LeavesLate(ByteScheduler):
    """Its plans depend on how often they were made."""

    made = 0

    def plan(self, job: Job, config: Config) -> Plan:
        LeavesLate.made += 1
        return Plan(job, cut(job.gradients, config.partition_bytes), credit_bytes=LeavesLate.made)

    def space(self, job: Job) -> Space:
        return Space(default=Config(1 << 20, 1 << 20, "broken"))


class GoesByTimes(LeavesLate):
    """It says that it goes by gradients, and looks at times."""

    by_gradients = True

    def plan(self, job: Job, config: Config) -> Plan:
        size = config.partition_bytes + int(1e6 * job.model.layers[0].forward_s)
        return Plan(job, cut(job.gradients, size), credit_bytes=config.credit_bytes)


class HasOtherKnobs(GoesByTimes):
    """A knob of its space is not among its knobs."""

    def space(self, job: Job) -> Space:
        return replace(super().space(job), knobs={"twist": (0.0, 1.0)})


@pytest.mark.parametrize(
    ("policy", "broken"),
    [
        (NamesAnother, "test_its_space_names_it"),
        (LeavesLate, "test_every_rank_makes_the_same_plan"),
        (GoesByTimes, "test_it_goes_by_gradients_alone_if_it_says_so"),
        (HasOtherKnobs, "test_its_space_holds_its_default_and_only_its_own_knobs"),
    ],
)
def test_the_contract_tells_a_broken_policy(
    policy: type[Policy], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(POLICIES, "_classes", dict(POLICIES._classes) | {"broken": policy})
    contract: Any = type("Contract", (PolicyContract,), {"policy": policy})()
    with pytest.raises((AssertionError, InputError)):
        getattr(contract, broken)()
