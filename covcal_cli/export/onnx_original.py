"""The original ONNX classifier: its phi and logits in the graph, and what it gives on made rows."""

import numpy as np

from covcal_cli.classifiers import proof
from covcal_cli.classifiers.onnx.classifier import SMALLEST, OnnxClassifier, OpenedOnnx
from covcal_cli.classifiers.onnx.file import OnnxFile
from covcal_cli.classifiers.onnx.layers import Exposed
from covcal_cli.errors import CovcalError
from covcal_cli.export.onnx_nodes import NodeBuilder
from covcal_cli.export.proof import Answers, Batch, made_batches, no_number


class OnnxOriginal:
    """A classifier as extraction opened it, run once on made rows."""

    def __init__(self, file: OnnxFile, model_output: str | None, phi: str | None) -> None:
        self.file = file
        opened = OpenedOnnx(file, model_output, phi)
        classifier, self.batch = _proved(opened, str(file.path))
        self._features, self._logits = classifier.run(self.batch)
        self._reading, self._is_quantised = classifier.reading, classifier.is_quantised
        self._head = self._reading.head
        self.kept = tuple(value.name for value in file.model.graph.output)
        self.inputs, self.n_classes = opened.inputs, classifier.n_classes
        self.n_features = classifier.n_features
        self.features_tensor = classifier.features_tensor
        self.logits_tensor = classifier.logits_tensor

    def answers(self) -> Answers:
        """Return what the model gives on the made rows."""
        outputs = self.file.session(self.file.data).run(list(self.kept), self.batch)
        tail = self._reading.tail
        return Answers(
            where=str(self.file.path),
            features=self._features,
            logits=self._logits,
            outputs=outputs,
            shown=[outputs[self.kept.index(output.name)] for output in self._head.outputs],
            is_rounded=tail.is_double or tail.takes_logarithm,
            # A quantised model may be fused otherwise, and be off by a step.
            output_tolerance=proof.tolerance(np.dtype(np.float16)) if self._is_quantised else 0.0,
        )

    def add_features(self, build: NodeBuilder) -> str:
        """Append what makes phi, float32 [N, d], of the tensors that the head reads."""
        parts = []
        for part in self._head.features:
            _append_nodes(build, part)
            # The cast comes last: ONNX Runtime leaves out one right behind a float16 operator,
            # and phi would keep digits that extraction did not see.
            vectors = build.vectors(part.tensor, self._reading.token, self.n_features or 0)
            parts.append(build.as_float(vectors))
        return parts[0] if len(parts) == 1 else build.node("Concat", *parts, axis=1)

    def add_logits(self, build: NodeBuilder) -> tuple[str, str]:
        """Append what makes one score per class, [N, K]: for the label, and for the forecaster.

        The first is in double precision where the model's scores are, the second in float32.
        """
        _append_nodes(build, self._head.logits)
        tail = self._reading.tail
        scores = build.node("Flatten", self._head.logits.tensor, axis=1)
        floats = build.as_float(scores)
        if tail.is_single:
            # One number z for two classes stands for the logits 0 and z.
            floats = build.node("Concat", build.node("Sub", floats, floats), floats, axis=1)
            return floats, floats
        judged = scores if tail.is_double else floats
        if tail.takes_logarithm:
            floats = build.node("Log", build.node("Max", floats, build.number(SMALLEST)))
        return judged, floats


def _append_nodes(build: NodeBuilder, exposed: Exposed) -> None:
    present = {name for node in build.graph.node for name in node.output}
    build.graph.node.extend(node for node in exposed.nodes if not present.intersection(node.output))


def _proved(opened: OpenedOnnx, where: str) -> tuple[OnnxClassifier, Batch]:
    """Prove the classifier on the first made rows that it takes, and return both."""
    refusal: CovcalError | None = None
    for batch in made_batches(opened.inputs, opened.fixed_batch):
        try:
            classifier = opened.prove(batch)
            _, logits = classifier.run(batch)
        except CovcalError as error:
            refusal = refusal or error
            continue
        if np.isfinite(logits).all(axis=1).any():
            return classifier, batch
    raise refusal or no_number(where)
