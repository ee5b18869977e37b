"""Which optimizers are stepped layer by layer, and what refuses an update."""

import contextlib
import copy
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gpus
import pytest
import torch
from ranks import RankError, on_ranks
from stories import (
    STEPS,
    assert_equal,
    make_mlp,
    parameters_of,
    rows,
    sgd,
    told_twice,
    train,
    with_ab,
    with_ddp,
)
from torch import Tensor, nn

from autobyte.errors import InputError
from autobyte.torch.model import updates as module
from autobyte.torch.model.clipping import Clipping
from autobyte.torch.model.elementwise import ELEMENTWISE, can_cross_steps
from autobyte.torch.model.held import drop
from autobyte.torch.model.layers import CalledLayer
from autobyte.torch.model.pending import as_they_are, state_of
from autobyte.torch.model.turns import Turns
from autobyte.torch.model.updates import Updates


class Averages:
    """Gradients that arrive when they are told to; whoever waits makes them."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.waited: list[str] = []
        self.whole = self.failed = self.ahead = False

    def arrived(self, names: Iterable[str]) -> bool:
        return set(names) <= self.there

    def wait(self, names: Iterable[str]) -> None:
        if self.failed and not self.arrived(names):
            raise ConnectionError("a peer is gone")
        self.waited += names
        self.there |= set(names)

    def missing(self, name: str) -> Tensor | None:
        return None


def stepped(**how: Any) -> tuple[nn.Sequential, Updates, Averages, list[Tensor]]:
    """Three layers after a backward pass and a step whose updates are due, and what these make of the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    averages, optimizer = Averages(), torch.optim.SGD(model.parameters(), lr=1.0, **how)
    updates = Updates(optimizer, averages)
    layers = [
        CalledLayer(name, module, [(f"{name}.weight", module.weight)]) for name, module in model.named_children()
    ]
    updates.install(layers, [f"{name}.weight" for name in "012"], model)
    model(torch.ones(1, 2)).sum().backward()
    expected = [layer.weight.detach() - layer.weight.grad for layer in model]
    updates.plan(Clipping())
    return model, updates, averages, expected


STATES: dict[str, Callable[[torch.optim.Optimizer, nn.Parameter], Any]] = {
    "state": lambda inner, last: inner.state[last]["momentum_buffer"],
    "state_dict": lambda inner, _last: inner.state_dict()["state"][2]["momentum_buffer"],
    "deepcopy": lambda inner, _last: copy.deepcopy(inner).state_dict()["state"][2]["momentum_buffer"],
    "pickle": lambda inner, _last: pickle.loads(pickle.dumps(inner)).state_dict()["state"][2]["momentum_buffer"],
}


@pytest.mark.parametrize("how", STATES)
def test_whoever_reads_the_state_of_the_users_own_optimizer_gets_all_updates(how: str) -> None:
    model, updates, _, expected = stepped(momentum=0.9)
    inner, last = updates._optimizer, model[2].weight
    gradient = last.grad.clone()
    updates.settle()
    updates.plan(Clipping())  # of a second step, with the same gradients
    assert isinstance(inner, torch.optim.SGD)
    inner.param_groups[0]["lr"] = 1.0  # to look at groups takes no update
    assert updates._due == 3
    assert torch.equal(STATES[how](inner, last), 0.9 * gradient + gradient)
    assert type(inner) is torch.optim.SGD
    assert not torch.equal(last, expected[2])


def test_an_optimizer_that_is_made_like_the_users_own_is_nobodys() -> None:
    model, updates, _, _ = stepped()
    inner = updates._optimizer
    made = type(inner)(model.parameters(), lr=0.5)  # as a loop does that resets it
    assert type(made) is torch.optim.SGD
    assert made.param_groups[0]["lr"] == 0.5
    assert updates._due == 3


def test_a_forward_pass_takes_no_other_layers_update_though_its_optimizer_has_state() -> None:
    model, updates, averages, _ = stepped(momentum=0.9)
    averages.there = {"0.weight"}
    model[0](torch.ones(1, 2))
    assert averages.waited == ["0.weight"]
    assert list(state_of(updates._optimizer)) == [model[0].weight]


