"""Windows of a training are recorded for a network to learn from."""

from pathlib import Path

import numpy as np
import torch.distributed as dist
from ranks import on_ranks
from tuned import beside_ddp

from autobyte.models.profile import Profile
from autobyte.nets.dataset import measured
from autobyte.results import Results


def _recorded(rank: int, folder: str) -> None:
    for number in range(2):
        optimizer, _ = beside_ddp(rank, steps=60, tuner="script" if number else None, keep=None, record=folder)
        optimizer.close()
        dist.barrier()


def test_windows_of_training_are_recorded_and_can_be_learned_from(tmp_path: Path) -> None:
    """Of two trainings of a job, one of them tuned; the folder takes no other job."""
    on_ranks(_recorded, 2, str(tmp_path / "seen"))
    model = Profile.load(tmp_path / "seen" / "model.json").model()
    with Results.read(tmp_path / "seen" / "results.sqlite") as results:
        trials = list(results.trials())
        windows = [results.find(tuner=each.tuner, seed=0, number=each.number) for each in trials]
    assert {each.tuner for each in trials} == {"none", "script"}
    assert sorted(each.number for each in trials) == list(range(len(trials)))
    assert len(trials) >= 4
    groups = measured(model, [window for window in windows if window is not None], number=0)
    assert np.isfinite(groups.step_s).sum() >= len({each.measurement.config for each in trials})


def _elsewhere(rank: int, folder: str) -> str:
    optimizer, _ = beside_ddp(rank, steps=30, keep=None, record=folder, policy="p3")
    optimizer.close()
    return "" if rank else Path(folder).read_text()


def test_where_windows_cannot_be_recorded_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert on_ranks(_elsewhere, 2, str(tmp_path / "file"))[0] == "mine"
