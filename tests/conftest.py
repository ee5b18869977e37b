"""What all tests share: no time limit on examples, for the machine may be busy; benchmarks only where asked for."""

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# what was started in the background ignores these, and so would all that tests start
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@pytest.fixture
def frozen() -> Iterator[None]:
    """Leave what other tests have made out of garbage collections; with two million objects each takes 0.9 s."""
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--benchmark` beside pytest-benchmark's own `--benchmark-...`; pytest lets no option be abbreviated."""
    parser.addoption("--benchmark", action="store_true", help="run what uses the fixture `benchmark`, and only that")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run either the tests or the benchmarks."""
    wanted = bool(config.getoption("benchmark")) or bool(config.getoption("benchmark_only"))
    left_out = [item for item in items if ("benchmark" in getattr(item, "fixturenames", ())) != wanted]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
