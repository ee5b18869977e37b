"""Fit the network before any job runs, and say how good it is at what it is for: choosing.

Loss: L2 (AutoByte, eq. 2). Splits are by environment, never by sample; models, bandwidths and numbers of workers that
no training sample has are held out altogether.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autobyte.errors import InputError
from autobyte.features.schema import place
from autobyte.nets.backend import arrays, keras, modestly
from autobyte.nets.checkpoint import Checkpoint
from autobyte.nets.dataset import Groups
from autobyte.nets.metanet import VARIANTS, MetaNet, Scale
from autobyte.nets.stored import Rehearsal

Floats = npt.NDArray[np.float64]

BATCH, RATE, PATIENCE, VALIDATION = 64, 2e-3, 8, 0.1
OUTLIER = 1.5  # |log(step / floor)| beyond which a sample says little about which config is best
COMMON = 0.1  # what all configs of a state share weighs little: a running job shows it in its first window
NEAR, FAR = 0.3, 0.1  # the improved network is to be right about good configs: what bad ones weigh, and how bad


@dataclass(frozen=True)
class FitProgress:
    """An epoch: its number, and the loss on both sides of the split."""

    epoch: int
    loss: float
    validation: float


def fit(
    groups: Groups,
    *,
    variant: str,
    epochs: int = 60,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Callable[[FitProgress], None] = lambda progress: None,
) -> tuple[MetaNet, Groups]:
    """Fit a network with early stopping.

    Args:
        groups: to learn from; the `paper` variant learns from the paper's own environments and measured ones alone.
        variant: `paper` or `improved`.
        epochs: at most.
        seed: of the split, of the order, and of the weights to begin with.
        checkpoint: file to go on from, and to keep after every epoch.
        progress: called after every epoch.

    Returns:
        the network at its best epoch, and the groups that it was validated on.

    Raises:
        InputError: fewer than two environments, or an unknown variant.
        FileError: a checkpoint of another fit.
    """
    if variant == "paper":
        groups = groups.of_kind("paper", "published", "measured")
    learn, check = split(groups, seed=seed)
    run = _Fit(MetaNet(variant, scale_of(learn, variant), seed=seed), learn, epochs=epochs, seed=seed)
    kept = Checkpoint(checkpoint, {"variant": variant, "epochs": epochs, "seed": seed, "data": groups.digest})
    where = kept.find()
    if where is not None:
        run.restore(*where)
    known, wanted, counted = _arrays(run.net, check)
    judge = _loss(run.net)
    while run.epoch < epochs and run.waited < PATIENCE:
        with modestly(learning=True):
            loss = run.step()
        with modestly(learning=False):
            predicted = run.combined.predict_on_batch(known).mean(axis=-1, keepdims=True)
            off = float(
                keras().ops.mean(judge(*map(keras().ops.convert_to_tensor, (_both(wanted, counted), predicted))))
            )
        progress(FitProgress(run.epoch, loss, off))
        run.note(off)
        numbers, lists = run.where
        kept.keep(numbers, **lists)
    run.net.weights = run.best
    kept.drop()
    return run.net, check


class _Fit:
    """A fit between two epochs: everything that a checkpoint holds."""

    def __init__(self, net: MetaNet, learn: Groups, *, epochs: int, seed: int) -> None:
        self.net = net
        self.combined = _combined(net)
        self.epoch, self.waited, self.least = 0, 0, np.inf
        self.best = net.weights
        self._seed = seed
        self._data = _arrays(net, learn)
        self._batches = max(1, len(learn) // BATCH)
        decay = keras().optimizers.schedules.CosineDecay(RATE, self._batches * epochs)
        self._optimizer = keras().optimizers.Adam(decay)
        self._optimizer.build(self.combined.trainable_variables)
        self.combined.compile(optimizer=self._optimizer, loss=_loss(net))

    def step(self) -> float:
        """One epoch, in an order of its own; its mean loss."""
        inputs, target, weight = self._data
        order = np.random.default_rng([self._seed, self.epoch]).permutation(len(target))
        losses = [
            self.combined.train_on_batch([part[rows] for part in inputs], _both(target[rows], weight[rows]))
            for rows in np.array_split(order, self._batches)
        ]
        return float(np.mean([float(loss) for loss in losses]))

    def note(self, off: float) -> None:
        """Keep the network if it is the best so far on the other side of the split."""
        self.epoch += 1
        self.waited += 1
        if off < self.least:
            self.least, self.waited, self.best = off, 0, self.net.weights

    @property
    def where(self) -> tuple[dict[str, float], dict[str, list[Any]]]:
        """What `restore` takes."""
        numbers = {"epoch": self.epoch, "waited": self.waited, "least": self.least}
        state = arrays(self._optimizer.variables)
        return numbers, {"now": list(self.net.weights), "best": list(self.best), "optimizer": state}

    def restore(self, numbers: dict[str, float], lists: dict[str, list[Any]]) -> None:
        """Go on from there."""
        self.epoch, self.waited, self.least = int(numbers["epoch"]), int(numbers["waited"]), numbers["least"]
        self.net.weights, self.best = lists["now"], lists["best"]
        for variable, values in zip(self._optimizer.variables, lists["optimizer"], strict=True):
            variable.assign(values)


def split(groups: Groups, *, seed: int) -> tuple[Groups, Groups]:
    """A tenth of the environments to validate on, the others to learn from.

    Raises:
        InputError: fewer than two environments.
    """
    known = np.unique(groups.environment)
    if len(known) < 2:
        raise InputError(f"a fit needs at least 2 environments, one of them to validate on, got {len(known)}")
    count = max(1, round(VALIDATION * len(known)))
    held = np.random.default_rng([seed, 7]).choice(known, count, replace=False)
    inside = np.isin(groups.environment, held)
    return groups[~inside], groups[inside]


def scale_of(groups: Groups, variant: str) -> Scale:
    """Mean and deviation of every chosen column."""
    choice, there = VARIANTS[variant].choice, np.isfinite(groups.step_s)
    columns = {
        "layer": groups.layer[groups.layer[..., place("layer", "present")] > 0],
        "bandwidth": groups.bandwidth,
        "static": groups.static,
        "candidate": groups.candidate[there],
    }
    chosen = {group: values[:, choice.places(group)] for group, values in columns.items()}
    speed = (groups.samples[:, None] / groups.step_s)[there]
    return Scale(
        {group: values.mean(axis=0) for group, values in chosen.items()},
        {group: np.maximum(values.std(axis=0), 1e-3) for group, values in chosen.items()},
        (float(speed.mean()), float(speed.std())),
    )


def _combined(net: MetaNet) -> Any:
    """All members as one Keras model of [layer, bandwidth, static, candidates]; puts out [., configs, members]."""
    k = keras()
    inputs = [k.Input(tensor.shape[1:]) for tensor in (*net.encoders[0].inputs, net.heads[0].inputs[1])]
    pairs = zip(net.encoders, net.heads, strict=True)
    outputs = [head([encoder(inputs[:3]), inputs[3]]) for encoder, head in pairs]
    return k.Model(inputs, k.layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0])


def _arrays(net: MetaNet, groups: Groups) -> tuple[list[Any], Any, Any]:
    """Inputs, target [G, K, 1] and weight [G, K] of groups."""
    there = np.isfinite(groups.step_s)
    step_s = np.where(there, groups.step_s, groups.floor_s)
    target = net.target(step_s, groups.floor_s, groups.samples[:, None])
    if not net.variant.speed:
        target = np.clip(target, -OUTLIER, OUTLIER)
    inputs = [net.scored(name, getattr(groups, name)) for name in ("layer", "bandwidth", "static", "candidate")]
    weight = there.astype(np.float32)
    if not net.variant.speed:
        best_s = np.nanmin(groups.step_s, axis=1, keepdims=True)
        weight *= FAR + (1 - FAR) * np.exp(-np.log(step_s / best_s) / NEAR)
    return inputs, target[..., None], weight


def _both(target: Any, weight: Any) -> Any:
    """Target and weight as the loss takes them, shape [G, K, 2]."""
    return np.concatenate([target, weight[..., None]], axis=-1)


def _loss(net: MetaNet) -> Callable[[Any, Any], Any]:
    """L2 (AutoByte, eq. 2), the mean over members; of the improved network, what all configs of a state share apart.

    Which config is best does not depend on that part, and most of it cannot be known after one window. Members
    share nothing but batches: each learns as if it were alone.
    """
    ops, common = keras().ops, 1.0 if net.variant.speed else COMMON

    def loss(wanted: Any, predicted: Any) -> Any:
        weight, off = wanted[..., 1:], predicted - wanted[..., :1]  # [G, K, 1], [G, K, members]
        total = ops.sum(weight, axis=1) + 1e-6
        mean = ops.sum(weight * off, axis=1) / total
        apart = ops.sum(weight * (off - mean[:, None]) ** 2, axis=1)
        return (apart + common * total * mean**2) / ops.mean(total)

    return loss


def replay_of(net: MetaNet, groups: Groups, *, count: int = 256, seed: int = 0) -> Rehearsal:
    """Some of the groups, encoded, for adaptation to mix in."""
    some = groups[np.random.default_rng(seed).choice(len(groups), min(count, len(groups)), replace=False)]
    inputs, target, weight = _arrays(net, some)
    codes = [np.asarray(encoder.predict_on_batch(inputs[:3])) for encoder in net.encoders]
    return Rehearsal(np.concatenate(codes, axis=-1), inputs[3], target[..., 0], weight)


def predicted_s(net: MetaNet, groups: Groups) -> Floats:
    """Predicted step times (s), shape [G, K]."""
    inputs, _, _ = _arrays(net, groups)
    parts = [
        _combined(net).predict_on_batch([part[rows] for part in inputs]).mean(axis=-1)
        for rows in np.array_split(np.arange(len(groups)), -(-len(groups) // 256))
    ]
    return net.seconds(np.concatenate(parts).astype(np.float64), groups.floor_s, groups.samples[:, None])


def scores(net: MetaNet, truth: Groups) -> dict[str, float]:
    """How good a network is.

    Args:
        net: the network.
        truth: jobs with the noise-free step time of the whole grid.

    Returns:
        `errors`; and of what it would choose after one window under the default: `regret` in the median and at the
        90th percentile, beside that of the best constant in hindsight and of the closed form alone; `gap_closed`
        from that constant to the oracle, where it is at least 5 %.
    """
    predicted = predicted_s(net, truth)
    return errors(predicted, truth) | chosen(predicted, truth)


def errors(predicted: Floats, groups: Groups) -> dict[str, float]:
    """`mape` of predicted step times (s, [G, K]), and `rank_correlation` (Spearman's, within a state)."""
    there = np.isfinite(groups.step_s)
    error = np.abs(predicted / np.where(there, groups.step_s, 1.0) - 1)[there]
    ranks = [
        _spearman(predicted[g, there[g]], groups.step_s[g, there[g]])
        for g in range(len(groups))
        if there[g].sum() > 2
    ]
    return {"mape": float(error.mean()), "rank_correlation": float(np.nanmean(ranks))}


def chosen(said_s: Floats, truth: Groups) -> dict[str, float]:
    """Regret of the config of least predicted step time, beside the best constant's and the closed form's."""
    part = truth.step_s.min(axis=1, keepdims=True) / truth.step_s  # of the best speed, shape [G, K]
    servers = truth.static[:, place("static", "ps")] > 0
    constant = np.zeros(len(truth))
    for side in (servers, ~servers):  # the best constant knows the architecture
        if side.any():
            constant[side] = 1 - part[side][:, part[side].mean(axis=0).argmax()]
    each = np.arange(len(truth))
    regret = {
        "regret": 1 - part[each, said_s.argmin(axis=1)],
        "constant_regret": constant,
        "floor_regret": 1 - part[each, truth.floor_s.argmin(axis=1)],
    }
    counts = constant >= 0.05
    closed = 1 - regret["regret"][counts] / constant[counts]
    figures = {name: float(np.median(values)) for name, values in regret.items()}
    figures |= {f"{name}_p90": float(np.percentile(values, 90)) for name, values in regret.items()}
    figures |= {"jobs": float(len(truth)), "jobs_that_count": float(counts.sum())}
    return figures | ({"gap_closed": float(np.median(closed))} if counts.any() else {})


def _spearman(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Rank correlation; ties as they come."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.atleast_2d(np.corrcoef(np.array(ranks)))[0, 1])
