"""A training whose connections are paced is the same training."""

import pytest
from ranks import on_ranks
from stories import assert_equal, make_mlp, parameters_of, sgd, train, with_ab, with_ddp

import autobyte.torch as ab
from autobyte.errors import InputError
from autobyte.torch.exchange.pacing import pace_of


def test_parameters_are_ddps_at_any_pace() -> None:
    on_ranks(_train, 2)


def _train(rank: int) -> None:
    def story(wrap, **keywords):
        module = make_mlp()
        model, optimizer = wrap(module, sgd(module), **keywords)
        train(model, optimizer, rank)
        return parameters_of(module, optimizer)

    pacing = "mocc:throughput=0.8,latency=0.1,loss=0.1"
    assert_equal(story(with_ab, engine="ps", pacing=pacing), story(with_ddp))


def test_other_engines_have_no_connections_to_pace() -> None:
    with pytest.raises(InputError, match="pacing= is for engine='ps', not for 'allreduce'"):
        pace_of("rate:1Gbit", engine="allreduce")
    module = make_mlp()
    with pytest.raises(InputError, match="unknown pacing 'fast'"):
        ab.DistributedOptimizer(sgd(module), module, engine="ps", pacing="fast")
