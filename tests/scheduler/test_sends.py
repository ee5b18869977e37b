"""What sends tell of links that crowd, against sums by hand."""

import numpy as np

from autobyte.scheduler.sends import half_of, mean_block, sends

NBYTES, SECONDS = np.array([4.0, 4.0, 1.0, 4.0]), np.array([1.0, 2.0, 9.0, 3.0])
IN_FLIGHT = np.array([4.0, 8.0, 9.0, 12.0])


def test_small_blocks_are_left_out_and_those_with_little_in_flight_summed_apart() -> None:
    every, light = sends(NBYTES, SECONDS, IN_FLIGHT, large=2.0, credit_bytes=16)
    assert every.tolist() == [3, 12, 6, 4 * 24]
    assert light.tolist() == [2, 8, 3, 4 * 12]  # 8 of 16 is half


def test_of_a_window_without_end_there_is_no_half() -> None:
    assert half_of(None) < 0
    assert not sends(NBYTES, SECONDS, IN_FLIGHT, large=2.0, credit_bytes=None)[1].any()


def test_without_blocks_all_is_zero() -> None:
    assert not sends(*np.empty((3, 0)), large=0.0, credit_bytes=16).any()


def test_the_mean_byte_travels_in_a_larger_block_than_the_mean_block() -> None:
    assert mean_block(np.array([1, 3])) == 2.5
    assert mean_block(np.array([], dtype=np.int64)) == 0.0
