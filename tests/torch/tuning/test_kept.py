"""What was found is kept, and used again for the same job on the same link."""

import re
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import on_ranks
from tuned import CONFIGS, adam, beside_ddp, make_model

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import FileError
from autobyte.torch.exchange.control import CommunicationError
from autobyte.torch.tuning.kept import Fingerprint, Kept


def test_what_was_found_is_used_next_time(tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"
    on_ranks(_found, 2, str(keep))
    text = keep.read_text()
    assert text.startswith("# AutoByte")
    elsewhere = re.sub(r"(?<=partition_bytes = )\d+", "20000", text)  # neither the default nor what is tried
    keep.write_text(elsewhere.replace("gigabit_per_s = ", "gigabit_per_s = 1000"))  # 1000 times the link
    on_ranks(_other_link, 2, str(keep))
    keep.write_text(text.replace("workers = 2", "workers = 8"))
    on_ranks(_other_job, 2, str(keep))
    assert "workers = 8" in keep.read_text()  # another job's: it stays
    keep.write_text("something of the user's")
    on_ranks(_not_ours, 2, str(keep))
    assert keep.read_text() == "something of the user's"


def _found(rank: int, keep: str) -> None:
    beside_ddp(rank, tuner="script", budget=4, keep=keep)
    dist.barrier()
    kept = Kept.read(Path(keep))
    assert kept is not None
    model = make_model()
    optimizer = ab.DistributedOptimizer(adam(model), model, tuner="script", keep=keep)
    assert optimizer.training is not None
    assert optimizer.training.config == kept.config
    optimizer.close()


def _other_link(rank: int, keep: str) -> None:
    optimizer, used = beside_ddp(rank, tuner="script", budget=4, keep=keep)
    assert CONFIGS[1] in used  # tuned again
    report = optimizer.report()
    assert report is not None
    assert report.failure == ""
    if rank == 0:
        kept = Kept.read(Path(keep))
        assert kept is not None
        assert kept.config == report.config  # and written anew
        assert not kept.same_link(1e12)
        assert used[-1] == kept.config
    optimizer.close()


def _other_job(rank: int, keep: str) -> None:
    optimizer, used = beside_ddp(rank, tuner="script", budget=4, keep=keep)
    assert used[1:4] == CONFIGS
    optimizer.close()


def _not_ours(rank: int, keep: str) -> None:
    model = make_model()
    with pytest.raises(CommunicationError, match="name another file with keep="):
        ab.DistributedOptimizer(adam(model), model, tuner="script", keep=keep)


def test_kept_file_says_what_it_is_for(tmp_path: Path) -> None:
    job = Fingerprint("Net", "3fa2", 4, "allreduce", "as they are", "bytescheduler")
    kept = Kept(job, 1.2e8, Config(1 << 20, 4 << 20, knobs={"fusion": 1}), "random", 20, 0.7, 0.75)
    path = tmp_path / "kept.toml"
    assert Kept.read(path) is None
    kept.write(path)
    again = Kept.read(path)
    assert again is not None
    assert (again.job, again.config) == (kept.job, kept.config)
    assert again.same_link(1.4e8)
    assert not again.same_link(1.2e7)
    other = Kept(
        Fingerprint("Net", "3fa2", 8, "ps", "as they are", "bytescheduler"), 1e8, kept.config, "x", 1, 1.0, 1.0
    )
    with pytest.raises(FileError, match="workers is 8, not 4, engine is ps, not allreduce"):
        other.write(path)
