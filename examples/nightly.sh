#!/usr/bin/env bash
# A nightly job: calibrate on today's unlabelled rows, judge on those that got labels since, and
# keep the metrics of the last good night as the baseline.
#
#   nightly.sh FEATURES.H5 FOLDER
#
# Exit code: 0 fine, 3 a gate was exceeded (the folder then keeps the old baseline), 1 bad input.
set -euo pipefail

features="$1"
folder="$2"
mkdir -p "$folder"

covcal calibrate "$features" -o "$folder/cal.json" --force --quiet

gates=(--fail-above "ece=${MAX_ECE:-0.05}")
if [[ -f "$folder/baseline.json" ]]; then
  gates+=(--baseline "$folder/baseline.json" --fail-regression "ece=${MAX_REGRESSION:-0.005}")
fi

# On failure the shell stops here, with covcal's exit code.
covcal evaluate "$features" -c "$folder/cal.json" "${gates[@]}" \
  -o "$folder/metrics.json" --junit "$folder/junit.xml" --force

# A calibration by another method has another name; the baseline is judged by name.
cp "$folder/metrics.json" "$folder/baseline.json"