def test_what_the_users_own_optimizer_loads_is_not_updated_afterwards() -> None:
    model, updates, _, _ = stepped(momentum=0.9)
    inner = updates._optimizer
    updates.settle()
    saved = copy.deepcopy(inner.state_dict())
    updates.plan(Clipping())
    inner.load_state_dict(saved)
    model(torch.ones(1, 2))
    for number, parameter in enumerate(model.parameters()):
        assert torch.equal(inner.state[parameter]["momentum_buffer"], saved["state"][number]["momentum_buffer"])


def test_a_layer_is_updated_when_it_is_called_with_those_behind_it_that_have_arrived() -> None:
    model, updates, averages, expected = stepped()
    averages.there = {"1.weight"}
    model[0](torch.ones(1, 2))
    assert averages.waited == ["0.weight", "1.weight"]
    updates.settle()
    assert averages.waited == ["0.weight", "1.weight", "2.weight"]
    assert all(torch.equal(layer.weight, new) for layer, new in zip(model, expected, strict=True))
    updates.settle()  # once
    assert all(torch.equal(layer.weight, new) for layer, new in zip(model, expected, strict=True))


def test_an_optimizer_that_failed_once_leaves_nothing_that_a_later_undo_brings_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Out of memory, say, and the user goes on with the next batch."""
    model, updates, averages, expected = stepped()
    averages.there = {"0.weight"}
    model[0](torch.ones(1, 2))
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(updates._part, "step", _fail)
        model[1](torch.ones(1, 2))
    updates.settle()
    before = [layer.weight.detach().clone() for layer in model]
    assert torch.equal(before[0], expected[0])
    updates.plan(Clipping())
    averages.there, averages.failed = set(), True
    with pytest.raises(ConnectionError):
        model[2](torch.ones(1, 2))
    assert all(torch.equal(layer.weight, old) for layer, old in zip(model, before, strict=True))


def _fail() -> None:
    raise MemoryError


@pytest.mark.parametrize("there", [{"0.weight"}, {"0.weight", "1.weight"}, {"0.weight", "2.weight"}])
def test_a_step_whose_averages_never_come_is_undone_on_every_layer(there: set[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    averages, optimizer = Averages(), torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    undone: list[int] = []
    updates = Updates(optimizer, averages, undone.append)
    layers = [
        CalledLayer(name, module, [(f"{name}.weight", module.weight)]) for name, module in model.named_children()
    ]
    updates.install(layers, [f"{name}.weight" for name in "012"], model)
    for _ in range(2):  # the second step has momentum
        updates.settle()
        before = copy.deepcopy([list(model.parameters()), optimizer.state_dict()])
        averages.there = set()
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        updates.plan(Clipping())
    optimizer.param_groups[0]["lr"] = 0.5  # as a scheduler does after a step
    averages.there, averages.failed = set(there), True
    with pytest.raises(ConnectionError):
        model(torch.ones(1, 2))
    assert undone == [1]
    assert_equal(list(model.parameters()), before[0])
    assert_same_state(optimizer.state_dict(), before[1])
    updates.settle()  # nothing is due
    model(torch.ones(1, 2))


def test_streams_take_turns_with_copies_and_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second layer is copied with the first, and updated under another stream, behind its copy."""
    gpus.stand_in(monkeypatch.setattr)
    model, updates, averages, expected = stepped()
    monkeypatch.setattr(updates, "_turns", Turns([gpus.GPU]))
    model[0](torch.ones(1, 2))
    assert not follows()
    with gpus.on(gpus.Stream(gpus.GPU, name="side")):
        model[1](torch.ones(1, 2))
    assert follows() == [("follow", "side", "model")]
    averages.failed = True
    with pytest.raises(ConnectionError):
        model[2](torch.ones(1, 2))
    assert follows()[1:] == [("follow", "model", "side")]  # what is brought back comes behind the updates
    assert not any(torch.equal(layer.weight, new) for layer, new in zip(model, expected, strict=True))


def follows() -> list[gpus.Call]:
    return [call for call in gpus.Stream.log if call[0] == "follow"]


def test_a_layer_that_was_updated_with_an_earlier_one_follows_it_onto_another_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus.stand_in(monkeypatch.setattr)
    model, updates, averages, _ = stepped()
    monkeypatch.setattr(updates, "_turns", Turns([gpus.GPU]))
    averages.there = {"1.weight"}
    model[0](torch.ones(1, 2))
    with gpus.on(gpus.Stream(gpus.GPU, name="side")):
        model[1](torch.ones(1, 2))
    assert [call[:2] for call in gpus.Stream.log] == [("record", "model"), ("wait", "side")]


