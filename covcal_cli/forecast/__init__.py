"""The forecaster whose logits a calibration scales, and the files that a calibration fits."""
