"""Accelerate's loop, beside the same with DDP."""

import gc
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from loops import (
    ACCUMULATION,
    ADAMW,
    BATCH,
    IMPORTS,
    LIMIT,
    assert_alike,
    assert_broken,
    assert_crosses,
    copied,
    gpt2,
    texts,
)
from ranks import on_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autobyte.torch as ab
from autobyte.errors import InputError

pytest.importorskip("accelerate")

SCALE = 4.0  # of the loss, so that gradients are clipped


class Told:
    """A training with Accelerate.

    Args:
        autobyte: whether with AutoByte, or with DDP.
        settings: of the accelerator.
        keywords: of AutoByte.
    """

    def __init__(self, *, autobyte: bool, settings: dict[str, Any] | None = None, **keywords: Any) -> None:
        from accelerate import Accelerator  # noqa: PLC0415, in ranks only
        from transformers import get_cosine_schedule_with_warmup  # noqa: PLC0415

        from autobyte.integrations.accelerate import prepare  # noqa: PLC0415

        self.accelerator = Accelerator(cpu=True, **(settings or {"gradient_accumulation_steps": ACCUMULATION}))
        model = gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
        schedule = get_cosine_schedule_with_warmup(optimizer, 2, 40)
        loader = DataLoader(TensorDataset(texts()), batch_size=BATCH)
        objects = (model, optimizer, loader, schedule)
        if autobyte:
            self.model, self.optimizer, self.loader, self.schedule = prepare(
                self.accelerator, *objects, **{"policy": "bytescheduler"} | keywords
            )
        else:
            self.model, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(*objects)
        self.norms: list[float] = []

    @property
    def bare(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.model)

    def epoch(self, scale: float = SCALE, *, clips: bool = True, by_value: bool = False) -> None:
        """The loop of Accelerate's documentation."""
        for (ids,) in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = self.model(input_ids=ids, labels=ids).loss
                self.accelerator.backward(scale * loss)
                if self.accelerator.sync_gradients and clips:
                    if by_value:
                        self.accelerator.clip_grad_value_(self.model.parameters(), 0.05)
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), LIMIT)
                    self.norms.append(float(norm))
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()

    def outcome(self) -> tuple[list[Tensor], list[float]]:
        return copied(self.bare), self.norms


def trains_saves_and_goes_on(rank: int, folder: str) -> None:
    theirs = Told(autobyte=False)
    theirs.epoch()
    theirs.epoch()
    ours = Told(autobyte=True)
    ours.epoch()
    ours.accelerator.save_state(folder)
    ours.epoch()
    assert type(theirs.model) is not type(ours.model) is type(theirs.bare)
    assert_crosses(ours.optimizer.optimizer)
    assert_alike(ours.outcome(), theirs.outcome())
    ours.optimizer.optimizer.close()
    resumed = Told(autobyte=True)
    resumed.accelerator.load_state(folder)
    assert resumed.optimizer.optimizer.steps == len(ours.norms) / 2
    resumed.epoch()
    assert resumed.schedule.get_last_lr() == theirs.schedule.get_last_lr()
    resumed.norms = ours.norms[: len(ours.norms) // 2] + resumed.norms
    assert_alike(resumed.outcome(), theirs.outcome())
    resumed.optimizer.optimizer.close()


@pytest.mark.parametrize("size", [2, 3])
def test_it_trains_as_ddp_does(size: int, tmp_path: Path) -> None:
    on_ranks(trains_saves_and_goes_on, size, str(tmp_path), timeout_s=200, imports=IMPORTS)


def frees_and_goes_on(rank: int) -> None:
    """Rounds of one accelerator with other models; then the same model once more."""
    from accelerate import Accelerator  # noqa: PLC0415

    from autobyte.integrations.accelerate import prepare  # noqa: PLC0415

    accelerator, made = Accelerator(cpu=True), []
    for _ in range(3):
        model = gpt2()
        model, optimizer = prepare(accelerator, model, torch.optim.SGD(model.parameters(), lr=0.1))
        accelerator.backward(model(input_ids=texts()[:2], labels=texts()[:2]).loss)
        optimizer.step()
        made += [weakref.ref(model), weakref.ref(optimizer.optimizer)]
        model, optimizer = accelerator.clear(model, optimizer)
    gc.collect()
    assert not [each for each in made if each() is not None]

    told = [Told(autobyte=autobyte) for autobyte in (True, False)]
    for each in told:
        each.epoch()
    ours, theirs = told
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(1))
    type(ours.optimizer).__init__(ours.optimizer, ours.optimizer.optimizer, False, scaler)
    for each in told:
        each.accelerator.free_memory()
    for parameter in ours.bare.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for ours.optimizer.scaler in (scaler, None):
        with pytest.raises(InputError, match="prepare model and optimizer again"):
            ours.optimizer.step()
    ours.bare.zero_grad()
    for each in told:
        each.accelerator.prepare(each.model, each.optimizer, each.schedule)
        each.epoch()
    assert_alike(ours.outcome(), theirs.outcome())
    ours.optimizer.optimizer.close()


