"""The hash of the code by which the drivers know their records: nothing that counts is left out."""

from pathlib import Path

import pytest
from reproduction.code import FITTING, TRAINING, code_sha256

from tests.test_layers import all_modules, part_of, reachable

ADAPT = ("covcal_cli.adapt.adapt",)
FIT = tuple(
    f"covcal_cli.{name}"
    for name in ("calibrate.calibrate", "calibrate.estimate", "evaluate.evaluate")
)
WITHOUT_NUMBERS = {"", "errors", "files", "progress"}


@pytest.mark.parametrize(("steps", "hashed"), [(ADAPT, TRAINING), (ADAPT + FIT, FITTING)])
def test_every_module_that_a_step_rests_on_is_hashed(
    steps: tuple[str, ...], hashed: tuple[str, ...]
) -> None:
    modules = all_modules()
    used = {name for step in steps for name in (step, *reachable(step, modules))}
    assert {part_of(name) for name in used} - WITHOUT_NUMBERS == {
        part.removesuffix(".py") for part in hashed
    }


def test_any_change_is_another_hash_and_a_part_that_is_gone_an_error(tmp_path: Path) -> None:
    package = tmp_path / "maths"
    (package / "inner").mkdir(parents=True)
    for path in (tmp_path / "arrays.py", package / "inner" / "softmax.py"):
        path.write_text("a = 1")
    found = {code_sha256("arrays.py", "maths", folder=tmp_path)}
    for path in (tmp_path / "arrays.py", package / "inner" / "softmax.py"):
        path.write_text("a = 2")
        found.add(code_sha256("arrays.py", "maths", folder=tmp_path))
    assert len(found) == 3
    with pytest.raises(FileNotFoundError, match="labelfree"):
        code_sha256("maths", "labelfree", folder=tmp_path)
