"""What travels over UDP: a hello and its welcome, data, acknowledgements, an end and its receipt.

Every message starts with four letters and the number of its transfer, which the sender draws at random. Integers are
big-endian. Data is as long as a packet on the link, so that links count alike here and in the simulator.
"""

import struct

from autobyte.congestion.paths import PACKET_BYTES

HEAD = struct.Struct("!4sQ")
HELLO, WELCOME, DATA, ACK, END, RECEIPT = b"MCh1", b"MCw1", b"MCd1", b"MCa1", b"MCe1", b"MCr1"
DATA_HEAD = struct.Struct("!4sQQQ")  # kind, transfer, number of the packet, place of its chunk
TOTAL = struct.Struct("!4sQQQ")  # of an end: chunks and bytes in all; of a receipt: bytes and packets that came twice
UDP_IP_BYTES = 28  # headers below ours
PACKET = PACKET_BYTES - UDP_IP_BYTES  # bytes of a full message
CHUNK = PACKET - DATA_HEAD.size  # that it carries
MOST_ACKS = 128  # packets that one acknowledgement names


def acknowledgement(transfer: int, numbers: list[int]) -> bytes:
    """Acknowledge packets by their numbers."""
    return struct.pack(f"!4sQ{len(numbers)}Q", ACK, transfer, *numbers)


def acknowledged(message: bytes) -> tuple[int, ...]:
    """Numbers that an acknowledgement names; empty if it was cut."""
    body = len(message) - HEAD.size
    return struct.unpack_from(f"!{body // 8}Q", message, HEAD.size) if body > 0 and body % 8 == 0 else ()


def headed(message: bytes | memoryview) -> tuple[bytes, int]:
    """Kind and transfer; an empty kind if the message is too short to have one."""
    return HEAD.unpack_from(message) if len(message) >= HEAD.size else (b"", 0)
