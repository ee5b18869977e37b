"""Proofs that a peer knows this training's token and, where one is set, the secret that never leaves the ranks."""

import hashlib
import hmac
import os

VARIABLE = "AUTOBYTE_SECRET"
PROOF_BYTES = 32


def proof(*said: bytes) -> bytes:
    """What only who knows the secret can say of these parts; without a secret everybody can. 32 bytes."""
    parts = b"".join(len(part).to_bytes(4, "big") + part for part in said)
    return hmac.digest(_secret(), parts, "sha256")


def proves(offered: bytes, *said: bytes) -> bool:
    """Whether somebody else has said what `proof` would say."""
    return hmac.compare_digest(offered, proof(*said))


def mark() -> str:
    """Something that is the same on two ranks if their secrets are."""
    return hashlib.sha256(proof(b"mark")).hexdigest()[:8] if _secret() else "unset"


def signed(message: str) -> bytes:
    """A message for a store that others can reach, with the proof before it."""
    return proof(b"message", message.encode()).hex().encode() + message.encode()


def unsigned(text: bytes) -> str | None:
    """The message in what `signed` made, or None if somebody else wrote it."""
    offered, message = text[: 2 * PROOF_BYTES], text[2 * PROOF_BYTES :]
    genuine = hmac.compare_digest(offered, proof(b"message", message).hex().encode())
    return message.decode(errors="replace") if genuine else None


def _secret() -> bytes:
    return os.fsencode(os.environ.get(VARIABLE, ""))
