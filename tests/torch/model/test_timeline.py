"""Events become spans that never overlap; whatever nothing is known of is idle time."""

from itertools import pairwise

import torch
from torch import nn

from autobyte.torch.model.marks import HostMarks
from autobyte.torch.model.timeline import Activity, EventKind, Noted, TrainingTimeline, activities, marks_in


def spans(
    *events: tuple[EventKind, int, float] | tuple[EventKind, int, list[float]],
) -> list[tuple[str, int, float, float]]:
    """Phase, layer, beginning and end."""
    noted: list[Noted] = list(events)
    found = activities(noted, marks_in(noted))
    within = sorted((each for each in found if each.phase != "step"), key=lambda each: each.start_s)
    assert all(before.stop_s <= after.start_s for before, after in pairwise(within))
    return [(each.phase, each.layer, each.start_s, each.stop_s) for each in found]


STEP, NEXT = (EventKind.STEP, 7, 0.0), (EventKind.STEP, 8, 20.0)


def test_a_step_with_a_wait_and_updates() -> None:
    """The wait is for layer 0, whose update both rows belong to; the loss counts to the last layer."""
    assert spans(
        STEP,
        (EventKind.MODEL, -1, 1.0),
        (EventKind.TAKE, -1, 2.0),
        (EventKind.WAIT, -1, [3.0, 5.0]),
        (EventKind.TAKEN, -1, 6.0),
        (EventKind.LAYER, 0, 6.5),
        (EventKind.LAYER, 1, 8.0),
        (EventKind.RETURNED, -1, 10.0),
        (EventKind.GRADIENT, 1, 12.0),
        (EventKind.GRADIENT, 1, 13.0),
        (EventKind.GRADIENT, 0, 15.0),
        NEXT,
    ) == [
        ("forward", 0, 1.0, 2.0),
        ("update", 0, 2.0, 3.0),
        ("wait", 0, 3.0, 5.0),
        ("update", 0, 5.0, 6.0),
        ("forward", 0, 6.0, 8.0),
        ("forward", 1, 8.0, 10.0),
        ("backward", 1, 10.0, 13.0),
        ("backward", 0, 13.0, 15.0),
        ("step", -1, 0.0, 20.0),
    ]


def test_a_pass_without_gradients_is_forward_and_idle() -> None:
    """Evaluation: nothing is backward because no gradient follows."""
    assert spans(
        STEP,
        (EventKind.MODEL, -1, 1.0),
        (EventKind.LAYER, 0, 1.0),
        (EventKind.RETURNED, -1, 3.0),
        (EventKind.MODEL, -1, 9.0),
        (EventKind.LAYER, 0, 9.0),
        (EventKind.RETURNED, -1, 10.0),
        (EventKind.GRADIENT, 0, 11.0),
        NEXT,
    ) == [
        ("forward", 0, 1.0, 3.0),
        ("forward", 0, 9.0, 10.0),
        ("backward", 0, 10.0, 11.0),
        ("step", -1, 0.0, 20.0),
    ]


def test_layers_that_compute_again_in_the_backward_pass_belong_to_it() -> None:
    found = spans(
        STEP,
        (EventKind.MODEL, -1, 0.0),
        (EventKind.LAYER, 0, 0.0),
        (EventKind.RETURNED, -1, 2.0),
        (EventKind.LAYER, 0, 3.0),
        (EventKind.GRADIENT, 0, 5.0),
        NEXT,
    )
    assert found[1] == ("backward", 0, 2.0, 5.0)


def test_an_update_at_the_end_of_a_step_and_one_in_a_backward_pass() -> None:
    assert spans(
        STEP,
        (EventKind.MODEL, -1, 0.0),
        (EventKind.LAYER, 0, 0.0),
        (EventKind.RETURNED, -1, 2.0),
        (EventKind.TAKE, -1, 3.0),  # of a layer that was not called
        (EventKind.TAKEN, -1, 4.0),
        (EventKind.GRADIENT, 0, 5.0),
        (EventKind.WAIT, -1, [6.0, 8.0]),
        (EventKind.TAKE, -1, 9.0),
        (EventKind.TAKEN, -1, 12.0),
        NEXT,
    ) == [
        ("forward", 0, 0.0, 2.0),
        ("update", -1, 3.0, 4.0),
        ("backward", 0, 2.0, 3.0),
        ("backward", 0, 4.0, 5.0),
        ("wait", -1, 6.0, 8.0),
        ("update", -1, 9.0, 12.0),
        ("step", -1, 0.0, 20.0),
    ]


def test_a_wait_of_a_device_ends_with_the_last_that_it_waits_for() -> None:
    """Where that was over before the device came to it, there was no wait."""
    found = spans(STEP, (EventKind.WAIT, -1, [1.0, 4.0, 2.0]), (EventKind.WAIT, -1, [5.0, 3.0]), NEXT)
    assert found == [("wait", -1, 1.0, 4.0), ("step", -1, 0.0, 20.0)]


def test_hooks_note_a_step_of_a_real_model_and_go_away() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    order: list[str] = []
    model[0].weight.register_post_accumulate_grad_hook(lambda _: order.append("theirs"))
    timeline = TrainingTimeline(model, HostMarks())
    timeline.begin()
    timeline.step(0)
    model(torch.ones(3, 4)).sum().backward()
    timeline.step(1)
    timeline.end()
    kinds = [(kind, index) for kind, index, _ in timeline.events]
    assert timeline.layers == ["0", "2"]
    assert kinds[:5] == [
        (EventKind.STEP, 0),
        (EventKind.MODEL, -1),
        (EventKind.LAYER, 0),
        (EventKind.LAYER, 1),
        (EventKind.RETURNED, -1),
    ]
    assert sorted(kinds[5:-1]) == [(EventKind.GRADIENT, 0)] * 2 + [(EventKind.GRADIENT, 1)] * 2
    found = activities(timeline.events, marks_in(timeline.events))
    assert {(each.phase, each.layer) for each in found} == {
        ("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0), ("step", -1)
    }  # fmt: skip
    before = len(timeline.events)
    model(torch.ones(3, 4)).sum().backward()
    assert len(timeline.events) == before
    assert len(order) == 2
    assert all(not module._forward_pre_hooks and not module._forward_hooks for module in model.modules())


def test_a_step_is_told_by_its_number() -> None:
    (step,) = activities([STEP, NEXT], [0.0, 20.0])
    assert step == Activity("step", -1, 7, 0.0, 20.0)
