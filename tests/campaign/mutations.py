"""Damage to files: of their bytes, lines, members, arrays, and the values within JSON.

Each mutation returns the new bytes and what may follow (`Verdict`).
"""

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import h5py
import numpy as np
from PIL import Image

from covcal_cli.hdf5 import ATTRIBUTES_SHA256
from covcal_cli.records import DIGEST, digest_of
from tests.campaign.numbers import Arrays, hdf5_arrays, npz_arrays, pth_arrays, safetensors_arrays


class Verdict(Enum):
    """What a command may make of a damaged file."""

    SAME = "it must take it and give the same numbers"
    REFUSED = "it must refuse it"
    LESS = "as broken, but where a part may be missing"
    BROKEN = "it must refuse it, or give the same numbers as what is broken does not count"
    OPEN = "what the file says, read without covcal, decides"


Mutation = Callable[[bytes, random.Random], tuple[bytes, Verdict]]

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


def mutated_json(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Change one value of a JSON file, or only its clothes."""
    value = json.loads(content)
    way = rng.choice(list(places(value)))
    kind = rng.random()
    if kind < 0.1:
        return mutated_bytes(content, rng)
    if kind < 0.2:
        return _same_json(value, rng), Verdict.SAME
    mark = "\ue000mark"
    changed = _replaced(value, way, mark)
    if kind < 0.4 or not way:
        text = rng.choice(_ODD_TEXTS)
        return json.dumps(changed).replace(json.dumps(mark), text).encode(), Verdict.REFUSED
    if kind < 0.5:  # a key twice
        twice = {"\ue000mark": 1}
        text = json.dumps(_replaced(value, way, twice))
        doubled = text.replace(json.dumps(twice), '{"a": 1, "a": 2}')
        return doubled.encode(), Verdict.REFUSED
    is_signed = isinstance(value, dict) and DIGEST in value
    signs = is_signed and rng.random() < 0.5
    if kind < 0.65:
        rest = _removed(value, way)
        if is_signed and not signs:
            return json.dumps(rest).encode(), Verdict.REFUSED
        return _text(rest, signs=signs), Verdict.LESS
    new = rng.choice(_ODD)
    old = value
    for key in way:
        old = old[key]
    legal = old is None or new is None or _kind(new) == _kind(old)
    changed = _replaced(value, way, new)
    if json.dumps(changed) == json.dumps(value):
        return content, Verdict.SAME
    if is_signed and not signs:
        return json.dumps(changed).encode(), Verdict.REFUSED
    return _text(changed, signs=signs), Verdict.OPEN if legal else Verdict.BROKEN


def _text(value: Any, *, signs: bool) -> bytes:
    """Return the text of a changed document, with a digest of what it holds now if it `signs`."""
    if signs and isinstance(value, dict):
        value = {**value, DIGEST: digest_of(value)}
    return json.dumps(value).encode()


def _kind(value: Any) -> type:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return float if numeric else type(value)


def _same_json(value: Any, rng: random.Random) -> bytes:
    """Write the same value in other clothes."""
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


def mutated_bytes(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Overwrite some bytes, cut them out, repeat them or put some in."""
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
    return bytes(data), Verdict.OPEN


def mutated_text(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Change one cell or line of a text."""
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
    elif kind < 0.75:
        lines = [line.replace(b",", rng.choice((b";", b"\t", b",,"))) for line in lines]
    elif kind < 0.85:
        return content.replace(b"\n", b"\r\n"), Verdict.SAME
    else:
        return mutated_bytes(content, rng)
    return b"\n".join(lines), Verdict.OPEN


def mutated_sheet(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Sort one column of a sheet alone, or shuffle its lines; or damage it as any text."""
    kind = rng.random()
    if kind > 0.7:
        return mutated_text(content, rng)
    header, *lines = content.rstrip().split(b"\r\n")
    if kind < 0.2:
        rng.shuffle(lines)
        return b"\r\n".join([header, *lines, b""]), Verdict.BROKEN
    columns = [list(column) for column in zip(*(line.split(b",") for line in lines), strict=True)]
    at = rng.randrange(len(columns))
    ordered = sorted(columns[at], reverse=rng.random() < 0.5)
    verdict = Verdict.SAME if ordered == columns[at] else Verdict.REFUSED
    columns[at] = ordered
    rows = [b",".join(cells) for cells in zip(*columns, strict=True)]
    return b"\r\n".join([header, *rows, b""]), verdict


def mutated_zip(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Damage, rename, leave out or repeat one member of a zip file."""
    if rng.random() < 0.5:
        return mutated_bytes(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(members))
    name, held = members[at]
    kind = rng.random()
    if kind < 0.7:
        members[at] = name, mutated_bytes(held, rng)[0] if held else b"x"
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
    return packed.getvalue(), Verdict.OPEN


def mutated_hdf5(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Damage an HDF5 file in its bytes or its arrays."""
    if rng.random() < 0.4:
        return mutated_bytes(content, rng)
    arrays, attributes = hdf5_arrays(content)
    arrays, verdict = _mutated_arrays(arrays, rng)
    packed = io.BytesIO()
    with h5py.File(packed, "w") as file:
        for name, values in arrays.items():
            whole = values.size > 1 and verdict is Verdict.SAME
            how = rng.choice(({}, {"compression": "gzip"}, {"shuffle": True})) if whole else {}
            file.create_dataset(name, data=values, **how)
        file.attrs.update(attributes)
        # else every dataset must have a checksum
        file.attrs.pop(ATTRIBUTES_SHA256, None)
        if "complete" in attributes and rng.random() < 0.05:
            file.attrs["complete"] = 0
            verdict = Verdict.REFUSED
    return packed.getvalue(), verdict


def mutated_npz(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Damage an .npz file in its bytes, its members or its arrays."""
    if rng.random() < 0.5:
        return mutated_zip(content, rng)
    arrays, verdict = _mutated_arrays(npz_arrays(content), rng)
    packed = io.BytesIO()
    rng.choice((np.savez, np.savez_compressed))(packed, **arrays)
    return packed.getvalue(), verdict


def mutated_npy(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Damage an .npy file in its bytes or its array."""
    if rng.random() < 0.5:
        return mutated_bytes(content, rng)
    arrays, verdict = _mutated_arrays({"x": np.load(io.BytesIO(content))}, rng)
    packed = io.BytesIO()
    np.save(packed, arrays.get("x", np.zeros(0)))
    return packed.getvalue(), Verdict.OPEN if verdict is Verdict.BROKEN else verdict


def mutated_safetensors(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Damage a .safetensors file in its bytes or its tensors."""
    import safetensors.numpy as safetensors

    if rng.random() < 0.5:
        return mutated_bytes(content, rng)
    arrays, verdict = _mutated_arrays(safetensors_arrays(content), rng, texts=False)
    return safetensors.save(arrays), verdict


def mutated_pth(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Damage a torch file of weights in its bytes, its members or its tensors."""
    import torch

    if rng.random() < 0.6:
        return mutated_zip(content, rng)
    arrays, verdict = _mutated_arrays(pth_arrays(content), rng, texts=False)
    packed = io.BytesIO()
    torch.save({name: torch.from_numpy(values) for name, values in arrays.items()}, packed)
    return packed.getvalue(), verdict


def mutated_image(content: bytes, rng: random.Random) -> tuple[bytes, Verdict]:
    """Damage an image, or save it again without loss."""
    if rng.random() < 0.7:
        return mutated_bytes(content, rng)
    packed = io.BytesIO()
    Image.open(io.BytesIO(content)).save(packed, "PNG", compress_level=rng.choice((0, 9)))
    return packed.getvalue(), Verdict.SAME


def _mutated_arrays(
    arrays: Arrays, rng: random.Random, *, texts: bool = True
) -> tuple[Arrays, Verdict]:
    """Change one of some arrays: its type, shape or values; or only in which order they lie."""
    arrays = dict(arrays)
    name = rng.choice(sorted(arrays))
    values = arrays[name]
    kind = rng.random()
    if kind < 0.25:
        names = list(arrays)
        rng.shuffle(names)
        order = rng.choice((np.ascontiguousarray, np.asfortranarray)) if texts else np.asarray
        return {other: order(arrays[other]) for other in names}, Verdict.SAME
    verdict = Verdict.BROKEN
    if kind < 0.5 and values.dtype.kind == "f" and values.size:
        values = values.copy()
        values.flat[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, -np.inf))
        # A class that is never predicted may be masked by -inf.
        verdict = Verdict.OPEN if "logits" in name and np.isneginf(values).any() else verdict
        arrays[name] = values
    elif kind < 0.6:
        del arrays[name]
        verdict = Verdict.OPEN if name in ("y", "id") else verdict
    elif kind < 0.7:
        arrays[name] = np.ascontiguousarray(values[: rng.randrange(len(values))])
    elif kind < 0.8:
        arrays[name] = np.ascontiguousarray(np.concatenate([values, values[:1]]))
    elif kind < 0.9 and texts and values.dtype.kind not in "SU":
        arrays[name] = values.astype(rng.choice(("S3", np.complex64, bool)))
        verdict = Verdict.OPEN if name in ("y", "id") else verdict
    else:
        arrays[name] = np.ascontiguousarray(values[..., None])
    return arrays, verdict
