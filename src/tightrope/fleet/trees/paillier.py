"""Additions on encrypted derivatives: Paillier, with keys and decryption of `phe` and numbers of `gmpy2`.

Idea        A ciphertext's product is the sum of plaintexts. First and second derivative of a row share one
            plaintext, side by side; of the answers, many pairs share one. What blinds a ciphertext is a power
            of one fixed residue with an exponent of half the key's length, by a table of its powers.
Source      Paillier (1999); Damgard, Jurik and Nielsen (2010), section 4.2: the short exponent; SecureBoost
            (2021).
Guarantee   Sums are exact integers. Keys have 2048 bits or more, primes are 3 modulo 4 as the short exponent
            needs, and all randomness is the system's.
Complexity  128 products modulo n^2 per encryption, one per addition.
Gaps        Ciphertexts are malleable, and nothing proves that a party adds what it should.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tightrope.core.errors import TightropeError
from tightrope.core.units import Bytes, shown

LEAST_BITS: Final = 2048
_WINDOW: Final = 8


@dataclass(frozen=True, slots=True)
class PaillierPublic:
    """What the holder of columns needs.

    Attributes:
        modulus: n, as a gmpy2 integer.
        square: n^2.
        pair_bits: bits of one pair of sums in a plaintext.
        second_bits: of those, the bits of the second derivatives.
    """

    modulus: Any
    square: Any
    pair_bits: int
    second_bits: int

    @property
    def size(self) -> Bytes:
        """Bytes of one ciphertext."""
        return int(self.square.bit_length() + 7) // 8

    @property
    def pairs(self) -> int:
        """Pairs of sums that fit into one plaintext."""
        return (int(self.modulus.bit_length()) - 2) // self.pair_bits

    def pack(self, ciphertexts: Sequence[Any]) -> Any:
        """Put sums side by side into one ciphertext, the first one highest."""
        import gmpy2

        shift, packed = gmpy2.mpz(1) << self.pair_bits, ciphertexts[0]
        for one in ciphertexts[1:]:
            packed = gmpy2.powmod(packed, shift, self.square) * one % self.square
        return packed


@dataclass(frozen=True, slots=True)
class PaillierKey:
    """What the holder of labels keeps.

    Attributes:
        public: the half that others get.
        offset: added to first derivatives, so that they are not negative.
    """

    public: PaillierPublic
    offset: int
    _private: Any
    _table: tuple[tuple[Any, ...], ...]

    def encrypt(self, first: int, second: int) -> Any:
        """Encrypt the derivatives of a row, whole numbers."""
        public = self.public
        plain = ((first + self.offset) << public.second_bits) + second
        blind, exponent = 1, secrets.randbits(_WINDOW * len(self._table))
        for row in self._table:
            digit = exponent & (2**_WINDOW - 1)
            exponent >>= _WINDOW
            if digit:
                blind = blind * row[digit] % public.square
        return (1 + public.modulus * plain) * blind % public.square

    def decrypt(self, packed: Any, counts: Sequence[int]) -> list[tuple[int, int]]:
        """Decrypt sums that were packed; ``counts`` are their rows, for the offset."""
        public, pairs = self.public, []
        plain = int(self._private.raw_decrypt(int(packed)))
        for count in reversed(counts):
            pair = plain & ((1 << public.pair_bits) - 1)
            plain >>= public.pair_bits
            first, second = pair >> public.second_bits, pair & ((1 << public.second_bits) - 1)
            pairs.append((first - count * self.offset, second))
        return pairs[::-1]


def make_key(bits: int, *, fraction: int, largest: float, num_rows: int) -> PaillierKey:
    """Make a key for sums over at most ``num_rows`` rows.

    Args:
        bits: of the modulus, at least 2048.
        fraction: bits behind the point of derivatives.
        largest: bound on their size.
        num_rows: of the table.

    Raises:
        TightropeError: the key is too short, or `phe` or `gmpy2` is not installed.
    """
    if bits < LEAST_BITS:
        raise TightropeError(f"a key of {shown(bits)} bits can be broken: give {LEAST_BITS} or more.")
    try:
        import gmpy2
        from phe import paillier
    except ImportError as error:
        raise TightropeError(
            "encrypted histograms need the packages phe and gmpy2: pip install 'tightrope[fleet]', or choose "
            "protection none."
        ) from error
    while True:
        public, private = paillier.generate_paillier_keypair(n_length=bits)
        if private.p % 4 == 3 == private.q % 4 and gmpy2.gcd(private.p - 1, private.q - 1) == 2:
            break
    n = gmpy2.mpz(public.n)
    square, rows = n * n, num_rows.bit_length()
    offset = int(largest * 2**fraction) + 1
    second_bits = offset.bit_length() + rows
    x = gmpy2.mpz(secrets.randbelow(int(n) - 2) + 2)
    base, table = gmpy2.powmod(-x * x % n, n, square), []
    for _ in range(bits // 2 // _WINDOW):
        row = [gmpy2.mpz(1)]
        for _ in range(2**_WINDOW - 1):
            row.append(row[-1] * base % square)
        table.append(tuple(row))
        base = row[-1] * base % square
    return PaillierKey(
        PaillierPublic(n, square, 2 * second_bits + 1, second_bits), offset, private, tuple(table)
    )
