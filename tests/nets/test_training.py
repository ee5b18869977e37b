"""A fit learns, splits by environment, goes on where it was killed; a choice is judged by its regret."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets.small import fitted, groups, truth

from autobyte.errors import FileError, InputError
from autobyte.features.schema import place
from autobyte.nets.dataset import Groups
from autobyte.nets.training import FitProgress, chosen, fit, predicted_s, scores, split


def test_a_fit_learns() -> None:
    losses: list[FitProgress] = []
    net, held = fit(groups(), variant="improved", epochs=6, progress=losses.append)
    assert losses[-1].loss < 0.6 * losses[0].loss
    assert len(held) == 10  # one environment
    error = np.abs(np.log(predicted_s(net, groups()) / groups().step_s))
    assert np.median(error) < 0.3


def test_no_environment_is_on_both_sides_of_the_split() -> None:
    learn, check = split(groups(), seed=1)
    assert not set(learn.environment) & set(check.environment)
    assert len(learn) + len(check) == len(groups())
    assert set(split(groups(), seed=1)[1].environment) == set(check.environment)
    with pytest.raises(InputError, match="at least 2 environments, one of them to validate on, got 1"):
        split(groups()[:10], seed=0)


def test_the_published_variant_learns_from_the_papers_environments_alone() -> None:
    _, held = fit(groups(), variant="paper", epochs=1)
    assert len(held.of_kind("paper")) == len(held)


class _KilledError(Exception):
    pass


def test_a_killed_fit_goes_on_and_comes_out_the_same(tmp_path: Path) -> None:
    path, epochs = tmp_path / "fit.npz", 2
    whole, _ = fit(groups(), variant="improved", epochs=epochs)

    def kill(now: FitProgress) -> None:
        if now.epoch == 1:
            raise _KilledError

    with pytest.raises(_KilledError):
        fit(groups(), variant="improved", epochs=epochs, checkpoint=path, progress=kill)
    seen: list[FitProgress] = []
    resumed, _ = fit(groups(), variant="improved", epochs=epochs, checkpoint=path, progress=seen.append)
    assert [now.epoch for now in seen] == [1]
    for a, b in zip(resumed.weights, whole.weights, strict=True):
        assert np.allclose(a, b, atol=1e-5)
    assert not path.exists()


def test_a_checkpoint_of_another_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"

    def kill(now: FitProgress) -> None:
        raise _KilledError if now.epoch else RuntimeError("the first epoch is kept after it is told")

    with pytest.raises(RuntimeError):
        fit(groups(), variant="paper", epochs=2, checkpoint=path, progress=kill)
    fit(groups(), variant="paper", epochs=1, checkpoint=path)
    with pytest.raises(_KilledError):
        fit(groups(), variant="paper", epochs=3, checkpoint=path, progress=_raise_after_one)
    with pytest.raises(FileError, match="is of another fit; delete it to begin anew"):
        fit(groups(), variant="paper", epochs=5, checkpoint=path)
    path.write_bytes(b"nothing")
    with pytest.raises(FileError, match="is damaged"):
        fit(groups(), variant="paper", epochs=3, checkpoint=path)


def _raise_after_one(now: FitProgress) -> None:
    if now.epoch == 1:
        raise _KilledError


def test_regret_is_of_the_config_that_would_be_chosen() -> None:
    """Two jobs of one architecture and three configs: by hand."""
    known = Groups.join([truth(), truth()])
    step_s = np.array([[1.0, 2.0, 4.0], [2.0, 1.0, 1.25]], dtype=np.float32)
    jobs = replace(known, step_s=step_s, floor_s=step_s[::-1], candidate=known.candidate[:, :3])
    figures = chosen(np.array([[3.0, 2.0, 9.0], [3.0, 9.0, 2.0]]), jobs)
    # chosen: 1 of the first (regret 1/2), 2 of the second (1 - 1/1.25); the best constant is 0 or 1: (0 + 1/2) / 2
    assert figures["regret"] == pytest.approx((0.5 + 0.2) / 2)
    assert figures["constant_regret"] == pytest.approx(0.25)
    assert figures["floor_regret"] == pytest.approx((0.5 + 0.5) / 2)
    assert figures["jobs_that_count"] == 1


def test_architectures_have_constants_of_their_own() -> None:
    known = Groups.join([truth(), truth()])
    static = known.static.copy()
    static[:, place("static", "ps")] = [0, 1]
    step_s = np.array([[1.0, 2.0], [2.0, 1.0]], dtype=np.float32)
    jobs = replace(known, static=static, step_s=step_s, floor_s=step_s, candidate=known.candidate[:, :2])
    assert chosen(step_s.astype(float), jobs)["constant_regret"] == 0


def test_scores_say_what_matters() -> None:
    figures: dict[str, Any] = scores(fitted()[0], truth())
    assert {"mape", "rank_correlation", "regret", "regret_p90", "constant_regret", "floor_regret"} <= set(figures)
    assert 0 <= figures["regret"] <= 1
    assert figures["rank_correlation"] > 0.3
