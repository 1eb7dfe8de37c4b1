"""Seeded instance files, most of them broken in some way."""

import random
from collections.abc import Iterator

HUGE = ("0", "-1", "1", str(2**62), str(2**62 + 1), str(2**59), str(2**31), "9" * 30, "1.5", "x", "", " 7 ")
HEADERS = (
    "id,lower,upper,size",
    "id,lower,upper,size,alignment",
    "id,lower,upper,size,offset",
    "id,lower,upper,size,hint",
    "id,lower,upper,size,gaps",
    "size,end,start,buffer",
    "id,lower,upper,size,alignment,offset,hint,gaps",
    "id,lower,lower,size",
    "lower,upper",
    "",
)


def inputs(count: int, seed: int) -> Iterator[bytes]:
    """Yield CSV texts: whole, with odd values, with lines or bytes changed."""
    draw = random.Random(seed)
    for _ in range(count):
        header = draw.choice(HEADERS[: 7 if draw.random() < 0.9 else None])
        columns = header.split(",")
        odd = draw.random() < 0.4
        span = draw.choice((4, 20, 10**9, 2**61))
        lines = [header]
        for number in range(draw.randrange(12)):
            lines.append(",".join(_cell(name, number, span, odd, draw) for name in columns))
        text = draw.choice(("\n", "\r\n")).join(lines) + "\n" * draw.randrange(3)
        data = text.encode()
        yield _damaged(data, draw) if draw.random() < 0.2 else data


def _cell(name: str, number: int, span: int, odd: bool, draw: random.Random) -> str:
    if odd and draw.random() < 0.15:
        return draw.choice(HUGE)
    if name in ("lower", "start"):
        return str(draw.randrange(span // 2))
    if name in ("upper", "end"):
        return str(span // 2 + draw.randrange(span // 2))
    if name == "size":
        return str(draw.choice((0, 1, 7, 64, 1024, 2**40)) * draw.randrange(1, 9))
    if name == "alignment":
        return str(draw.choice((1, 1, 2, 64, 3)))
    if name in ("offset", "hint"):
        return str(draw.choice((-1, -1, 0, 64, 192)))
    if name == "gaps":
        middle = span // 2
        return draw.choice(("", f"{middle - 1}-{middle}", f"{middle - 1}-{middle}@0:1", "3-2", "a-b"))
    return str(number % 5)


def _damaged(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        if changed:
            at = draw.randrange(len(changed))
            changed[at : at + draw.randrange(3)] = bytes(
                draw.randrange(256) for _ in range(draw.randrange(3))
            )
    return bytes(changed)
