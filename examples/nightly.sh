#!/usr/bin/env bash
# A nightly job: hold tonight's rows against the calibration in use; where they have changed, make
# another, judge it on the rows that got labels since, and let it take over only if it passes.
#
#   nightly.sh FEATURES.H5 FOLDER
#
# In the environment: METHOD, MAX_ECE, MAX_REGRESSION, and PERIOD, the night's name (its date).
#
# FOLDER holds
#   cal.json        the calibration in use; those that it replaced are cal.1.json, cal.2.json ...
#   reference.json  the metrics of the first good night, which every night is compared with. It
#                   stays: against the night before, each night could be a little worse for ever.
#                   Whoever accepts another level removes it.
#   watch.jsonl     what each night was like, and trend.html drawn of it
#   candidate.json  the calibration that was made last, good or not
#   metrics.json, junit.xml, report.html   of the last night, good or not
#
# A gate fails on what is beyond chance at 95 %, not on the noise of the night's rows; the alarm that
# rows have changed is false once in twenty years.
# Exit code: 0 fine, 3 a gate was exceeded, 1 bad input; then cal.json and reference.json stay.
set -euo pipefail

features="$1"
folder="$2"
mkdir -p "$folder"
# So that no earlier night's pass for tonight's.
rm -f "$folder/metrics.json" "$folder/junit.xml" "$folder/report.html"

# In place at once, whole.
replace() {
  cp "$1" "$2.part"
  mv "$2.part" "$2"
}

# Watch: code 3 says that rows have changed. A night that is done again supersedes itself.
judged="$folder/candidate.json"
if [[ -f "$folder/cal.json" ]]; then
  code=0
  covcal watch "${PERIOD:-$(date +%F)}=$features" -c "$folder/cal.json" --every day \
    --history "$folder/watch.jsonl" --fail-on shift --force || code=$?
  covcal watch --history "$folder/watch.jsonl" --plot "$folder/trend.html" --force
  case "$code" in
    0) judged="$folder/cal.json" ;;
    3) ;;
    *) exit "$code" ;;
  esac
fi

if [[ "$judged" == "$folder/candidate.json" ]]; then
  covcal calibrate "$features" --method "${METHOD:-auto}" -o "$judged" --force --quiet
fi

gates=(--confidence 0.95 --fail-above "ece=${MAX_ECE:-0.05}")
if [[ -f "$folder/reference.json" ]]; then
  gates+=(--baseline "$folder/reference.json" --fail-regression "ece=${MAX_REGRESSION:-0.005}")
fi

# The name stays when auto takes another method. On failure the shell stops here, with covcal's code.
covcal report "$features" -c "nightly=$judged" -o "$folder/report.html"
covcal evaluate "$features" -c "nightly=$judged" "${gates[@]}" \
  -o "$folder/metrics.json" --junit "$folder/junit.xml"

if [[ "$judged" == "$folder/candidate.json" ]]; then
  if [[ -f "$folder/cal.json" ]]; then
    number=1
    while [[ -e "$folder/cal.$number.json" ]]; do number=$((number + 1)); done
    replace "$folder/cal.json" "$folder/cal.$number.json"
  fi
  replace "$judged" "$folder/cal.json"
fi
if [[ ! -f "$folder/reference.json" ]]; then
  replace "$folder/metrics.json" "$folder/reference.json"
fi
