"""Add the vectors of several parties so that only the sum is seen.

Idea        Every pair of parties agrees on a key; from it both expand one 64-bit word per element, which one
            adds and the other subtracts. Sums in Z_2^64 are exact, so the masks cancel to the last bit, and
            the sum of fixed-point numbers is the same for any number of parties. With recovery every party
            also adds a mask of its own and gives the others Shamir shares of both secrets: of a party that is
            gone, the pair secret is put together and its masks are taken out; of the others, their own mask.
Source      Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017).
Guarantee   Against an honest but curious server: what it sees of one party is uniform in Z_2^64, whatever the
            data. With recovery, any ``threshold`` parties suffice, and nobody helps to open both masks of one
            party. Keys come from X25519, words from ChaCha20 and shares travel under ChaCha20-Poly1305, all
            of the library `cryptography`. Secrets come from the system's generator, so messages differ from
            run to run; sums do not.
Complexity  Per party and sum: one word per element and peer.
Gaps        Parties are objects of this process: no network, no certificates of who is who, no active
            attackers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.core.units import shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Words: TypeAlias = NDArray[np.uint64]
Share: TypeAlias = tuple[int, int]

SCALE: Final = 32
"""Bits behind the point of a fixed-point number."""
_PRIME: Final = 2**521 - 1
_OWN: Final = "own"


class PartyGoneError(TightropeError):
    """A party stopped answering and the sum was given up; nothing of it is kept.

    Attributes:
        party: its name.
    """

    def __init__(self, message: str, *, party: str) -> None:
        super().__init__(message)
        self.party = party


def to_words(values: NDArray[np.float64], *, bits: int = SCALE) -> Words:
    """Round numbers to fixed point and write them as words of the ring, negative ones modulo 2^64.

    Raises:
        TightropeError: a value is not finite or too large for 62 bits.

    >>> from_words(to_words(np.array([-1.5, 0.25]))).tolist()
    [-1.5, 0.25]
    """
    scaled = np.rint(np.asarray(values, np.float64) * 2.0**bits)
    if not np.isfinite(scaled).all() or (scaled.size and np.abs(scaled).max() >= 2.0**62):
        raise TightropeError(
            f"a value does not fit into fixed point with {bits} bits behind the point: give finite values "
            f"below 2^{62 - bits}."
        )
    return scaled.astype(np.int64).view(np.uint64)


def from_words(words: Words, *, bits: int = SCALE) -> NDArray[np.float64]:
    """Read words of the ring as numbers."""
    return words.view(np.int64) / 2.0**bits


def plain_sum(vectors: Iterable[Words]) -> Words:
    """Add vectors modulo 2^64 in the clear.

    >>> plain_sum([np.array([1], np.uint64), np.array([2**64 - 1], np.uint64)]).tolist()
    [0]
    """
    total: Words | None = None
    for vector in vectors:
        total = vector.copy() if total is None else np.add(total, vector, out=total)
    if total is None:
        raise TightropeError("no party answered: there is nothing to add.")
    return total


@dataclass(slots=True)
class SecureMember:
    """One party's side: its keys, its masks, and its shares of what the others hide.

    Attributes:
        name: who it is.
        recover: whether a mask of its own is added, so that the sum survives parties that go.
    """

    name: str
    recover: bool = False
    _key: X25519PrivateKey | None = None
    _own: bytes = b""
    _order: tuple[str, ...] = ()
    _pairs: dict[str, bytes] = field(default_factory=dict)
    _shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    _opened: dict[str, str] = field(default_factory=dict)
    _round: int = -1

    def public(self) -> bytes:
        """Make a key pair and return the public half, 32 bytes."""
        x25519, _, _ = _library()
        self._key, self._own = x25519.X25519PrivateKey.generate(), secrets.token_bytes(32)
        return bytes(self._key.public_key().public_bytes_raw())

    def meet(self, publics: Mapping[str, bytes]) -> None:
        """Agree with every other party on a key."""
        if self._key is None:
            raise TightropeError(f"party {self.name!r} has no key yet: call public() first.")
        self._order = tuple(publics)
        for other, key in publics.items():
            if other != self.name:
                self._pairs[other] = _agree(self._key, key, self.name, other)

    def shares(self, threshold: int) -> dict[str, bytes]:
        """Split both secrets, one sealed envelope per party, itself included."""
        if self._key is None:
            raise TightropeError(f"party {self.name!r} has no key yet: call public() first.")
        others = self._order
        pair = split_secret(self._key.private_bytes_raw(), len(others), threshold)
        own = split_secret(self._own, len(others), threshold)
        envelopes = {}
        for place, other in enumerate(others):
            text = b"".join(part[1].to_bytes(66, "big") for part in (pair[place], own[place]))
            envelopes[other] = text if other == self.name else _seal(self._pairs[other], self.name, text)
        return envelopes

    def take(self, sender: str, envelope: bytes) -> None:
        """Keep the share of another party's secrets."""
        text = envelope if sender == self.name else _open(self._pairs[sender], sender, envelope)
        place = self._order.index(self.name) + 1
        self._shares[sender, "pair"] = (place, int.from_bytes(text[:66], "big"))
        self._shares[sender, _OWN] = (place, int.from_bytes(text[66:], "big"))

    def mask(self, vector: Words, *, round_: int = 0) -> Words:
        """Hide a vector: what is returned may be sent.

        Raises:
            TightropeError: the round was masked before, or it is not the only one where parties may go.
        """
        if round_ <= self._round or (self.recover and round_ > 0):
            why = "one sum per agreement where parties may go" * self.recover or "masks are never used twice"
            raise TightropeError(f"round {round_} of party {self.name!r}: {why}; agree anew.")
        self._round = round_
        hidden = vector.copy()
        mine = self._order.index(self.name)
        for place, other in enumerate(self._order):
            if other != self.name:
                words = expand(self._pairs[other], vector.size, round_).reshape(vector.shape)
                (np.add if place > mine else np.subtract)(hidden, words, out=hidden)
        if self.recover:
            np.add(hidden, expand(self._own, vector.size, round_).reshape(vector.shape), out=hidden)
        return hidden

    def reveal(self, of: str, what: str) -> Share:
        """Hand the server this party's share of a secret: ``own`` of one that answered, ``pair`` of one gone.

        Raises:
            TightropeError: the other kind was given before: both together would open that party's vector.
        """
        if self._opened.setdefault(of, what) != what:
            raise TightropeError(
                f"party {self.name!r} gave its {self._opened[of]} share of {of!r} and will not give the "
                f"{what} share too. Both together open what {of!r} sent."
            )
        return self._shares[of, what]


