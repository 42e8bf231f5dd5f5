"""The kind of a model by its name: the one table that every command asks."""

from pathlib import Path

import pytest

from covcal_cli.classifiers import MODEL_HELP, ONNX, REMEDY, TORCH, Kind, kind_of


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("a.onnx", ONNX),
        ("A.ONNX", ONNX),
        ("model", ONNX),
        ("notes.txt", ONNX),
        ("a.pt", TORCH),
        ("a.PT2", TORCH),
        ("a.safetensors", TORCH),
        ("nets:build", TORCH),
        ("my.nets:zoo.build", TORCH),
        ("C:", ONNX),
        ("a b:c", ONNX),
    ],
)
def test_a_name_tells_the_kind(model: str, kind: Kind) -> None:
    assert kind_of(model) is kind


def test_an_existing_file_is_no_function(tmp_path: Path) -> None:
    """A colon may stand in a file's name."""
    file = tmp_path / "nets:build"
    file.write_bytes(b"")
    assert kind_of(file) is ONNX


def test_help_and_remedy_name_the_usual_endings() -> None:
    assert MODEL_HELP == "A classifier: .onnx, .pt, .pt2 or module:function."
    assert (
        REMEDY == "the first argument must be the classifier: an .onnx, .pt or .pt2 file, or "
        "module:function"
    )
