"""A file that only a document names is opened only in the document's own folder."""

import json
import shutil
from pathlib import Path

import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import FEATURES_FILE
from covcal_cli.formats.lineage import file_here, is_unchanged
from covcal_cli.records import write_document
from tests.cli_runner import covcal
from tests.made_files import edited, made_domain, write_adapted, write_features


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with a calibration that was fitted on a file of the folder above."""
    folder = tmp_path / "here"
    folder.mkdir()
    write_features(tmp_path / "features.h5")
    covcal("calibrate", "../features.h5", "--method", "temp", cwd=folder).require_success()
    return folder


@pytest.mark.parametrize(
    ("command", "named"),
    [
        *(("evaluate", ()), ("apply", ()), ("report", ())),
        *(("evaluate", ("-c", "cal.json")), ("apply", ("-c", "cal.json"))),
    ],
)
def test_no_command_opens_it_by_itself(command: str, named: tuple[str, ...], here: Path) -> None:
    """The error says how to name it, and so named it is read."""
    output = {"evaluate": (), "apply": ("-o", "rows.csv"), "report": ("-o", "page.html")}[command]
    line = covcal(command, *named, *output, cwd=here).error_line()
    assert (
        "cal.json was fitted on ../features.h5, which is outside the folder of the calibration"
        in line
    )
    covcal(command, "../features.h5", *named, *output, cwd=here).require_success()


@pytest.mark.parametrize("path", ["/dev/zero", "/etc/passwd", "../features.h5", "a/../../b.h5"])
def test_a_path_in_a_document_from_elsewhere(path: str, here: Path) -> None:
    """Absolute or by "..", also in a document whose digest was made anew."""
    content = json.loads((here / "cal.json").read_text())
    content["inputs"][0]["path"] = path
    write_document(content, here / "cal.json", force=True)
    calibration = read_calibration(here / "cal.json")
    assert calibration.inputs[0].is_outside
    assert not is_unchanged(calibration.inputs[0])
    assert "is outside the folder of the calibration" in covcal("evaluate", cwd=here).error_line()
    assert "so covcal does not open it" in covcal("inspect", "cal.json", cwd=here).out
    (here / "there").mkdir()
    inside = here / "there" / "features.h5"
    shutil.copy(here.parent / "features.h5", inside)
    content["inputs"][0]["path"] = "there/features.h5"
    write_document(content, here / "cal.json", force=True)
    covcal("evaluate", cwd=here).require_success()


def test_a_calibration_that_nobody_named_must_prove_itself(here: Path) -> None:
    """Of other rows too: whether it is still of its file is not looked up outside."""
    write_features(here / "new.h5", target=made_domain("target", seed=1))
    line = covcal("apply", "new.h5", "-o", "rows.csv", cwd=here).error_line()
    assert "outside the folder of cal.json: pass -c cal.json" in line
    covcal("apply", "new.h5", "-c", "cal.json", "-o", "rows.csv", cwd=here).require_success()


def test_a_named_file_that_has_changed_is_noted(here: Path) -> None:
    write_features(here.parent / "features.h5", target=made_domain("target", seed=1))
    done = covcal("apply", "../features.h5", "-c", "cal.json", "-o", "rows.csv", cwd=here)
    assert "has changed since cal.json was fitted on it" in done.require_success().err


def test_an_adapted_file_names_its_features_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One outside the folder is not opened, and the adapted file must be named."""
    path = write_adapted(tmp_path / "adapted.h5")
    monkeypatch.chdir(tmp_path)
    assert file_here() == Path("adapted.h5")
    with edited(path) as file:
        file.attrs[FEATURES_FILE] = "../features.h5"
    with pytest.raises(CovcalError, match=r"cannot check \.\./features\.h5, because it is outside"):
        file_here()
    covcal("inspect", path).require_success()
