"""What every tuner must do."""

from typing import ClassVar

import numpy as np

from autobyte.config import Config, Space
from autobyte.job import Model
from autobyte.trace import Measurement
from autobyte.tuners import Tuner
from autobyte.units import KIB, MIB


class TunerContract:
    """What the tuning loop relies on. Run by pytest for every class that inherits it.

    >>> class TestMine(TunerContract):
    ...     tuner = Mine
    """

    tuner: ClassVar[type[Tuner]]
    spaces: ClassVar[dict[str, Space]] = {
        "the whole": Space(),
        "a small box": Space((64 * KIB, 16 * MIB), (1.0, 4.0), Config(4 * MIB, 16 * MIB)),
        "one point": Space((MIB, MIB), (1.0, 1.0), Config(MIB, MIB)),
    }
    budget: ClassVar[int] = 12

    def test_asks_for_configs_inside_the_space(self) -> None:
        """Every ask lies in the space, and is of the policy that the space is of."""
        for name, space in self.spaces.items():
            for config in self._drive(space, seed=0):
                assert config is None or config in space or config == space.default, (name, config)

    def test_asks_the_same_again_with_the_same_seed(self) -> None:
        """The same seed and the same measurements lead to the same asks."""
        space = self.spaces["the whole"]
        assert self._drive(space, seed=3) == self._drive(space, seed=3)

    def test_needs_no_budget(self) -> None:
        """A tuner works without being told when it will end."""
        assert len(self._drive(self.spaces["the whole"], seed=0, budget=None)) == self.budget

    def test_bears_being_told_of_configs_it_did_not_ask_for(self) -> None:
        """The loop may run the best so far instead of what was asked for."""
        space = self.spaces["the whole"]
        tuner = self._make(space, seed=0, budget=self.budget)
        for config in (space.default, space.at([0.3] * len(space.names)), space.default):
            tuner.tell(_measured(config, 0))
            asked = tuner.ask()
            assert asked is None or isinstance(asked, Config)

    def test_bears_being_asked_before_it_was_told(self) -> None:
        """It asks for a config of the space, or for none."""
        for space in self.spaces.values():
            asked = self._make(space, seed=0, budget=self.budget).ask()
            assert asked is None or asked in space or asked == space.default

    def test_bears_noise_and_ties(self) -> None:
        """Equal and wildly different step times are both possible."""
        space = self.spaces["a small box"]
        tuner = self._make(space, seed=0, budget=self.budget)
        config: Config | None = space.default
        for step_s in (0.1, 0.1, 5.0, 1e-6, 0.1):
            running = config or space.default
            tuner.tell(Measurement(running, 0, (step_s,) * 10, warmup=2))
            config = tuner.ask()
            tuner.work()

    def _make(self, space: Space, *, seed: int, budget: int | None) -> Tuner:
        model = Model.build("toy", [("layer", [("weight", 1 << 20)], 0.01, 0.02)], batch_size=32)
        return self.tuner(space, model=model, seed=seed, budget=budget)

    def _drive(self, space: Space, *, seed: int, budget: int | None = 12) -> list[Config | None]:
        """Ask and tell in turn on a smooth bowl with a little noise."""
        tuner = self._make(space, seed=seed, budget=budget)
        running, asked = space.default, []
        for number in range(self.budget):
            tuner.tell(_measured(running, number))
            config = tuner.ask()
            asked.append(config)
            tuner.work()
            running = config or running
        return asked


def _measured(config: Config, number: int) -> Measurement:
    """A step time that is least at 2 MiB and 3X, with 1 % of noise that depends on the window alone."""
    partition, credit = np.log2(config.partition_bytes / (2 * MIB)), config.credit_bytes / config.partition_bytes / 3
    step_s = 0.1 * (1 + 0.02 * partition**2 + 0.1 * np.log2(credit) ** 2)
    noise = np.random.default_rng(number).normal(1, 0.01, size=10)
    return Measurement(config, 10 * number, tuple((step_s * noise).tolist()), warmup=2)
