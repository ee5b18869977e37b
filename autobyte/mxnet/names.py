"""Names that MXNet 1.9.1 takes from NumPy, and that NumPy has dropped since."""

from collections.abc import Mapping
from typing import Any

import numpy as np

ALIASES: Mapping[str, Any] = {
    "bool": bool,
    "PZERO": 0.0,
    "NZERO": -0.0,
    "NINF": -np.inf,
    "PINF": np.inf,
    "NaN": np.nan,
    "NAN": np.nan,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "float_": np.float64,
    "product": np.prod,
    "alltrue": np.all,
    "sometrue": np.any,
    "cumproduct": np.cumprod,
    "round_": np.round,
    "in1d": np.isin,
    "trapz": getattr(np, "trapezoid", None),  # NumPy 1 has the old name itself
    "row_stack": np.vstack,
}
FUNCTIONS = ("mirr", "msort", "npv", "pmt", "ppmt", "pv", "rate")  # that MXNet names, and never calls


def restore() -> None:
    """Give NumPy those of the names that it does not have."""
    for name, value in ALIASES.items():
        if name not in vars(np):
            setattr(np, name, value)
    for name in FUNCTIONS:
        if name not in vars(np):
            setattr(np, name, _gone(name))


def _gone(name: str) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise AttributeError(f"NumPy {np.__version__} has no '{name}', and autobyte.mxnet has none in its place")

    return call