def test_what_is_freed_is_gone_and_can_be_prepared_again() -> None:
    on_ranks(frees_and_goes_on, 2, timeout_s=200, imports=IMPORTS)


def other_ways(rank: int) -> None:
    """One optimizer of two models, one of which accumulates; several passes in a step; ranks of unlike length."""
    from accelerate import Accelerator, DataLoaderConfiguration  # noqa: PLC0415

    from autobyte.integrations.accelerate import attach  # noqa: PLC0415

    ended = []
    for autobyte in (True, False):
        uneven = DataLoaderConfiguration(even_batches=False)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=uneven)
        if autobyte:
            attach(accelerator, policy="bytescheduler")
        torch.manual_seed(0)
        one, two = models = nn.Linear(4, 8), nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
        rows = torch.randn(36, 4, generator=torch.Generator().manual_seed(1))
        one, two, optimizer, loader = accelerator.prepare(
            one, two, optimizer, DataLoader(TensorDataset(rows), batch_size=4)
        )

        def loss(inputs: Tensor, one: Any = one, two: Any = two) -> Tensor:
            value: Tensor = two(one(inputs)).square().mean()
            return value

        for (inputs,) in list(loader)[:4]:
            with accelerator.accumulate(two):
                accelerator.backward(loss(inputs))
                optimizer.step()
                optimizer.zero_grad()
        shares = rows.split(4)[rank::2]
        for inputs, others in zip(shares[:2], shares[2:], strict=False):
            accelerator.backward(loss(inputs))
            accelerator.backward(loss(others))  # adds to averages
            optimizer.step()
            optimizer.zero_grad()
            with accelerator.no_sync(one), accelerator.no_sync(two):
                first, second = loss(inputs), loss(others)
            accelerator.backward(first)
            with accelerator.trigger_sync_in_backward(one), accelerator.trigger_sync_in_backward(two):
                accelerator.backward(second)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.free_memory()
        whole = nn.Sequential(*models, nn.Linear(1, 1))
        model, optimizer = accelerator.prepare(whole, torch.optim.SGD(whole.parameters(), lr=0.1))
        with (
            mock.patch.object(Accelerator, "multi_device", new=True),  # else it joins nothing, and warns
            accelerator.join_uneven_inputs([model]),
        ):
            for (inputs,) in loader:
                accelerator.backward(model(inputs).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        if autobyte:
            optimizer.optimizer.close()
        ended.append([*whole.parameters()])
    for ours, theirs in zip(*ended, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_other_ways_of_training_are_as_with_ddp() -> None:
    on_ranks(other_ways, 2, timeout_s=60, imports=IMPORTS)


def clips_more_than_it_trains(rank: int) -> None:
    """The norm is of layers as well that are not frozen, and that no optimizer trains."""
    from accelerate import Accelerator  # noqa: PLC0415

    from autobyte.integrations.accelerate import attach  # noqa: PLC0415

    ended = []
    for autobyte in (True, False):
        accelerator = Accelerator(cpu=True)
        if autobyte:
            attach(accelerator)
        torch.manual_seed(0)
        own = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        model, optimizer = accelerator.prepare(own, torch.optim.SGD(own[1].parameters(), lr=0.1))
        norms = []
        for rows in torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(rank)):
            accelerator.backward(10 * model(rows).square().mean())
            norms.append(float(accelerator.clip_grad_norm_(model.parameters(), LIMIT)))
            optimizer.step()
            own.zero_grad()
        ended.append((copied(own), norms))
        if autobyte:
            optimizer.optimizer.close()
    assert_alike(*ended)


def test_a_norm_may_have_gradients_that_no_optimizer_uses() -> None:
    on_ranks(clips_more_than_it_trains, 2, timeout_s=60, imports=IMPORTS)


def goes_wrong(rank: int) -> list[str]:
    """Faults of a loop, one after the other; what each says."""
    from accelerate import Accelerator, DistributedDataParallelKwargs  # noqa: PLC0415
    from accelerate.utils import GradientAccumulationPlugin  # noqa: PLC0415

    from autobyte.integrations.accelerate import attach, prepare  # noqa: PLC0415

    said = []
    told = [Told(autobyte=autobyte) for autobyte in (True, False)]
    for each in told:
        each.epoch()
        each.epoch(scale=float("inf") if rank else SCALE)  # on one rank
    ours, theirs = told
    assert_alike(ours.outcome(), theirs.outcome())
    assert_broken(ours.norms)
    ours.optimizer.optimizer.close()
    with pytest.raises(InputError) as caught:
        ours.accelerator.prepare(ours.model, ours.optimizer)
    said.append(str(caught.value))

    for given, keywords in (
        (theirs.accelerator, {}),
        (Accelerator(cpu=True), {"accumulation": 2}),
        (Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(comm_hook="power_sgd")]), {}),
    ):
        with pytest.raises(InputError) as caught:
            attach(given, **keywords)
        said.append(str(caught.value))
    with pytest.raises(InputError) as caught:
        prepare(Accelerator(cpu=True), torch.optim.SGD(gpt2().parameters(), lr=0.1))
    said.append(str(caught.value))
    late = Accelerator(cpu=True)
    by_ddp = late.prepare(gpt2())
    attach(late)
    with pytest.raises(InputError) as caught:
        late.prepare(torch.optim.SGD(by_ddp.parameters(), lr=0.1))
    said.append(str(caught.value))

    plugin = GradientAccumulationPlugin(num_steps=ACCUMULATION, sync_each_batch=True)
    bf16 = DistributedDataParallelKwargs(comm_hook="bf16")
    each_batch = {"gradient_accumulation_plugin": plugin}
    other = Told(autobyte=True, settings=each_batch, timeout=timedelta(seconds=8), diagnostics=None)
    other.epoch(by_value=True)
    told_parts = Accelerator(cpu=True, kwargs_handlers=[bf16])
    model = gpt2()
    model, optimizer = prepare(told_parts, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert optimizer.optimizer.training.job.wire_dtype == "bfloat16"
    loss = model(input_ids=texts()[:2], labels=texts()[:2]).loss
    told_parts.backward(loss)
    part = told_parts.clip_grad_norm_(model.transformer.h[0].parameters(), 1e-3)  # the rest is not clipped
    assert float(part) > 1e-3
    optimizer.step()
    optimizer.optimizer.close()
    with pytest.raises(ab.CommunicationError) as failed:
        other.epoch(clips=rank == 0)
        other.epoch(clips=rank == 0)
    said.append(str(failed.value))
    other.optimizer.optimizer.recover()
    return said


def test_what_goes_wrong_is_said() -> None:
    words = (
        "the optimizer was closed",
        "has prepared a model already",
        "leave accumulation= out",
        "comm_hook=power_sgd",
        "hand in the model before its optimizer",
        "both after attach()",
    )
    both = on_ranks(goes_wrong, 2, timeout_s=200, imports=IMPORTS)
    for said in both:
        assert all(expected in text for expected, text in zip(words, said[:-1], strict=True)), said
    assert any("clip" in said[-1] for said in both), both
