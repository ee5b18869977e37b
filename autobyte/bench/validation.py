"""The simulator beside the testbed: the same configs on the same models and links, simulated and measured."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autobyte.bench.grid import GridRow, medians
from autobyte.errors import InputError
from autobyte.simulator.calibrate import EngineCalibration


def compare(
    calibration: EngineCalibration, recorded: Iterable[GridRow], *, policy: str = "bytescheduler"
) -> list[dict[str, Any]]:
    """Simulate what was recorded.

    Args:
        calibration: made on other rates and another model.
        recorded: rows of a grid; repeats are put together by their median.
        policy: whose rows.

    Returns:
        a row for each config of each cell: `measured_s`, `simulated_s`, and `error`, simulated / measured - 1.

    Raises:
        InputError: there is no such row, or a rate is the one that the calibration was made on.
    """
    rows = []
    seen = calibration.provenance.get("rate_bytes_per_s")
    for (cell, engine), configs in medians(row for row in recorded if row.policy == policy).items():
        if cell.rate == seen:
            raise InputError(f"the calibration was made at {cell.rate * 8e-9:g} Gbit/s: validate it at other rates")
        job = cell.job(servers=engine == "ps", wire_dtype=None)
        costs = calibration.of(job)
        for config, measured_s in configs.items():
            simulated_s = costs.seconds(job, config)
            rows.append(
                {
                    "model": Path(cell.model).stem,
                    "rate_bytes_per_s": cell.rate,
                    "architecture": engine,
                    "config": config.to_json(),
                    "measured_s": measured_s,
                    "simulated_s": simulated_s,
                    "error": simulated_s / measured_s - 1,
                }
            )
    if not rows:
        raise InputError(f"the recording has no row of '{policy}'")
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Median and 95th percentile of the errors' magnitudes, and the share of configs within 8 %."""
    errors = np.abs([row["error"] for row in rows])
    return {
        "median_error": float(np.median(errors)),
        "p95_error": float(np.percentile(errors, 95)),
        "within_8_percent": float((errors <= 0.08).mean()),
    }


def by_cell(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, float, str], list[dict[str, Any]]]:
    """Rows of each model, rate and architecture."""
    grouped: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["model"], row["rate_bytes_per_s"], row["architecture"]), []).append(row)
    return grouped
