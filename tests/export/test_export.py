"""``covcal export`` of ONNX models: the probabilities, label and confidence that it adds."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from covcal_cli.records import write_document
from tests.classifiers.onnx.onnx_graphs import (
    CONV_HIDDEN,
    D_IN,
    GEMM,
    HIDDEN,
    IMAGE,
    WEIGHTS,
    Graph,
    node,
)
from tests.export.export_cases import (
    ADDED,
    CLASSES,
    PLAIN,
    WIDTH,
    decided,
    expected_probabilities,
    made_networks,
    plain_case,
    require_counted,
    require_right,
    rows,
    run_bare,
    tensors_of,
)

SOFTMAX = [*HIDDEN, GEMM, node("Softmax", "z", "y", axis=1)]


class TestTheMathematics:
    @pytest.mark.parametrize(
        ("tail", "fl"),
        [("none", False), ("none", True), ("Softmax", False), ("LogSoftmax", True)],
    )
    def test_probabilities_are_the_calibrated_forecasters(
        self, tail: str, fl: bool, tmp_path: Path
    ) -> None:
        """Whatever the model's own output is, the calibration starts from its logits."""
        nodes = PLAIN if tail == "none" else [*HIDDEN, GEMM, node(tail, "z", "y", axis=1)]
        logits = "y" if tail == "none" else "z"
        case = plain_case(tmp_path, fl=fl, graph=Graph(nodes), logits=logits)
        assert case.temperature != 1
        case.export().require_success()
        after = require_right(case, rows(), phi="phi", logits=logits)
        assert list(after) == ["y", *ADDED]

    @pytest.mark.parametrize(("temperature", "fl"), [(0.02, False), (0.02, True), (400.0, True)])
    def test_class_offsets(self, temperature: float, fl: bool, tmp_path: Path) -> None:
        """A correction for a prior is merged in; the label stays, and the metadata has it.

        Small temperatures lose no digits, large ones keep the tails of every member.
        """
        offsets = (-13.8, 0.4, 2.1)
        case = plain_case(tmp_path, fl=fl, temperature=temperature, offsets=offsets)
        case.export().require_success()
        after = require_right(case, rows(), phi="phi", logits="y")
        assert (after["probabilities"].argmax(axis=1) != after["label"]).any()
        entries = {entry.key: entry.value for entry in onnx.load(case.output).metadata_props}
        assert json.loads(entries["covcal.class_offsets"]) == list(offsets)

    @pytest.mark.parametrize("opset", [7, 13, 21])
    def test_in_the_models_own_opset(self, opset: int, tmp_path: Path) -> None:
        """The opset stays; the nodes added are valid in it."""
        model = Graph(SOFTMAX).model()
        model.opset_import[0].version = opset
        if opset < 9:  # such files list their weights among the inputs
            model.ir_version = 3
            for tensor in model.graph.initializer:
                model.graph.input.append(
                    helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                )
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        case = plain_case(tmp_path, fl=True, logits="z")
        case.export().require_success()
        require_right(case, rows(), phi="phi", logits="z")
        exported = onnx.load(case.output)
        assert [(entry.domain, entry.version) for entry in exported.opset_import] == [("", opset)]
        assert exported.ir_version == model.ir_version
        onnx.checker.check_model(exported, full_check=True)

    def test_half_precision(self, tmp_path: Path) -> None:
        """The original part stays float16; the new part is computed in float32."""
        case = plain_case(tmp_path, fl=True, graph=Graph(PLAIN, half=True))
        case.export().require_success()
        after = require_right(case, rows(dtype=np.float16), phi="phi", logits="y")
        assert after["y"].dtype == np.float16

    @pytest.mark.parametrize("pool", ["before", "after"])
    def test_a_convolution_as_head(self, pool: str, tmp_path: Path) -> None:
        """phi is the mean over positions, on whichever side of the head the model pools."""
        head = {"wc": WEIGHTS["w"].reshape(CLASSES, WIDTH, 1, 1)}
        pooled, scored = ("maps", "scores") if pool == "after" else ("mean", "y")
        nodes = [
            *CONV_HIDDEN,
            *([node("GlobalAveragePool", "maps", "mean")] if pool == "before" else []),
            node("Conv", f"{pooled} wc b", scored),
            *([node("GlobalAveragePool", "scores", "y")] if pool == "after" else []),
        ]
        graph = Graph(nodes, constants=head, shape=IMAGE, shapes={"y": ["N", CLASSES, 1, 1]})
        case = plain_case(tmp_path, fl=True, graph=graph, phi=pooled)
        case.export().require_success()
        require_right(case, rows(IMAGE[1:]), phi=lambda m: m.mean(axis=(2, 3)), logits="y")

    def test_a_fixed_batch(self, tmp_path: Path) -> None:
        """A model that takes four rows at a time still takes four rows."""
        graph = Graph(PLAIN, shape=(4, D_IN), shapes={"y": [4, CLASSES]})
        case = plain_case(tmp_path, fl=True, graph=graph)
        case.export().require_success()
        require_right(case, rows(n=4), phi="phi", logits="y")
        declared = onnx.load(case.output).graph.output
        sizes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in declared
        }
        assert sizes == {"y": [4, 3], "probabilities": [4, 3], "label": [4], "confidence": [4]}


