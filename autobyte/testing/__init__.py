"""Contract tests for tuners, policies and engines, for anyone to inherit, and fakes that fail on purpose."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autobyte.testing.engine import EngineContract
    from autobyte.testing.fakes import Faults, FaultyEngine, InjectedError
    from autobyte.testing.memory import MemoryNetwork
    from autobyte.testing.policy import PolicyContract
    from autobyte.testing.tuner import TunerContract

_PLACES = {
    "EngineContract": "engine",
    "Faults": "fakes",
    "FaultyEngine": "fakes",
    "InjectedError": "fakes",
    "MemoryNetwork": "memory",
    "PolicyContract": "policy",
    "TunerContract": "tuner",
}

__all__ = [
    "EngineContract",
    "Faults",
    "FaultyEngine",
    "InjectedError",
    "MemoryNetwork",
    "PolicyContract",
    "TunerContract",
]


def __getattr__(name: str) -> Any:
    """Import what is used: a tuner's tests need no torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'autobyte.testing' has no attribute '{name}'")
    return getattr(importlib.import_module(f"autobyte.testing.{_PLACES[name]}"), name)