@dataclass(frozen=True, slots=True)
class SecureGroup:
    """Parties that agreed on keys, and the server's side of their sums.

    Attributes:
        members: the parties, in order.
        publics: their public keys.
        threshold: how many have to stay; 0 without recovery, where all have to.
    """

    members: tuple[SecureMember, ...]
    publics: dict[str, bytes]
    threshold: int

    def total(self, messages: Mapping[str, Words], *, round_: int = 0) -> Words:
        """Add what arrived and take out the masks.

        Args:
            messages: masked vectors by party; those that are missing are gone.
            round_: number of the sum since the agreement.

        Raises:
            PartyGoneError: somebody is gone and cannot be done without.
        """
        names = [member.name for member in self.members]
        gone = [name for name in names if name not in messages]
        if gone and (not self.threshold or len(names) - len(gone) < self.threshold):
            need = f"{self.threshold} of {len(names)} have to answer" if self.threshold else "all have to"
            raise PartyGoneError(
                f"party {gone[0]!r} does not answer in round {round_}: {len(messages)} of {len(names)} "
                "did and "
                f"{need}. Start again without it, or agree with recover=True and a lower threshold.",
                party=gone[0],
            )
        total = plain_sum(messages.values())
        if not self.threshold:
            return total
        here = [member for member in self.members if member.name in messages][: self.threshold]
        for name in messages:
            seed = join_secret([member.reveal(name, _OWN) for member in here])
            total -= expand(seed, total.size, round_).reshape(total.shape)
        for name in gone:
            self._without(
                name, join_secret([member.reveal(name, "pair") for member in here]), messages, total
            )
        return total

    def _without(self, name: str, secret: bytes, messages: Mapping[str, Words], total: Words) -> None:
        """Take the masks out that the others added for one that is gone."""
        x25519, _, _ = _library()
        key = x25519.X25519PrivateKey.from_private_bytes(secret)
        order = list(self.publics)
        for other in messages:
            words = expand(_agree(key, self.publics[other], name, other), total.size, 0).reshape(total.shape)
            (np.subtract if order.index(name) > order.index(other) else np.add)(total, words, out=total)


