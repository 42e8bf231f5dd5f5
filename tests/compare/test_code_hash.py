"""The hash of the code by which records are known: nothing that counts is left out."""

from pathlib import Path

import pytest

from covcal_cli.compare.runs import NUMERICAL, code_sha256
from tests.test_layers import all_modules, part_of, reachable

STEPS = tuple(
    f"covcal_cli.{name}"
    for name in ("adapt.adapt", "calibrate.calibrate", "calibrate.estimate", "evaluate.evaluate")
)
WITHOUT_NUMBERS = {"", "arguments", "errors", "files", "progress"}


def test_every_module_that_a_run_rests_on_is_hashed() -> None:
    """Beside the steps there is the module that takes them."""
    modules = all_modules()
    used = {name for step in STEPS for name in (step, *reachable(step, modules))}
    assert {part_of(name) for name in used} - WITHOUT_NUMBERS == {
        part.removesuffix(".py") for part in NUMERICAL
    } - {"compare/runs"}


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
