"""A loop that reads parameters after every step is told so, once."""

import logging

import pytest

from autobyte.torch.model.reads import OFTEN, Reads


def after_steps(reads: Reads, *read: bool) -> None:
    for each in read:
        reads.step()
        if each:
            reads.note("'fc.weight' and other parameters were")
            reads.note("'other.weight' was")  # of the same step


def test_reads_in_a_row_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autobyte")
    reads = Reads()
    after_steps(reads, *[True] * (OFTEN - 1), False)  # a checkpoint now and then
    assert not caplog.messages
    after_steps(reads, *[True] * (3 * OFTEN))
    (said,) = caplog.messages
    assert said.startswith("'fc.weight' and other parameters were read")
    assert f"{OFTEN} steps in a row (test_reads.py, line " in said
