#!/usr/bin/env bash
# A nightly job: calibrate on today's unlabelled rows, judge that on the rows that got labels since,
# and let it replace the calibration in use only if it passes.
#
#   nightly.sh FEATURES.H5 FOLDER          (METHOD, MAX_ECE and MAX_REGRESSION in the environment)
#
# FOLDER holds
#   cal.json        the calibration in use: that of the last good night
#   reference.json  the metrics of the first good night, which every night is compared with. It
#                   stays: against the night before, each night could be a little worse for ever.
#                   Whoever accepts another level removes it.
#   candidate.json, metrics.json, junit.xml   of the last night, good or not
#
# A gate fails on what is beyond chance at 95 %, not on the noise of the night's rows.
# Exit code: 0 fine, 3 a gate was exceeded, 1 bad input; then cal.json and reference.json stay.
set -euo pipefail

features="$1"
folder="$2"
mkdir -p "$folder"
rm -f "$folder/metrics.json" "$folder/junit.xml" # so that no earlier night's pass for tonight's

# In place at once, whole.
replace() {
  cp "$1" "$2.part"
  mv "$2.part" "$2"
}

covcal calibrate "$features" --method "${METHOD:-auto}" \
  -o "$folder/candidate.json" --force --quiet

gates=(--confidence 0.95 --fail-above "ece=${MAX_ECE:-0.05}")
if [[ -f "$folder/reference.json" ]]; then
  gates+=(--baseline "$folder/reference.json" --fail-regression "ece=${MAX_REGRESSION:-0.005}")
fi

# The name stays when auto takes another method. On failure the shell stops here, with covcal's code.
covcal evaluate "$features" -c "nightly=$folder/candidate.json" "${gates[@]}" \
  -o "$folder/metrics.json" --junit "$folder/junit.xml"

replace "$folder/candidate.json" "$folder/cal.json"
if [[ ! -f "$folder/reference.json" ]]; then
  replace "$folder/metrics.json" "$folder/reference.json"
fi
