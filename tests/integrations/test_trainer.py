"""The Trainer of transformers, beside the same with DDP."""

import gc
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import (
    ACCUMULATION,
    ADAMW,
    BATCH,
    IMPORTS,
    LIMIT,
    assert_alike,
    assert_crosses,
    copied,
    gpt2,
    listen,
    texts,
)
from ranks import on_ranks
from torch import Tensor, nn

pytest.importorskip("transformers")

STEPS, SAVED = 8, 4


def make(folder: str, *, autobyte: bool, callbacks: Any = (), **settings: Any) -> Any:
    """A trainer; losses are scaled so that gradients are clipped."""
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415, in ranks only

    from autobyte.integrations.trainer import attach  # noqa: PLC0415

    class Scaled(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            found = super().compute_loss(*args, **kwargs)
            return (4 * found[0], *found[1:]) if isinstance(found, tuple) else 4 * found

    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        learning_rate=ADAMW["lr"],
        adam_epsilon=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
        lr_scheduler_type="cosine",
        max_steps=STEPS,
        save_steps=SAVED,
        report_to="none",
        disable_tqdm=True,
        **{"gradient_accumulation_steps": ACCUMULATION, "max_grad_norm": LIMIT, "logging_steps": 1} | settings,
    )
    rows = [{"input_ids": row, "labels": row} for row in texts()]
    trainer = Scaled(gpt2(), arguments, train_dataset=rows, callbacks=list(callbacks))
    if autobyte:
        attach(trainer, policy="bytescheduler")
    return trainer


def outcome(trainer: Any) -> tuple[list[Tensor], list[float]]:
    norms = [logged["grad_norm"] for logged in trainer.state.log_history if "grad_norm" in logged]
    return copied(trainer.model), norms


def trains_saves_and_goes_on(rank: int, folder: str) -> None:
    theirs = make(f"{folder}/theirs", autobyte=False, ddp_find_unused_parameters=False)
    theirs.train()
    ours = make(f"{folder}/ours", autobyte=True)
    ours.evaluate(ours.train_dataset)  # prepares the model, and not the optimizer
    ours.train()
    assert ours.model_wrapped is ours.model
    assert_crosses(ours.optimizer.optimizer)
    assert_alike(outcome(ours), outcome(theirs))
    ours.optimizer.optimizer.close()
    resumed = make(f"{folder}/ours", autobyte=True)
    resumed.train(resume_from_checkpoint=f"{folder}/ours/checkpoint-{SAVED}")
    assert resumed.optimizer.optimizer.steps == STEPS
    assert_alike(outcome(resumed), outcome(theirs))
    resumed.optimizer.optimizer.close()


@pytest.mark.parametrize("size", [2, 3])
def test_it_trains_as_ddp_does(size: int, tmp_path: Path) -> None:
    on_ranks(trains_saves_and_goes_on, size, str(tmp_path), timeout_s=200, imports=IMPORTS)


def clips_nothing(rank: int, folder: str) -> None:
    """The norm is for the log alone: the steps between are whole. The first model has a layer that is not used."""
    for every, unused in ((3, {"ddp_find_unused_parameters": True}), (1, {})):
        settings = {"max_grad_norm": 0.0, "save_strategy": "no", "logging_steps": every}
        settings["gradient_accumulation_steps"] = 1
        theirs = make(f"{folder}/theirs", autobyte=False, **settings | {"ddp_find_unused_parameters": bool(unused)})
        ours = make(f"{folder}/ours", autobyte=True, **settings | unused)
        for trainer in (ours, theirs) if unused else ():
            trainer.model.spare = nn.Linear(3, 3)
            for parameter in trainer.model.spare.parameters():
                nn.init.ones_(parameter)
        for trainer in (theirs, ours):
            trainer.train()
        logged = outcome(ours)[1]
        assert len(logged) == STEPS // every
        assert_alike((outcome(ours)[0], []), (outcome(theirs)[0], []), clipped=False)
        assert logged == pytest.approx(outcome(theirs)[1], rel=1e-4)
        assert ours.optimizer.optimizer.training.exchange.halved == (every == 1)
        assert ours.optimizer.optimizer._mode._may_wait
        ours.optimizer.optimizer.close()


def test_nothing_waits_for_a_norm_that_is_not_logged(tmp_path: Path) -> None:
    on_ranks(clips_nothing, 2, str(tmp_path), timeout_s=200, imports=IMPORTS)


def passes_without_a_step(rank: int, folder: str) -> None:
    """A stream ends within a step, and begins again; a training step has two passes, the second of other weights."""
    from torch.utils.data import IterableDataset  # noqa: PLC0415
    from transformers import Trainer  # noqa: PLC0415

    class Stream(IterableDataset[dict[str, Tensor]]):
        def __iter__(self) -> Any:
            return iter([{"input_ids": row, "labels": row} for row in texts()[: 3 * 2 * BATCH]])

    def adversarial(trainer: Any, model: nn.Module, inputs: Any, *_: Any) -> Tensor:
        loss = Trainer.training_step(trainer, model, inputs)
        weight = trainer.model.transformer.wte.weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight += 0.1 * weight.grad / weight.grad.norm()
        Trainer.training_step(trainer, model, inputs)
        weight.data.copy_(before)
        return loss

    for step, accumulation in ((None, 2), (adversarial, 1)):
        settings = {"gradient_accumulation_steps": accumulation, "save_strategy": "no"}
        trainers = [make(folder, autobyte=autobyte, **settings) for autobyte in (True, False)]
        for trainer in trainers:
            if step is None:
                trainer.train_dataset = Stream()
            else:
                trainer.training_step = partial(step, trainer)
            trainer.train()
        ours, theirs = trainers
        assert_alike(outcome(ours), outcome(theirs))
        ours.optimizer.optimizer.close()