def test_what_updates_at_once_takes_turns_with_what_undoes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No layers are known where all updates happen in `step()`."""
    devices: list[torch.device] = []
    monkeypatch.setattr(module, "Turns", lambda of: Turns(devices.extend(of) or [gpus.GPU]))
    gpus.stand_in(monkeypatch.setattr)
    updates = Updates(sgd(nn.Linear(2, 2)), Averages())
    assert devices == [torch.device("cpu")] * 2
    updates.undo()
    with gpus.on(gpus.Stream(gpus.GPU, name="side")):
        updates.undo()
    assert follows() == [("follow", "side", "model")]


def test_a_step_whose_averages_all_came_is_finished_whatever_fails_then() -> None:
    model, updates, averages, expected = stepped()
    averages.there = {"0.weight", "1.weight", "2.weight"}
    averages.failed = averages.whole = True
    updates.settle()
    assert_equal(list(model.parameters()), expected)


def test_layers_are_copied_only_as_long_as_averages_are_to_come() -> None:
    model, updates, averages, _ = stepped()
    averages.there = {"0.weight"}
    model[0](torch.ones(1, 2))
    assert len(updates._former) == 3
    averages.there, averages.whole = {"0.weight", "1.weight", "2.weight"}, True
    model[1](torch.ones(1, 2))
    assert len(updates._former) == 0


def test_layers_are_copied_while_another_is_awaited_but_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, updates, averages, _ = stepped()
    with as_they_are():
        before = [layer.weight.detach().clone() for layer in model]
    monkeypatch.setattr(module, "SOON_BYTES", 0)
    monkeypatch.setattr(module, "AHEAD_BYTES", 16)
    updates._layers[2].nbytes = 17
    kept: list[int] = []
    wait = averages.wait

    def waiting(names: Iterable[str]) -> None:
        kept.append(len(updates._former))
        wait(names)

    monkeypatch.setattr(averages, "wait", waiting)
    model[0](torch.ones(1, 2))
    assert kept == [2]  # the first and the second, whose update is not taken for that
    assert averages.waited == ["0.weight"]
    assert len(updates._former) == 2
    averages.failed = True
    with pytest.raises(ConnectionError):
        model[2](torch.ones(1, 2))
    assert all(torch.equal(layer.weight, old) for layer, old in zip(model, before, strict=True))


def test_layers_that_have_arrived_are_copied_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model, updates, averages, _ = stepped()
    calls: list[int] = []
    keep = updates._former.keep
    monkeypatch.setattr(updates._former, "keep", lambda parameters: calls.append(1) or keep(parameters))
    for place in range(3):
        averages.there = {f"{place}.weight"}
        model[place](torch.ones(1, 2))
    assert calls == [1]


def test_copying_ahead_ends_when_the_layer_that_is_awaited_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    model, updates, averages, _ = stepped()
    monkeypatch.setattr(module, "SOON_BYTES", 0)
    monkeypatch.setattr(module, "AHEAD_BYTES", 16)
    keep = updates._former.keep

    def arriving(parameters: Iterable[nn.Parameter]) -> None:
        keep(parameters)
        if len(updates._former) == 2:
            averages.there = {"0.weight"}

    monkeypatch.setattr(updates._former, "keep", arriving)
    model[0](torch.ones(1, 2))
    assert len(updates._former) == 2


def test_where_a_device_waits_nothing_is_copied_and_a_step_that_cannot_be_whole_is_not_undone() -> None:
    model, updates, averages, expected = stepped()
    averages.there, averages.ahead = {"0.weight"}, True
    model[0](torch.ones(1, 2))
    assert len(updates._former) == 0
    averages.failed = True
    with pytest.raises(ConnectionError):
        model[1](torch.ones(1, 2))
    assert torch.equal(model[0].weight, expected[0])  # nobody has taken it back
    updates.settle()  # nothing is due


def assert_same_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for key, state in theirs["state"].items():
        assert torch.equal(ours["state"][key]["momentum_buffer"], state["momentum_buffer"])


def test_gradients_in_transit_are_cleared_once_they_are_used() -> None:
    model, updates, _, expected = stepped()
    updates.clear(drop)
    with as_they_are():  # else the update is taken first
        assert all(parameter.grad is not None for parameter in model.parameters())
    updates.settle()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model[2].weight, expected[2])


def test_hyper_parameters_are_those_of_the_step() -> None:
    model, updates, _, expected = stepped()
    updates._optimizer.param_groups[0]["lr"] = 100.0  # a scheduler, right after step()
    updates.settle()
    assert torch.equal(model[0].weight, expected[0])


def test_whoever_reads_a_parameter_takes_the_update_of_its_layer() -> None:
    model, _, averages, expected = stepped()
    assert torch.equal(model[1].weight, expected[1])
    assert averages.waited == ["1.weight"]


def test_only_optimizers_that_are_known_cross_steps() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    assert all(can_cross_steps(kind([parameter], lr=0.1)) for kind in ELEMENTWISE)
    assert not can_cross_steps(torch.optim.LBFGS([parameter]))
    hooked = torch.optim.SGD([parameter], lr=0.1)
    hooked.register_step_post_hook(lambda *_: None)
    assert not can_cross_steps(hooked)


def test_other_optimizers_are_stepped_as_a_whole() -> None:
    on_ranks(_other_optimizers, 2)


def _other_optimizers(rank: int) -> None:
    class Mine(torch.optim.SGD):
        """Not known to be element-wise."""

    for make, closure in itertools.chain(
        ((make, False) for make in _elementwise()),
        [(lambda p: Mine(p, lr=0.1), False), (lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3), True)],
    ):

        def story(wrap: Any, make: Any = make, closure: bool = closure) -> list[Tensor]:
            model, optimizer = wrap(module := make_mlp(), make(module.parameters()))

            def evaluate(step: int) -> Tensor:
                optimizer.zero_grad()
                loss = model(rows(rank, step, 5, 12)).square().mean()
                loss.backward()
                return loss

            for step in range(STEPS):
                if closure:
                    optimizer.step(lambda step=step: evaluate(step))
                else:
                    evaluate(step)
                    optimizer.step()
            return parameters_of(module, optimizer)

        assert_equal(story(with_ab), story(with_ddp))


def _elementwise() -> Iterator[Callable[[Any], torch.optim.Optimizer]]:
    for kind in ELEMENTWISE:
        yield lambda parameters, kind=kind: kind(parameters, lr=0.01)


def test_changing_parameters_by_another_name_before_their_update_is_refused() -> None:
    with pytest.raises(RankError, match=r"parameter '0.weight' was changed after step\(\).*call flush\(\) before"):
        on_ranks(_weight_clipping, 2)


def _weight_clipping(rank: int) -> None:
    model, optimizer = with_ab(module := make_mlp(), sgd(module))
    aliases = [parameter.detach() for parameter in module.parameters()]
    for step in range(STEPS):
        train(model, optimizer, rank, range(step, step + 1))
        for alias in aliases:
            alias.clamp_(-0.1, 0.1)


def test_a_refused_update_is_refused_again() -> None:
    on_ranks(_refused, 2)


def _refused(rank: int) -> None:
    model = make_mlp()
    _, optimizer = with_ab(model, sgd(model))
    alias = model[0].weight.detach()  # nobody can see what is done by way of it
    train(model, optimizer, rank, range(2))
    alias.mul_(1.0)
    for _ in range(2):
        with pytest.raises(InputError, match=r"parameter '0.weight' was changed after step\(\)"):
            model(rows(rank, 2, 5, 12))
    with contextlib.suppress(InputError):
        optimizer.close()


def test_step_hooks_that_are_set_after_wrapping() -> None:
    on_ranks(_hooks, 2)


def _hooks(rank: int) -> None:
    def story(wrap: Any) -> list[Tensor]:
        module = make_mlp()
        model, optimizer = wrap(module, sgd(module))

        @torch.no_grad()
        def clamp(*_: Any) -> None:
            for parameter in module.parameters():
                parameter.clamp_(-0.2, 0.2)

        train(model, optimizer, rank)
        hook = optimizer.register_step_post_hook(clamp)
        train(model, optimizer, rank, range(STEPS, 2 * STEPS))
        hook.remove()
        train(model, optimizer, rank, range(2 * STEPS, 3 * STEPS))
        return parameters_of(module, optimizer)

    told_twice(story)
