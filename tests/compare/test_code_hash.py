"""The hash of the code by which records are known; test_layers.py tells what it is of."""

from pathlib import Path

import pytest

from covcal_cli.compare.runs import code_sha256


def test_any_change_is_another_hash_and_a_part_that_is_gone_an_error(tmp_path: Path) -> None:
    """Modules of packages count at any depth."""
    package = tmp_path / "maths"
    (package / "inner").mkdir(parents=True)
    for path in (tmp_path / "arrays.py", package / "inner" / "softmax.py"):
        path.write_text("a = 1")
    hashed = code_sha256.__wrapped__  # not what was found before
    found = {hashed(("arrays.py", "maths"), tmp_path)}
    for path in (tmp_path / "arrays.py", package / "inner" / "softmax.py"):
        path.write_text("a = 2")
        found.add(hashed(("arrays.py", "maths"), tmp_path))
    assert len(found) == 3
    with pytest.raises(FileNotFoundError, match="labelfree"):
        code_sha256(("maths", "labelfree"), tmp_path)