def test_passes_add_to_averages_where_no_step_follows(tmp_path: Path) -> None:
    on_ranks(passes_without_a_step, 2, str(tmp_path), timeout_s=200, imports=IMPORTS)


def looks_at_everything(rank: int, folder: str) -> list[str]:
    """Callbacks that keep a moving average of parameters, or read gradients before the step."""
    from transformers import TrainerCallback  # noqa: PLC0415

    class Mean(TrainerCallback):
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:
            now = copied(model)
            self.seen = [0.9 * old + 0.1 * new for old, new in zip(self.seen or now, now, strict=True)]

    class Norms(TrainerCallback):
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:
            self.seen.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())

    said = listen()
    for kind in (Mean, Norms):
        watches = [kind(), kind()]
        for watch, autobyte in zip(watches, (True, False), strict=True):
            trainer = make(f"{folder}/{autobyte}", autobyte=autobyte, callbacks=[watch], save_strategy="no")
            trainer.train()
            trainer.train()  # once more: what was wrapped is closed, and wrapped anew
            if autobyte:
                trainer.optimizer.optimizer.close()
        ours, theirs = watches
        for one, other in zip(ours.seen, theirs.seen, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)
    assert max(map(float, ours.seen)) <= LIMIT * 1.001, "they were not clipped yet"
    return said


def test_callbacks_find_averages_and_updates(tmp_path: Path) -> None:
    said = on_ranks(looks_at_everything, 2, str(tmp_path), timeout_s=200, imports=IMPORTS)[0]
    assert len([words for words in said if "Norms.on_pre_optimizer_step may read them" in words]) == 1
    reads = [words for words in said if "were read between step() and the next forward pass" in words]
    assert len(reads) == 2, "one line in each training"


def holds_a_reference(rank: int, folder: str) -> None:
    """As TRL's DPOTrainer: `__init__` prepares a second model, which is only evaluated, before `attach` is called."""
    from transformers import Trainer  # noqa: PLC0415

    from autobyte.integrations.trainer import attach  # noqa: PLC0415

    def away_from(reference: nn.Module, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Tensor:
        with torch.no_grad():
            before = reference(**inputs).loss
        loss: Tensor = 4 * torch.nn.functional.softplus(model(**inputs).loss - before)
        return loss

    trainers: list[Trainer] = []
    for autobyte in (True, False):
        trainer = make(f"{folder}/{autobyte}", autobyte=False, save_strategy="no")
        reference = trainer.accelerator.prepare_model(gpt2(), evaluation_mode=True)
        trainer.compute_loss = partial(away_from, reference)
        if autobyte:
            attach(trainer, policy="bytescheduler")
        trainer.train()
        trainers.append(trainer)
    ours, theirs = trainers
    assert_alike(outcome(ours), outcome(theirs))
    assert_crosses(ours.optimizer.optimizer)
    ours.optimizer.optimizer.close()


def test_a_model_that_is_only_evaluated_may_be_prepared_before(tmp_path: Path) -> None:
    on_ranks(holds_a_reference, 2, str(tmp_path), timeout_s=200, imports=IMPORTS)


def searches(rank: int, folder: str) -> list[float]:
    """Trials of a search for hyper-parameters, each with its own model; the best loss, by DDP and by AutoByte."""
    import optuna  # noqa: PLC0415
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    from autobyte.integrations.trainer import attach  # noqa: PLC0415

    rows = [{"input_ids": row, "labels": row} for row in texts()]
    rates = [1e-3, 1e-2, 1e-1]
    found = []
    made: list[Any] = []

    def model_init() -> nn.Module:
        model = gpt2()
        made.append(weakref.ref(model))
        return model

    for autobyte in (False, True):
        made.clear()
        arguments = TrainingArguments(
            f"{folder}/{autobyte}", use_cpu=True, max_steps=3, save_strategy="no", report_to="none", disable_tqdm=True
        )
        trainer = Trainer(args=arguments, train_dataset=rows, eval_dataset=rows[:8], model_init=model_init)
        if autobyte:
            attach(trainer)
        best = trainer.hyperparameter_search(
            lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", rates)},
            n_trials=3,
            backend="optuna",
            sampler=optuna.samplers.GridSampler({"learning_rate": rates}),  # both try all three
        )
        gc.collect()
        alive = [each for each in made[:-1] if each() is not None]
        assert not alive, f"{len(alive)} of {len(made)}, autobyte={autobyte}"
        found += [] if best is None else [best.objective]
    return found


def test_a_trial_of_a_search_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    by_ddp, ours = on_ranks(searches, 2, str(tmp_path), timeout_s=200, imports=IMPORTS)[0]
    assert ours == pytest.approx(by_ddp, rel=1e-3)
