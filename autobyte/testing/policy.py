"""What every policy must do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from autobyte.bound import bound_s
from autobyte.config import Config, Space
from autobyte.job import Cluster, Job, Layer, Model, Tensor
from autobyte.scheduler.plan import Plan
from autobyte.scheduler.policies import POLICIES, Policy, make_plan
from autobyte.simulator import kernel
from autobyte.simulator.simulate import simulate
from autobyte.simulator.steady import step_s
from autobyte.units import KIB

SMALLEST = 16 * KIB  # partitions that are tried: smaller ones make thousands of blocks, and the reference is slow


def _model() -> Model:
    """Tensors of several sizes and dtypes; one without elements, and a layer without tensors."""
    sizes = [[("float32", 40_000), ("float16", 100)], [], [("float32", 300_000), ("float32", 0)], [("bfloat16", 7)]]
    layers = (
        Layer(f"l{i}", tuple(Tensor(f"l{i}.{j}", n, dtype, i) for j, (dtype, n) in enumerate(row)), 1e-3, 2e-3)
        for i, row in enumerate(sizes)
    )
    return Model("several", tuple(layers), batch_size=8)


def _one_layer() -> Model:
    return Model.build("one layer", [("l0", [("l0.0", 100_000)], 1e-3, 2e-3)], batch_size=8)


class PolicyContract:
    """What training and the simulator rely on. Run by pytest for every class that inherits it.

    >>> class TestMine(PolicyContract):
    ...     policy = Mine

    The policy is registered. One that cannot run on an architecture raises InputError in `plan`, and its test leaves
    that architecture out of `architectures`.
    """

    policy: ClassVar[type[Policy]]
    architectures: ClassVar[tuple[str, ...]] = ("allreduce", "ps")

    def test_its_space_names_it(self) -> None:
        """Tuners and training use the default config as it is: another name there is another policy."""
        for job in self._jobs():
            name = self._space(job).default.policy
            assert name in POLICIES, f"space() names policy '{name}', which is not registered"
            assert POLICIES[name] is self.policy, f"space() names policy '{name}', which is {POLICIES[name].__name__}"

    def test_its_space_holds_its_default_and_only_its_own_knobs(self) -> None:
        """A search begins with the default, and varies knobs that `plan` knows."""
        for job in self._jobs():
            space = self._space(job)
            assert space.default in space, space.default.label
            assert {*space.knobs, *space.default.knobs} <= set(self.policy.knobs), self.policy.knobs

    def test_every_element_travels_once(self) -> None:
        """Under any config of the space; `Tiling` itself refuses gaps and overlaps."""
        for job, config in self._cases():
            plan = self._plan(job, config)
            assert plan.job is job
            sizes = (plan.tiling.stop - plan.tiling.start)[
                np.repeat(_summing(plan), np.diff(plan.tiling.block_start))
            ]
            assert int(sizes.sum()) == int(job.gradients.numel.sum()), config.label

    def test_every_rank_makes_the_same_plan(self) -> None:
        """The same job and config lead to the same plan in another object, made in another order."""
        cases = list(self._cases())
        digests = [self._plan(job, config).digest for job, config in cases]
        again = [self.policy().plan(replace(job), config).digest for job, config in reversed(cases)]
        assert digests == again[::-1]

    def test_its_plans_run(self) -> None:
        """A step ends in the reference simulator and in the compiled one after the same time."""
        for job, config in self._cases():
            plan = self._plan(job, config)
            slow, fast = simulate(plan, iterations=2).step_s, kernel.simulate(plan, iterations=2).step_s
            np.testing.assert_allclose(fast, slow, rtol=1e-9, err_msg=config.label)

    def test_no_step_is_shorter_than_the_bound(self) -> None:
        """A plan that beats the bound leaves something out."""
        for job, config in self._cases():
            assert step_s(job, config) >= bound_s(job) * (1 - 1e-9), config.label

    def test_it_plans_a_model_without_gradients(self) -> None:
        """Nothing travels, and the plan is empty."""
        empty = Model.build("empty", [("l0", [], 1e-3, 2e-3), ("l1", [("l1.0", 0)], 1e-3, 2e-3)], batch_size=8)
        for job in self._jobs(empty):
            assert len(self._plan(job, self._space(job).default).tiling) == 0

    def test_sizes_that_it_does_not_name_change_nothing(self) -> None:
        """Users who give them are told that the policy has none."""
        for job, config in self._cases():
            size, credit = config.partition_bytes, config.credit_bytes
            others = {
                "partition": replace(config, partition_bytes=2 * size),
                "credit": replace(config, credit_bytes=3 * credit),
            }
            for name in others.keys() - set(self.policy.sizes):
                assert self._plan(job, others[name]).digest == self._plan(job, config).digest, (
                    f"{name} of {config.label}"
                )

    def test_it_goes_by_gradients_alone_if_it_says_so(self) -> None:
        """With `by_gradients`, layer times and links change nothing in a plan."""
        if not self.policy.by_gradients:
            return
        for job, config in self._cases():
            layers = [replace(layer, forward_s=3e-3, backward_s=1e-3) for layer in job.model.layers]
            other = Job(replace(job.model, layers=tuple(layers)), Cluster.uniform(3, 1e8), accumulation=2)
            assert self._plan(job, config).digest == self._plan(other, config).digest, config.label

    def _jobs(self, model: Model | None = None) -> Iterator[Job]:
        for architecture in self.architectures:
            cluster = Cluster.uniform(4, 1.25e8, architecture=architecture)
            for each in (_model(), _one_layer()) if model is None else (model,):
                yield Job(each, cluster)

    def _cases(self) -> Iterator[tuple[Job, Config]]:
        """Jobs, each with the default and with corners and points of what tuners may search."""
        for job in self._jobs():
            space = self._space(job)
            low, high = space.partition_bytes
            within = replace(space, partition_bytes=(min(max(low, SMALLEST), high), high))
            points = [*np.random.default_rng(0).random((3, len(space.names))), np.zeros(len(space.names))]
            for config in (space.default, *(within.at(point.tolist()) for point in (*points, 1 - points[-1]))):
                yield job, config

    def _space(self, job: Job) -> Space:
        return self.policy().space(job)

    def _plan(self, job: Job, config: Config) -> Plan:
        plan = make_plan(job, config)
        assert isinstance(plan, Plan)
        return plan


def _summing(plan: Plan) -> npt.NDArray[np.bool_]:
    """Blocks that carry their elements for the first time: all but all-gathers, shape [blocks]."""
    gathers = plan.tiling.gathers
    return np.ones(len(plan.tiling), dtype=bool) if gathers is None else gathers < 0
