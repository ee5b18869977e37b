"""What was found is kept, and used again for the same job on the same link."""

import re
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import on_ranks
from tuned import CONFIGS, adam, beside_ddp, make_model

import autobyte.torch as ab
from autobyte.config import Config
from autobyte.errors import FileError
from autobyte.exchange.tuning.kept import Fingerprint, Kept


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
    optimizer = ab.DistributedOptimizer(adam(model), model, tuner="script", keep=keep)  # goes on without
    optimizer.close()


DAMAGED = {
    "empty": "",
    "cut": "schema = 3\n[job]\nmodel =",
    "capital letters": "schema = 3\n[config]\nknobs = { fusion = True }\n",
    "deep": "schema = 3\nx = " + "[" * 3000,
    "of another time": "# AutoByte\nschema = 99\n",
    "a number for a policy": "schema = 3\n[job]\n[link]\n[found]\n[config]\n"
    "partition_bytes = 1\ncredit_bytes = 1\npolicy = 16\n",
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_file_is_set_aside(how: str, tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"
    keep.write_text(DAMAGED[how])
    with pytest.raises(FileError):
        Kept.read(keep)
    assert Kept.set_aside(keep) == tmp_path / "kept.toml.damaged"
    assert Kept.read(keep) is None


@pytest.mark.parametrize("content", [b"[tool]\nname = 'of the user'\n", b"\xff\xfe\x00"])
def test_a_file_of_somebody_elses_stays(content: bytes, tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"
    keep.write_bytes(content)
    with pytest.raises(FileError):
        Kept.read(keep)
    assert Kept.set_aside(keep) is None
    assert keep.read_bytes() == content


def test_a_damaged_file_never_ends_training(tmp_path: Path) -> None:
    keep = tmp_path / "kept.toml"
    keep.write_text("schema = 3\n[job]\nmodel =")
    on_ranks(_not_ours, 2, str(keep))
    assert (tmp_path / "kept.toml.damaged").exists()


@given(
    st.text(max_size=20),
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_can_be_read(tmp_path: Path, name: str, knob: float) -> None:
    keep = tmp_path / "kept.toml"
    keep.unlink(missing_ok=True)
    job = Fingerprint(name, "3fa2", 4, "allreduce", "as they are", "bytescheduler")
    kept = Kept(job, 1.2e8, Config(1 << 20, 4 << 20, knobs={"fusion": knob}), name, 20, 0.7, 0.75)
    kept.write(keep)
    again = Kept.read(keep)
    assert again is not None
    assert (again.job, again.config, again.tuner) == (job, kept.config, name)


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
