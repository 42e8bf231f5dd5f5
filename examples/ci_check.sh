#!/usr/bin/env bash
# Fail a job (exit code 3) if confidence on labelled rows is too far off. Works in any CI system.
#
#     bash ci_check.sh FEATURES.H5 CAL.JSON [LIMIT]
#
# LIMIT is the largest calibration error (ECE) that you accept, 0.05 by default. The check fails only if
# the whole 95 % interval of the ECE is above LIMIT, so a job rarely fails by chance. The check needs
# neither PyTorch nor ONNX: pip install --no-deps . && pip install "typer<0.29" rich numpy h5py
set -euo pipefail
features=$1 calibration=$2 limit=${3:-0.05}

covcal evaluate "$features" -c live="$calibration" --confidence 0.95 \
  --fail-above "ece=$limit" --junit calibration.xml -o metrics.json --force
