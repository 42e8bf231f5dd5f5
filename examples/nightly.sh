#!/usr/bin/env bash
# A nightly job: compare tonight's rows with the calibration in use, and judge it on their labels.
#
#   nightly.sh FEATURES.H5 FOLDER          every night
#   nightly.sh FEATURES.H5 FOLDER accept   once, by a person: tonight's rows are the new normal
#
# The job never replaces the calibration by itself. If the rows have changed, it makes a candidate,
# shows both in the report, and fails every night until somebody acts: mends the model or the data,
# or accepts the new rows. A broken model looks like changed rows too.
#
# In the environment: METHOD, MAX_ECE, MAX_REGRESSION, and PERIOD, the night's name (its date).
#
# FOLDER holds
#   cal.json            the calibration in use; cal.1.json, cal.2.json ... are those before it
#   cal.reference.json  what its rows were like; watch compares every night with them
#   reference.json      the metrics of the first good night. Every night is compared with them, since
#                       each night could be a little worse than the last. To accept another level,
#                       remove the file.
#   watch.jsonl         one line per night; trend.html draws them
#   candidate.json      the last candidate
#   metrics.json, junit.xml, report.html   of the last night, good or not
#
# A gate fails if the whole 95 % interval is beyond its limit. The alarm that rows have changed is
# false once in twenty years.
# Exit code: 0 fine, 3 a gate failed or the rows have changed, 1 bad input.
set -euo pipefail

features="$1"
folder="$2"
accept="${3:-}"
mkdir -p "$folder"
# No file of an earlier night may pass for tonight's.
rm -f "$folder/metrics.json" "$folder/junit.xml" "$folder/report.html"

# Replace a file by a copy of another, whole.
replace() {
  cp "$1" "$2.part"
  mv "$2.part" "$2"
}

# Compare with the calibration in use. A night that is run again replaces its own line.
changed=0
if [[ -f "$folder/cal.json" ]]; then
  covcal watch "${PERIOD:-$(date +%F)}=$features" -c "$folder/cal.json" --every day \
    --history "$folder/watch.jsonl" --fail-on changed --force || changed=$?
  covcal watch --history "$folder/watch.jsonl" --plot "$folder/trend.html" --force
  if [[ "$changed" != 0 && "$changed" != 3 ]]; then exit "$changed"; fi
fi

judged="$folder/cal.json"
shown=()
if [[ ! -f "$folder/cal.json" || "$changed" == 3 || "$accept" == accept ]]; then
  candidate="$folder/candidate.json"
  covcal calibrate "$features" --method "${METHOD:-auto}" -o "$candidate" --force --quiet
  if [[ ! -f "$folder/cal.json" || "$accept" == accept ]]; then
    judged="$candidate"
  else
    shown=(-c "candidate=$candidate")
  fi
fi

gates=(--confidence 0.95 --fail-above "ece=${MAX_ECE:-0.05}")
if [[ -f "$folder/reference.json" ]]; then
  gates+=(--baseline "$folder/reference.json" --fail-regression "ece=${MAX_REGRESSION:-0.005}")
fi

# The calibration in use is called "nightly" whatever its method. On bad input the job stops here.
covcal report "$features" -c "nightly=$judged" ${shown[@]+"${shown[@]}"} -o "$folder/report.html"
failed=0
covcal evaluate "$features" -c "nightly=$judged" "${gates[@]}" \
  -o "$folder/metrics.json" --junit "$folder/junit.xml" || failed=$?
if [[ "$failed" != 0 && "$failed" != 3 ]]; then exit "$failed"; fi

if [[ "$changed" == 3 && "$accept" != accept ]]; then
  echo "The rows have changed, and $folder/cal.json stays in use. See $folder/report.html. If the" \
    "new rows are normal: $0 $features $folder accept" >&2
  exit 3
fi
if [[ "$failed" != 0 ]]; then exit "$failed"; fi

if [[ "$judged" != "$folder/cal.json" ]]; then
  if [[ -f "$folder/cal.json" ]]; then
    number=1
    while [[ -e "$folder/cal.$number.json" ]]; do number=$((number + 1)); done
    replace "$folder/cal.json" "$folder/cal.$number.json"
  fi
  replace "$judged" "$folder/cal.json"
  covcal watch "$features" -c "$folder/cal.json" --quiet > /dev/null # makes cal.reference.json
fi
if [[ ! -f "$folder/reference.json" ]]; then
  replace "$folder/metrics.json" "$folder/reference.json"
fi
