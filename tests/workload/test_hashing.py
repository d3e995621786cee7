from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.hashing import fraction, hash64, hash_key


def test_the_hash_is_splitmix64() -> None:
    # The first outputs of the authors' program for the seeds 0 and 1234567.
    assert [hash64(0, i) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [hash64(1234567, i) for i in range(2)] == [6457827717110365317, 3203168211198807973]


@given(st.integers(0, 2**64), st.integers(0, 2**70))
def test_a_fraction_is_at_least_0_and_below_1(key: int, index: int) -> None:
    assert 0 <= fraction(key, index) < 1


def test_a_key_depends_on_every_part_and_on_their_order() -> None:
    assert len({hash_key(), hash_key(0), hash_key(0, 0), hash_key(1, 2), hash_key(2, 1), hash_key(1)}) == 6
