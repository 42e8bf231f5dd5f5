"""Damage to files: of their bytes, their lines, their members, and the values within JSON."""

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**18, -(10**18), 0.0, -0.5, 1e-320, 1e308,
    "", "x", "\x1b[31m\n::error::x", "ä\u202e", "a" * 5000, "\x00", "../../etc/passwd", "/dev/zero",
    [], {}, [[]], [None], {"": None}, [1] * 2000,
)  # fmt: skip
_ODD_TEXTS = (
    "NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "[" * 3000 + "]" * 3000, '"\\ud800"',
    '{"a":' * 500 + "1" + "}" * 500, "01", "1.", "'x'", "{", "tru",
)  # fmt: skip
# Values that no file of covcal's may hold anywhere.
REFUSED = frozenset(_ODD_TEXTS)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value within a JSON value."""
    yield way
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*way, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:5]):
            yield from places(inner, (*way, index))


def mutated_json(content: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """Return a JSON file with one value changed, and whether it must be refused."""
    value = json.loads(content)
    way = rng.choice(list(places(value)))
    kind = rng.random()
    if kind < 0.1:
        return mutated_bytes(content, rng), False
    mark = "\ue000mark"
    changed = _replaced(value, way, mark)
    if kind < 0.4 or not way:
        text = rng.choice(_ODD_TEXTS)
        return json.dumps(changed).replace(json.dumps(mark), text).encode(), True
    if kind < 0.5:  # a key twice
        twice = {"\ue000mark": 1}
        text = json.dumps(_replaced(value, way, twice))
        return text.replace(json.dumps(twice), '{"a": 1, "a": 2}').encode(), True
    if kind < 0.65:
        return json.dumps(_removed(value, way)).encode(), False
    return json.dumps(_replaced(value, way, rng.choice(_ODD))).encode(), False


def same_json(content: bytes, rng: random.Random) -> bytes:
    """Return a JSON file of the same value in other clothes."""
    value = json.loads(content)
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        value = {key: value[key] for key in keys}
    style: dict[str, Any] = rng.choice(
        [{"indent": 7}, {"separators": (",", ":")}, {"ensure_ascii": False}]
    )
    return (" " * rng.randrange(4) + json.dumps(value, **style) + "\n\n").encode()


def _replaced(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    if not way:
        return new
    value = copy.deepcopy(value)
    place = value
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = new
    return value


def _removed(value: Any, way: tuple[Any, ...]) -> Any:
    value = copy.deepcopy(value)
    place = value
    for key in way[:-1]:
        place = place[key]
    del place[way[-1]]
    return value


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with some overwritten, cut out, repeated or put in."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) or 1)
        # Headers and directories lie at the ends.
        if rng.random() < 0.4:
            at = rng.randrange(min(len(data), 600) or 1)
        elif rng.random() < 0.3:
            at = max(0, len(data) - 1 - rng.randrange(600))
        size = rng.choice((1, 1, 1, 2, 4, 8, 50))
        kind = rng.random()
        if kind < 0.6:
            data[at : at + size] = rng.choice(
                (rng.randbytes(size), b"\xff" * size, b"\0" * size, b"\x7f" * size)
            )
        elif kind < 0.75:
            del data[at : at + size * rng.choice((1, 10, 1000))]
        elif kind < 0.85:
            data[at:at] = data[at : at + size]
        elif kind < 0.95:
            data[at:at] = rng.randbytes(size)
        else:
            del data[at:]
    return bytes(data)


def mutated_text(content: bytes, rng: random.Random) -> bytes:
    """Return text with one cell or line changed."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.random()
    if kind < 0.5:
        cells = lines[at].split(b",")
        cells[rng.randrange(len(cells))] = rng.choice(
            (b"nan", b"inf", b"-1e999", b"1e39", b"", b"x", b'"', b'"a\nb"', b"0x1p3", b"1_0",
             b"1,5", b"\xff", b"\0", b"9" * 400, b"-0", b" 1 ", b"\x1b[31m", b"a" * 20_000)
        )  # fmt: skip
        lines[at] = b",".join(cells)
    elif kind < 0.6:
        del lines[at]
    elif kind < 0.7:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif kind < 0.8:
        lines = [line.replace(b",", rng.choice((b";", b"\t", b",,"))) for line in lines]
    else:
        return mutated_bytes(content, rng)
    return b"\n".join(lines)


def mutated_zip(content: bytes, rng: random.Random) -> bytes:
    """Return a zip file with one member damaged, renamed, left out or there twice."""
    if rng.random() < 0.4:
        return mutated_bytes(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(members))
    name, held = members[at]
    kind = rng.random()
    if kind < 0.7:
        members[at] = name, mutated_bytes(held, rng) if held else b"x"
    elif kind < 0.8:
        del members[at]
    elif kind < 0.9:
        members[at] = rng.choice(("x", f"../{name}", f"/{name}", name * 30)), held
    else:
        members.append((f"{name}2", held))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for member, data in members:
            archive.writestr(member, data)
    return packed.getvalue()


Mutation = Callable[[bytes, random.Random], bytes]
