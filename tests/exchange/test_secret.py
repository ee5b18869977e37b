"""What only who knows the secret can say."""

import os

import pytest

from autobyte.exchange.secret import VARIABLE, mark, proof, proves, signed, unsigned


def test_a_proof_holds_for_its_parts_and_its_secret_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "known to the ranks")
    shown, message = proof(b"worker", b"12"), signed("rank 1 has failed")
    assert proves(shown, b"worker", b"12")
    assert not proves(shown, b"worker1", b"2")  # the same bytes, cut elsewhere
    assert not proves(shown[:-1], b"worker", b"12")
    assert unsigned(message) == "rank 1 has failed"
    assert unsigned(message[:-1]) is None
    assert unsigned(b"") is None
    here = mark()
    monkeypatch.setenv(VARIABLE, "guessed")
    assert not proves(shown, b"worker", b"12")
    assert unsigned(message) is None
    assert mark() not in (here, "unset")
    monkeypatch.delenv(VARIABLE)
    assert unsigned(message) is None
    assert mark() == "unset"


def test_secrets_and_messages_of_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, os.fsdecode(b"\xff\xfe"))
    assert unsigned(signed("rank 1 has failed")) == "rank 1 has failed"
    assert mark() != "unset"
    monkeypatch.delenv(VARIABLE)
    stranger = b"\xff"  # who knows that there is no secret
    assert unsigned(proof(b"message", stranger).hex().encode() + stranger) == "\N{REPLACEMENT CHARACTER}"
