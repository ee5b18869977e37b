"""The Trainer of Hugging Face's transformers, and all of its subclasses."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from autobyte.errors import InputError, needs
from autobyte.integrations import accelerate
from autobyte.integrations.versions import check_version

with needs("transformers", what="training with a Trainer of transformers"):
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import IntervalStrategy

log = logging.getLogger("autobyte")


def attach(trainer: Trainer, **keywords: Any) -> None:
    """Let a trainer's next `train()` go by AutoByte instead of DDP.

    >>> trainer = Trainer(model, arguments, train_dataset=texts)
    >>> attach(trainer)
    >>> trainer.train()

    The arguments of the trainer stay: `gradient_accumulation_steps`, `max_grad_norm`, `bf16`, checkpoints, callbacks.
    Those that begin with `ddp_` are DDP's, and mean nothing here; unused parameters are always found.

    Args:
        trainer: a Trainer or a subclass, such as Seq2SeqTrainer, before `train()`.
        keywords: of `autobyte.torch.DistributedOptimizer`.

    Raises:
        InputError: the trainer moves gradients in another way, as DeepSpeed and FSDP do, or has begun to train.
    """
    check_version("transformers")
    if not isinstance(trainer, Trainer):
        raise InputError(f"attach() takes a Trainer of transformers, got {type(trainer).__name__}")
    if trainer.args.n_gpu > 1:
        raise InputError(f"one process has {trainer.args.n_gpu} GPUs here, as DataParallel: start it with torchrun")
    accelerate.attach(trainer.accelerator, **keywords)
    trainer.callback_handler.callbacks.insert(0, AveragesFirst(trainer))
    trainer.create_accelerator_and_postprocess = partial(_attach_again, type(trainer), trainer, keywords)
    own = getattr(trainer, "_get_grad_norm", None)
    if own is not None:  # else a newer version asks in another way, and half of the traffic crosses the step
        trainer._get_grad_norm = partial(_norm_to_log, trainer, own)


class AveragesFirst(TrainerCallback):
    """Comes before all callbacks: one that looks at gradients before the step finds averages.

    Args:
        trainer: has the callbacks.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._said = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Wait for the averages, if a callback has this hook."""
        name, own = "on_pre_optimizer_step", TrainerCallback.on_pre_optimizer_step
        others = (type(each) for each in self._trainer.callback_handler.callbacks if each is not self)
        looks = next((kind for kind in others if getattr(kind, name) is not own), None)
        if looks is None:
            return
        if not self._said and state.is_world_process_zero:
            log.info(
                "averages are waited for before step(), and do not cross it: %s.%s may read them",
                looks.__name__,
                name,
            )
        self._said = True
        self._trainer.optimizer.optimizer.synchronize()


def _norm_to_log(trainer: Trainer, own: Callable[..., Any], model: nn.Module, grad_norm: Any = None) -> Any:
    """The norm of gradients that are not clipped, if this step is logged: the others need not wait for it.

    Where any step may be logged, half of the traffic crosses every step, as with clipping.
    """
    strategy, every = trainer.args.logging_strategy, trainer.state.logging_steps
    if strategy == IntervalStrategy.STEPS and every == 1:
        return own(model, grad_norm=grad_norm)
    if grad_norm is None and strategy != IntervalStrategy.EPOCH:  # with which it is whichever step ends the epoch
        step = trainer.state.global_step + 1
        logs = strategy == IntervalStrategy.STEPS and step % every == 0
        if not (logs or (step == 1 and trainer.args.logging_first_step)):
            return None
        trainer.optimizer.optimizer.synchronize()  # so that gradients of other steps go on to travel whole
    return own(model, grad_norm=grad_norm)


def _attach_again(kind: type[Trainer], trainer: Trainer, keywords: dict[str, Any]) -> None:
    """A search for hyper-parameters makes the accelerator anew for every trial; what the last one trained ends."""
    trainer.accelerator.free_memory()
    kind.create_accelerator_and_postprocess(trainer)
    accelerate.attach(trainer.accelerator, **keywords)
