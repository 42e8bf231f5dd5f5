"""``covcal export`` of ONNX models changes nothing of the original model."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from covcal_cli.files import sha256_of
from tests.classifiers.onnx.onnx_graphs import (
    GEMM,
    HIDDEN,
    WEIGHTS,
    Graph,
    node,
)
from tests.export.export_cases import (
    ADDED,
    CLASSES,
    PLAIN,
    plain_case,
    require_right,
    rows,
    run_bare,
)

SOFTMAX = [*HIDDEN, GEMM, node("Softmax", "z", "y", axis=1)]


class TestWhatWasThere:
    def test_ties_go_to_the_first_class(self, tmp_path: Path) -> None:
        """Where two logits are equal, the label is the first, as NumPy and the original say."""
        constants = {"w2": np.tile(WEIGHTS["w"][:1], (CLASSES, 1)), "b2": np.array([0, 1, 1.0])}
        constants["b2"] = constants["b2"].astype(np.float32)
        nodes = [*HIDDEN, node("Gemm", "phi w2 b2", "y", transB=1)]
        case = plain_case(tmp_path, graph=Graph(nodes, constants=constants))
        case.export().require_success()
        after = require_right(case, rows(), phi="phi", logits="y")
        assert set(after["label"]) == {1}

    def test_doubles_are_judged_in_full_precision(self, tmp_path: Path) -> None:
        """Two float64 logits that round to one float32 still have a largest."""
        weights = {name: WEIGHTS[name].astype(np.float64) for name in ("w1", "b1")}
        head = np.tile(WEIGHTS["w"][:1], (CLASSES, 1)).astype(np.float64)
        bias = np.array([0.0, 1.0, 1.0 + 1e-12])
        nodes = [*HIDDEN, node("Gemm", "phi w2 b2", "y", transB=1)]
        graph = Graph(
            nodes,
            constants={**weights, "w2": head, "b2": bias},
            input_type=TensorProto.DOUBLE,
            types={"y": TensorProto.DOUBLE},
        )
        case = plain_case(tmp_path, graph=graph)
        x = rows(dtype=np.float64)
        assert set(run_bare(case.model, {"x": x})["y"].argmax(axis=1)) == {2}
        case.export().require_success()
        after = run_bare(case.output, {"x": x})
        assert set(after["label"]) == {2}
        assert after["y"].dtype == np.float64

    def test_names_that_the_model_has_already(self, tmp_path: Path) -> None:
        """An output or tensor of the same name stays; ours gets the prefix ``calibrated_``."""
        nodes = [
            *HIDDEN,
            node("Gemm", "phi w b", "label", transB=1),
            node("Softmax", "label", "probabilities", axis=1),
        ]
        graph = Graph(nodes, outputs=["probabilities"])
        case = plain_case(tmp_path, graph=graph, logits="label")
        done = case.export().require_success()
        after = require_right(case, rows(), phi="phi", logits="label")
        found = ["probabilities", "calibrated_probabilities", "calibrated_label", "confidence"]
        assert list(after) == found
        assert "calibrated_probabilities, calibrated_label, confidence" in done.out

    def test_an_exported_model_can_be_calibrated_and_exported_again(self, tmp_path: Path) -> None:
        """The outputs of the second calibration are numbered; the outputs of the first stay."""
        case = plain_case(tmp_path)
        case.export().require_success()
        once = tmp_path / "once"
        once.mkdir()
        case.output.rename(once / "model.onnx")
        again = plain_case(once)
        again.export("--model-output", "y").require_success()
        after = run_bare(again.output, {"x": rows()})
        assert list(after) == ["y", *ADDED, *(f"calibrated_{name}" for name in ADDED)]

    def test_maps_of_scikit_learn_exports(self, tmp_path: Path) -> None:
        """An output that is a list of maps is still a list of maps."""
        model = Graph(SOFTMAX, outputs=["y"]).model()
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
        model.graph.node.append(
            helper.make_node(
                "ZipMap", ["y"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[4, 5, 6]
            )
        )
        kind = helper.make_map_type_proto(
            TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
        )
        model.graph.output.append(
            helper.make_value_info("maps", helper.make_sequence_type_proto(kind))
        )
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        case = plain_case(tmp_path, logits="z")
        case.export("--model-output", "y").require_success()
        before, after = (run_bare(path, {"x": rows()}) for path in (case.model, case.output))
        assert after["maps"] == before["maps"]
        np.testing.assert_array_equal(after["label"], before["y"].argmax(axis=1))

    def test_metadata(self, tmp_path: Path) -> None:
        """What the model says of itself stays; the calibration and the three hashes are added."""
        model = Graph(PLAIN).model()
        model.producer_name = "someone"
        model.metadata_props.add(key="names", value="a, b, c")
        model.metadata_props.add(key="covcal.temperature", value="old")
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        case = plain_case(tmp_path, fl=True)
        case.export().require_success()
        exported = onnx.load(case.output)
        found = {entry.key: entry.value for entry in exported.metadata_props}
        content = json.loads(case.document.read_text(encoding="utf-8"))
        assert exported.producer_name == "someone"
        assert found["names"] == "a, b, c"
        assert float(found["covcal.temperature"]) == case.temperature
        assert found["covcal.method_used"] == "fl+temp"
        assert found["covcal.calibration_sha256"] == sha256_of(case.document)
        assert found["covcal.model_sha256"] == sha256_of(case.model)
        assert found["covcal.networks_sha256"] == content["networks_sha256"]
        assert found["covcal.warnings"] == str(len(content["warnings"]))
        assert json.loads(found["covcal.classes"]) == content["classes"]
        assert len(exported.metadata_props) == len(found)
