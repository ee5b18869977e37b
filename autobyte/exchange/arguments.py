"""What every front end is given, looked at before anything is made: one line says what cannot be used."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autobyte.config import Config, Space
from autobyte.errors import InputError, unknown
from autobyte.scheduler.policies import POLICIES, check_ranges, check_sizes

AUTO, BYTESCHEDULER = "auto", "bytescheduler"
SERVED = ("ps", "kvstore", "byteps")  # engines with parameter servers
WIRE = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "float16": "float16"}
KEEP = Path("autobyte.toml")  # what is found, where nothing else is said
ALONE_S = 10.0  # after which a rank under torchrun says what rank 0 has not said


@contextmanager
def rank_0_speaks() -> Iterator[None]:
    """Let rank 0 alone say what is wrong with arguments that all ranks have.

    Under torchrun, others raise later: by then rank 0 has ended, and torchrun has ended them. Else as many tracebacks
    would be printed as there are ranks, one into the other.
    """
    try:
        yield
    except InputError:
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0":
            time.sleep(ALONE_S)
        raise


def check_policy(policy: str, config: Config) -> None:
    """Make sure that a config is of the policy that was named, if any was, and says nothing that it does not have.

    Raises:
        InputError: it is of another one, or has sizes that change nothing.
    """
    if policy not in (BYTESCHEDULER, config.policy):
        raise InputError(f"policy='{policy}', but config= is of '{config.policy}': say Config(…, '{policy}')")
    check_sizes(config)


def check_space(space: object, *, tuner: str | None, policy: str, config: Config | Path | str | None) -> None:
    """Look at what a tuner may choose from, if anything was said of it.

    Raises:
        InputError: it is no space, has knobs or sizes that the policy lacks, lacks the config, or nobody chooses.
    """
    if space is None:
        return
    if not isinstance(space, Space):
        raise InputError(f"space must be a Space, got {space!r}")
    if policy == AUTO:
        raise InputError(f"policy='{AUTO}' chooses its own config: leave out space=")
    if tuner is None:
        raise InputError("space= is what a tuner may choose from: say tuner=, too")
    if isinstance(config, str | Path):
        return  # it is looked at when it is read
    policy = policy if config is None else config.policy
    check_ranges(policy, space)
    known = POLICIES[policy].knobs
    for name in space.knobs:
        if name not in known:
            raise unknown("knob in space=", name, known)
    if config is not None and config not in replace(space, default=config):
        raise InputError(
            f"config= is {config.label}, which is not in space=: begin with one that the tuner may choose"
        )


def check_diagnostics(folder: object) -> None:
    """Look at where files about failures shall go.

    Raises:
        InputError: it is no folder, and cannot become one.
    """
    if folder is not None and not isinstance(folder, bool | str | Path):
        raise InputError(f"diagnostics must be a folder, True or None, got {folder!r}")
    if isinstance(folder, str | Path) and Path(folder).exists() and not Path(folder).is_dir():
        raise InputError(f"diagnostics= is '{folder}', which is no folder: name one for what is known of a failure")
