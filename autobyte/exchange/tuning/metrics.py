"""Numbers of a training while it goes on: a line in the log, and values for TensorBoard, wandb or a function."""

import importlib
import logging
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from autobyte.errors import InputError, MissingExtra, unknown
from autobyte.exchange.tuning.callback import WindowReport
from autobyte.units import format_percent

log = logging.getLogger("autobyte")

Values = dict[str, float]
Sink = Callable[[Values, int], object]
Told = Callable[[Values, int, int], object]  # values, first and last step
PREFIX = "autobyte/"


class Metrics:
    """Tells how long steps take, how much communication is exposed, and how much is hidden.

    Args:
        told: is told values of some steps.
        every: so many steps, at least; 0 is every window.
    """

    def __init__(self, told: Told, *, every: int) -> None:
        self._told = told
        self._every = every
        self._windows: list[WindowReport] = []

    def tell(self, window: WindowReport) -> None:
        """Take in a window, and tell of it and those before it if it is time."""
        self._windows.append(window)
        first, last = self._windows[0].first_step, window.last_step
        if last - first + 1 < self._every:
            return
        windows, self._windows = self._windows, []
        self._told(_values(windows), first, last)


def metrics(*, every: object, target: object) -> dict[str, Callable[[WindowReport], object]]:
    """What is to be told of windows, by the argument that asks for it.

    Args:
        every: `log_every` of `DistributedOptimizer`.
        target: `log_to`, likewise.

    Raises:
        InputError: one of them cannot be used.
        MissingExtra: wandb is not installed.
    """
    if type(every) is not int or every < 0:
        raise InputError(f"log_every must be a number of steps, or 0 for no line, got {every!r}")
    wanted: dict[str, Told] = {"log_every=": _write_line} if every else {}
    if (sink := sink_for(target)) is not None:
        wanted["log_to="] = partial(_tell, sink)
    return {name: Metrics(told, every=every).tell for name, told in wanted.items()}


def _write_line(values: Values, first: int, last: int) -> None:
    log.info("steps %d to %d: %s", first, last, _line(values))


def _tell(sink: Sink, values: Values, _first: int, last: int) -> None:
    sink({PREFIX + name: value for name, value in values.items()}, last)


def sink_for(target: object) -> Sink | None:
    """What takes values and a step.

    Args:
        target: has `add_scalar`, as TensorBoard's `SummaryWriter` has; or a function of values and step; or `wandb`.

    Raises:
        InputError: it is none of these.
        MissingExtra: wandb is not installed.
    """
    if target is None:
        return None
    if isinstance(target, str):
        if target != "wandb":
            raise unknown("log_to", target, ["wandb"])
        return _wandb()
    if callable(getattr(target, "add_scalar", None)):
        return partial(_scalars, target)
    if callable(target):
        return target
    raise InputError(
        f"log_to must have add_scalar, as a SummaryWriter has, or be a function of values and step, or 'wandb'; "
        f"got {target!r}"
    )


def _scalars(writer: Any, values: Values, step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)


def _wandb() -> Sink:
    try:
        wandb = importlib.import_module("wandb")
    except ModuleNotFoundError:
        raise MissingExtra("log_to='wandb' needs wandb: pip install wandb") from None

    def tell(values: Values, step: int) -> None:
        if wandb.run is None:
            raise InputError("log_to='wandb' needs a run: call wandb.init() on rank 0 before the first step")
        wandb.log(values | {f"{PREFIX}step": step}, commit=False)  # goes with the script's own next row

    return tell


def _values(windows: list[WindowReport]) -> Values:
    """Means over steps (s), and of the overlap (share of 1), as far as they are known."""
    values = {"step_s": fmean(seconds for window in windows for seconds in window.step_s)}
    for name in ("exposed_s", "overlap"):
        known = [value for window in windows if (value := getattr(window, name)) is not None]
        if known:
            values[name] = fmean(known)
    return values


def _line(values: Values) -> str:
    step_s, parts = values["step_s"], [f"{values['step_s'] * 1e3:.1f} ms a step"]
    if "exposed_s" in values:
        share = format_percent(values["exposed_s"] / step_s if step_s else 0.0)
        parts.append(f"exposed communication {values['exposed_s'] * 1e3:.1f} ms ({share})")
    if "overlap" in values:
        parts.append(f"overlap {format_percent(values['overlap'])}")
    return ", ".join(parts)
