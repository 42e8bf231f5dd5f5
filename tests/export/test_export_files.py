"""``covcal export`` of ONNX models: the files, what is refused, and the proof before writing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from covcal_cli.export import onnx as onnx_export
from covcal_cli.export.export import export
from covcal_cli.records import write_document
from tests.classifiers.onnx.onnx_graphs import (
    D_IN,
    WEIGHTS,
    Graph,
    node,
)
from tests.export.export_cases import (
    ADDED,
    CLASSES,
    PLAIN,
    Case,
    calibrated,
    names,
    plain_case,
    require_right,
    rows,
    run_bare,
)


class TestTheFile:
    @pytest.mark.parametrize("fl", [False, True])
    def test_the_same_input_gives_the_same_bytes(self, fl: bool, tmp_path: Path) -> None:
        """No times, no random names."""
        case = plain_case(tmp_path, fl=fl)
        for output in ("a.onnx", "b.onnx"):
            case.export(output=output).require_success()
        assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()

    def test_the_short_form(self, tmp_path: Path) -> None:
        """cal.json and calibrated.onnx are what is read and written when nothing is said."""
        from tests.cli_runner import covcal

        plain_case(tmp_path)
        done = covcal("export", "model.onnx", cwd=tmp_path).require_success()
        assert (tmp_path / "calibrated.onnx").is_file()
        assert "wrote calibrated.onnx" in done.err
        assert "\nCalibration  temp, T = " in done.out
        assert "y (unchanged), probabilities, label, confidence\n" in done.out
        assert (
            "on 16 random inputs and 180 rows of the calibration's file: outputs identical, labels "
            "identical, probabilities within " in done.out
        )

    def test_exchanged_classes_are_refused_without_force(self, tmp_path: Path) -> None:
        """A served model with the wrong class names is worse than none."""
        case = plain_case(tmp_path)
        content = json.loads(case.document.read_text())
        content["source_accuracy"] |= {
            "permuted": 0.91,
            "exchanged": "classes 1 and 2 seem swapped",
        }
        write_document(content, case.document, force=True)
        line = case.export().error_line()
        assert "classes 1 and 2 seem swapped. Name the classes" in line
        assert line.endswith("or pass --force")
        assert not case.output.exists()
        case.export("--force").require_success()

    def test_external_weights_go_with_it(self, tmp_path: Path) -> None:
        """The exported model and its one file of weights run in a folder of their own."""
        model = Graph(PLAIN).model()
        onnx.save_model(
            model,
            tmp_path / "model.onnx",
            save_as_external_data=True,
            all_tensors_to_one_file=False,
            size_threshold=0,
        )
        assert len(names(tmp_path)) == 5
        from covcal_cli.classifiers.onnx.file import read_onnx

        # One of them is a link, and a killed run has left a part of the output.
        (tmp_path / "w1").rename(tmp_path / "elsewhere")
        (tmp_path / "w1").symlink_to("elsewhere")
        sha256 = read_onnx(tmp_path / "model.onnx").sha256
        case = plain_case(tmp_path, fl=True, attributes={"model_sha256": sha256})
        folder = tmp_path / "out"
        folder.mkdir()
        (folder / ".calibrated.onnx.data.partial").write_bytes(b"left over")
        done = case.export(output="out/calibrated.onnx").require_success()
        assert f"wrote {folder / 'calibrated.onnx.data'}" in done.err
        assert names(folder) == {"calibrated.onnx", "calibrated.onnx.data"}
        alone = tmp_path / "alone"
        folder.rename(alone)
        before = run_bare(case.model, {"x": rows()})
        after = run_bare(alone / "calibrated.onnx", {"x": rows()})
        np.testing.assert_array_equal(after["y"], before["y"])
        tensors = onnx.load(alone / "calibrated.onnx", load_external_data=False).graph.initializer
        places = [
            {entry.key: entry.value for entry in tensor.external_data}
            for tensor in tensors
            if tensor.data_location == TensorProto.EXTERNAL
        ]
        assert len(places) == 4
        assert {place["location"] for place in places} == {"calibrated.onnx.data"}
        assert all(int(place["offset"]) % 4096 == 0 for place in places)

    def test_weights_of_that_name_are_not_replaced(self, tmp_path: Path) -> None:
        """The second file is an output too: it is not overwritten without --force."""
        onnx.save_model(
            Graph(PLAIN).model(),
            tmp_path / "model.onnx",
            save_as_external_data=True,
            location="calibrated.onnx.data",
            size_threshold=0,
        )
        from covcal_cli.classifiers.onnx.file import read_onnx

        weights = tmp_path / "calibrated.onnx.data"
        sha256 = read_onnx(tmp_path / "model.onnx").sha256
        case = plain_case(tmp_path, attributes={"model_sha256": sha256})
        before = weights.read_bytes()
        assert "calibrated.onnx.data exists already" in case.export().error_line()
        assert "is an input of this command" in case.export("--force").error_line()
        assert weights.read_bytes() == before
        assert not case.output.exists()


class TestRefusals:
    def test_another_model(self, tmp_path: Path) -> None:
        """A calibration holds for one model; the error says which, and what to do."""
        case = plain_case(tmp_path)
        model = Graph(PLAIN).model()
        model.doc_string = "retrained"
        case.model.write_bytes(model.SerializeToString())
        line = case.export().error_line()
        assert "(its sha256 differs)" in line
        assert line.endswith("or extract and calibrate the new model")
        assert not case.output.exists()

    def test_logits_from_elsewhere(self, tmp_path: Path) -> None:
        """A table of logits has no model that could be exported."""
        case = plain_case(tmp_path, attributes={"model_sha256": "", "model_name": ""})
        line = case.export().error_line()
        assert "was fitted on a table" in line
        assert not case.output.exists()

    def test_another_head(self, tmp_path: Path) -> None:
        """phi and the logits must be the tensors that were extracted."""
        case = plain_case(tmp_path, attributes={"logits_tensor": "aux"})
        line = case.export().error_line()
        assert "made from the logits aux of" in line
        assert line.endswith("pass the same --model-output as to covcal extract")

    def test_an_opset_without_broadcasting(self, tmp_path: Path) -> None:
        """Before opset 7 the operators added would mean something else."""
        model = Graph([node("Flatten", "x", "phi", axis=1), node("MatMul", "phi wt", "y")])
        proto = Graph(model.nodes, constants={"wt": WEIGHTS["w1"][:, :CLASSES].copy()}).model()
        proto.opset_import[0].version = 6
        proto.ir_version = 3
        (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
        case = calibrated(tmp_path / "model.onnx", method="temp", phi="phi", logits="y", width=D_IN)
        assert "has opset 6, but the calibration needs 7" in case.export().error_line()

    def test_the_wrong_ending(self, tmp_path: Path) -> None:
        """An ONNX model is written as .onnx."""
        case = plain_case(tmp_path)
        line = case.export(output="calibrated.pt2").error_line()
        assert line.endswith("an ONNX model is exported as .onnx: give -o a name with this ending")

    def test_existing_files(self, tmp_path: Path) -> None:
        """An output that exists is replaced only with --force, and the model itself never."""
        case = plain_case(tmp_path)
        case.output.write_bytes(b"mine")
        assert "exists already" in case.export().error_line()
        assert case.output.read_bytes() == b"mine"
        assert "is an input" in case.export("-f", output="model.onnx").error_line()
        case.export("-f").require_success()
        require_right(case, rows(), phi="phi", logits="y")


class TestTheProof:
    def broken(self, case: Case, monkeypatch: pytest.MonkeyPatch, part: str, change: Any) -> str:
        """Export with one part of the merge replaced; require that nothing was written."""
        monkeypatch.setattr(onnx_export, part, change)
        before = names(case.model.parent)
        line = case.export().error_line()
        assert names(case.model.parent) == before
        return line

    def test_wrong_probabilities_are_caught(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A temperature that is off by one part in a thousand is noticed."""
        real = onnx_export.add_probabilities

        def wrong(build: Any, logits: str, temperature: float, *others: Any) -> str:
            return real(build, logits, temperature * 1.001, *others)

        line = self.broken(plain_case(tmp_path), monkeypatch, "add_probabilities", wrong)
        assert "the probabilities of the new model differ from" in line

    def test_wrong_networks_are_caught(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One member of three with other weights is noticed."""
        real = onnx_export.add_aligned_logits

        def wrong(build: Any, features: str, networks: Any) -> str:
            moved = networks["head/bias_1"].copy()
            moved[2, 0] += 0.01
            return real(build, features, {**networks, "head/bias_1": moved})

        case = plain_case(tmp_path, fl=True)
        line = self.broken(case, monkeypatch, "add_aligned_logits", wrong)
        assert "the probabilities of the new model differ from" in line

    def test_wrong_labels_are_caught(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The label of the smallest logit is noticed."""

        def wrong(build: Any, logits: str, output: str) -> str:
            return str(build.node("ArgMin", logits, output=output, axis=1, keepdims=0))

        line = self.broken(plain_case(tmp_path), monkeypatch, "add_label", wrong)
        assert "predicts another class on some of 16 random inputs" in line

    def test_changed_outputs_are_caught(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An original output that moves in its last digits is noticed."""
        real = onnx_export.add_label

        def wrong(build: Any, logits: str, output: str) -> str:
            for tensor in build.graph.initializer:
                if tensor.name == "b":
                    moved = np.nextafter(WEIGHTS["b"], np.float32(np.inf), dtype=np.float32)
                    tensor.raw_data = moved.tobytes()
            return real(build, logits, output)

        line = self.broken(plain_case(tmp_path), monkeypatch, "add_label", wrong)
        assert "(relative) in the new model, so nothing was written" in line

    def test_the_library_says_what_it_found(self, tmp_path: Path) -> None:
        """The report holds the figures of the proof."""
        case = plain_case(tmp_path, fl=True)
        written, merged = export(case.model, case.document, case.output)
        assert (written.kept, written.added) == (("y",), tuple(ADDED))
        assert merged.method_used == "fl+temp"
        assert written.agreement.output_error == 0
        assert 0 < written.agreement.probability_error < 1e-6
        assert (written.agreement.rows, written.agreement.stored_rows) == (16, 180)
