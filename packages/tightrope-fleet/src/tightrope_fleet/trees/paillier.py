"""Additions on encrypted derivatives: Paillier, on primes of `cryptography` and numbers of `gmpy2`.

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
class PrimeHalf:
    """Decrypts modulo one prime; two of them make the plaintext, four times as fast as at once.

    Attributes:
        prime: one of the two.
        square: of it.
        scale: what a power of a ciphertext is multiplied by.
    """

    prime: Any
    square: Any
    scale: Any

    @staticmethod
    def of(prime: Any, modulus: Any) -> "PrimeHalf":
        """Prepare."""
        import gmpy2

        square = prime * prime
        power = gmpy2.powmod(modulus + 1, prime - 1, square)
        return PrimeHalf(prime, square, gmpy2.invert((power - 1) // prime, prime))

    def decrypt(self, ciphertext: Any) -> Any:
        """Plaintext modulo the prime."""
        import gmpy2

        power = gmpy2.powmod(ciphertext, self.prime - 1, self.square)
        return (power - 1) // self.prime * self.scale % self.prime

    def inverse_in(self, other: Any) -> Any:
        """Inverse of the prime modulo another one."""
        import gmpy2

        return gmpy2.invert(self.prime, other)


@dataclass(frozen=True, slots=True)
class PaillierKey:
    """What the holder of labels keeps.

    Attributes:
        public: the half that others get.
        offset: added to first derivatives, so that they are not negative.
    """

    public: PaillierPublic
    offset: int
    _halves: tuple[PrimeHalf, PrimeHalf]
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
        one, other = self._halves
        low, high = one.decrypt(packed), other.decrypt(packed)
        plain = int(low + one.prime * ((high - low) * one.inverse_in(other.prime) % other.prime))
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
        TightropeError: the key is too short, or `cryptography` or `gmpy2` is not installed.
    """
    if bits < LEAST_BITS:
        raise TightropeError(f"a key of {shown(bits)} bits can be broken: give {LEAST_BITS} or more.")
    try:
        import gmpy2
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError as error:
        raise TightropeError(
            "encrypted histograms need the packages cryptography and gmpy2: pip install "
            "'tightrope-fleet[secure]', or choose protection none."
        ) from error
    while True:
        numbers = rsa.generate_private_key(public_exponent=65537, key_size=bits).private_numbers()
        p, q = gmpy2.mpz(numbers.p), gmpy2.mpz(numbers.q)
        if p % 4 == 3 == q % 4 and gmpy2.gcd(p - 1, q - 1) == 2:
            break
    n = p * q
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
    public = PaillierPublic(n, square, 2 * second_bits + 1, second_bits)
    return PaillierKey(public, offset, (PrimeHalf.of(p, n), PrimeHalf.of(q, n)), tuple(table))
