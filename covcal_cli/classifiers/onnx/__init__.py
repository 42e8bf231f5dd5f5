"""Classifiers in ONNX files."""
