"""The Trainer of Hugging Face's transformers, and all of its subclasses."""

from functools import partial
from typing import Any

from autobyte.errors import InputError, needs
from autobyte.integrations import accelerate
from autobyte.integrations.versions import check_version

with needs("transformers", what="training with a Trainer of transformers"):
    from transformers import Trainer


def attach(trainer: Trainer, **keywords: Any) -> None:
    """Let a trainer's next `train()` go by AutoByte instead of DDP.

    >>> trainer = Trainer(model, arguments, train_dataset=texts)
    >>> attach(trainer, policy="auto")
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
    trainer.create_accelerator_and_postprocess = partial(_attach_again, type(trainer), trainer, keywords)


def _attach_again(kind: type[Trainer], trainer: Trainer, keywords: dict[str, Any]) -> None:
    """A search for hyper-parameters makes the accelerator anew for every trial."""
    kind.create_accelerator_and_postprocess(trainer)
    accelerate.attach(trainer.accelerator, **keywords)
