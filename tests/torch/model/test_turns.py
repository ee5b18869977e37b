"""Streams of a GPU take turns with what they copy and update."""

import gpus
import pytest
import torch
from gpus import GPU, Stream

from autobyte.torch.model.turns import Turns


def test_a_stream_follows_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.stand_in(monkeypatch.setattr)
    turns = Turns([GPU, GPU, torch.device("cpu")])
    turns.take()
    turns.take()
    assert not Stream.log
    with gpus.on(Stream(GPU, name="side")):
        turns.take()
    turns.take()
    assert Stream.log == [("follow", "side", "model"), ("follow", "model", "side")]


def test_a_stream_follows_an_update_and_nothing_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.stand_in(monkeypatch.setattr)
    turns = Turns([GPU, torch.device("cpu")])
    turns.follow()
    turns.done()
    turns.follow()
    (record,) = Stream.log
    assert record[:2] == ("record", "model")
    with gpus.on(Stream(GPU, name="side")):
        turns.follow()
        assert Stream.log[1:] == [("wait", "side", record[2])]
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        turns.follow()
    assert len(Stream.log) == 2