def agree(names: Sequence[str], *, recover: bool = False, threshold: int | None = None) -> SecureGroup:
    """Let parties agree on keys, and with ``recover`` on shares of their secrets.

    Args:
        names: who takes part, at least two.
        recover: go on where parties stop answering; then one agreement serves one sum.
        threshold: how many suffice; default: more than two thirds.

    Raises:
        TightropeError: fewer than two parties, equal names, a threshold that keeps nothing secret, or
            `cryptography` is not installed.

    Example:
        >>> group = agree(["a", "b", "c"], recover=True, threshold=2)
        >>> sent = {m.name: m.mask(to_words(np.array([1.5]))) for m in group.members}
        >>> del sent["b"]
        >>> from_words(group.total(sent)).tolist()
        [3.0]
    """
    if len(names) < 2 or len(set(names)) != len(names):
        raise TightropeError(
            f"parties {shown(list(names))}: a secure sum takes two or more, of different names."
        )
    most = len(names) * 2 // 3 + 1 if threshold is None else threshold
    if recover and not len(names) // 2 < most <= len(names):
        raise TightropeError(
            f"threshold={most}: with {len(names)} parties give {len(names) // 2 + 1} to {len(names)}; "
            "half of them "
            "could otherwise open what another one sent."
        )
    members = tuple(SecureMember(name, recover) for name in names)
    publics = {member.name: member.public() for member in members}
    for member in members:
        member.meet(publics)
    if recover:
        for member in members:
            for receiver, envelope in member.shares(most).items():
                members[names.index(receiver)].take(member.name, envelope)
    return SecureGroup(members, publics, most if recover else 0)


def expand(seed: bytes, size: int, round_: int) -> Words:
    """Expand a 32-byte seed to words by ChaCha20; the nonce is the round."""
    _, ciphers, _ = _library()
    nonce = bytes(4) + round_.to_bytes(12, "little")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(seed, nonce), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), np.uint64)


def split_secret(secret: bytes, num_shares: int, threshold: int) -> list[Share]:
    """Split a secret of at most 64 bytes so that ``threshold`` shares give it back and fewer tell nothing.

    >>> join_secret(split_secret(b"k" * 32, 5, 3)[1:4]) == b"k" * 32
    True
    """
    terms = [int.from_bytes(secret, "big"), *(secrets.randbelow(_PRIME) for _ in range(threshold - 1))]
    shares = []
    for x in range(1, num_shares + 1):
        y = 0
        for term in reversed(terms):
            y = (y * x + term) % _PRIME
        shares.append((x, y))
    return shares


def join_secret(shares: Sequence[Share]) -> bytes:
    """Interpolate a secret of 32 bytes from its shares."""
    total = 0
    for x, y in shares:
        top, bottom = 1, 1
        for other, _ in shares:
            if other != x:
                top, bottom = top * -other % _PRIME, bottom * (x - other) % _PRIME
        total = (total + y * top * pow(bottom, -1, _PRIME)) % _PRIME
    return (total % 2**256).to_bytes(32, "big")


def _agree(key: X25519PrivateKey, public: bytes, one: str, other: str) -> bytes:
    x25519, _, kdf = _library()
    from cryptography.hazmat.primitives.hashes import SHA256

    secret = key.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    about = "\0".join(("tightrope secure sum", *sorted((one, other)))).encode()
    return bytes(kdf.HKDF(algorithm=SHA256(), length=32, salt=None, info=about).derive(secret))


def _seal(key: bytes, sender: str, text: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, sender.encode())


def _open(key: bytes, sender: str, envelope: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(envelope[:12], envelope[12:], sender.encode())
    except InvalidTag as error:
        raise TightropeError(
            f"the share of party {sender!r} did not arrive as it was sent: agree anew."
        ) from error


def _library() -> tuple[Any, Any, Any]:
    try:
        from cryptography.hazmat.primitives import ciphers
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError as error:
        raise TightropeError(
            "secure sums need the package cryptography: pip install 'tightrope-fleet[secure]', or choose "
            "protection none."
        ) from error
    return x25519, ciphers, hkdf
