"""``covcal export``: the same model with calibrated probabilities inside.

``exporting`` is the one entry; ``onnx_export`` and ``torch_export`` write the two kinds of file,
``agreement`` proves the result against NumPy before the file appears.
"""