class TestForecasters:
    @pytest.mark.parametrize(("members", "components"), [(1, True), (5, False)])
    def test_any_number_of_members(self, members: int, components: bool, tmp_path: Path) -> None:
        """Members are averaged as probabilities; a projection without components only scales."""
        networks = made_networks(WIDTH, CLASSES, members=members, components=components)
        case = plain_case(tmp_path, networks=networks)
        case.export().require_success()
        require_right(case, rows(), phi="phi", logits="y")

    @pytest.mark.parametrize("opset", [7, 21])
    def test_a_blend(self, opset: int, tmp_path: Path) -> None:
        """Half of the model's own distribution, half of the aligned forecaster's."""
        model = Graph(PLAIN).model()
        model.opset_import[0].version = opset
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        case = plain_case(tmp_path, fl=True, method="blend")
        assert case.aligned is not None
        done = case.export().require_success()
        assert f"Calibration  blend, T = {case.temperature:.4g}, {case.aligned:.4g}\n" in done.out
        after = require_right(case, 3 * rows(), phi="phi", logits="y")
        assert (after["probabilities"].argmax(axis=1) != after["label"]).any()
        entries = {entry.key: entry.value for entry in onnx.load(case.output).metadata_props}
        assert float(entries["covcal.aligned_temperature"]) == case.aligned

    def test_a_psi_without_relu(self, tmp_path: Path) -> None:
        """What ``psi/output_relu`` says is done."""
        networks = made_networks(WIDTH, CLASSES)
        networks["psi/output_relu"][:] = 0
        case = plain_case(tmp_path, networks=networks)
        case.export().require_success()
        x = rows()
        (phi, z) = tensors_of(case.model, ["phi", "y"], {"x": x})
        after = run_bare(case.output, {"x": x})
        with_relu = expected_probabilities(z, case.temperature, networks, phi)
        assert np.abs(after["probabilities"] - with_relu).max() > 1e-3

    def test_the_networks_may_have_moved(self, tmp_path: Path) -> None:
        """--networks names the adapted file where cal.json finds it no longer."""
        case = plain_case(tmp_path, fl=True)
        (tmp_path / "adapted.h5").rename(tmp_path / "moved.h5")
        line = case.export().error_line()
        assert "adapted.h5, which is missing: pass --networks" in line
        case.export("--networks", tmp_path / "moved.h5").require_success()
        require_right(case, rows(), phi="phi", logits="y")

    def test_other_networks_are_refused(self, tmp_path: Path) -> None:
        """Networks of another run of adapt would give other probabilities."""
        case = plain_case(tmp_path, fl=True)
        (tmp_path / "other").mkdir()
        other = plain_case(tmp_path / "other", networks=made_networks(WIDTH, CLASSES, seed=1))
        line = case.export("--networks", other.model.parent / "adapted.h5").error_line()
        assert "was not fitted with the networks of" in line
        assert not case.output.exists()

    def test_networks_that_nothing_needs(self, tmp_path: Path) -> None:
        """A calibration of the model's own logits takes no networks."""
        case = plain_case(tmp_path)
        assert "leave out --networks" in case.export("--networks", case.model).error_line()


@pytest.mark.parametrize("offsets", [(), (-1.0, 0.4, 2.1)])
def test_an_offset_of_the_label(offsets: tuple[float, ...], tmp_path: Path) -> None:
    """What labels added to the log odds of the classifier's label is merged in, and recorded."""
    case = plain_case(tmp_path, temperature=1.7, offsets=offsets, of_label=-0.7)
    done = case.export().require_success()
    assert "T = 1.7, offset -0.700\n" in done.out
    require_counted(case, done)
    require_right(case, rows(), phi="phi", logits="y")
    entries = {entry.key: entry.value for entry in onnx.load(case.output).metadata_props}
    assert float(entries["covcal.confidence_offset"]) == -0.7


@pytest.mark.parametrize(("fl", "threshold"), [(False, 0.6), (True, 0.4)])
def test_a_decision_adds_which_rows_are_accepted(
    fl: bool, threshold: float, tmp_path: Path
) -> None:
    """Rows whose confidence is above the threshold, as apply has it."""
    case = plain_case(tmp_path, fl=fl, temperature=2.0)
    decision = decided(case, threshold)
    case.export("--decide", decision).require_success()
    after = require_right(case, 3 * rows(), phi="phi", logits="y")
    assert list(after) == ["y", *ADDED, "accept"]
    assert after["accept"].dtype == np.bool_
    assert 0 < after["accept"].mean() < 1
    np.testing.assert_array_equal(after["accept"], after["confidence"] > threshold)
    content = json.loads(decision.read_text())
    content["promise_by"] = "predicted"
    write_document(content, decision, force=True)
    refused = case.export("--decide", decision, "-f")
    assert "has one threshold per group (predicted)" in refused.error_line()
