#!/usr/bin/env bash
# A nightly job that compares tonight's rows with the calibration, and tests the calibration on labels.
#
#   nightly.sh FEATURES.H5 FOLDER          every night
#   nightly.sh FEATURES.H5 FOLDER accept   once, by a person: tonight's rows are the new normal
#   nightly.sh FEATURES.H5 FOLDER mended   once, by a person: tonight's rows are from the mended model
#
# A good night prints nothing, so that cron mails nothing. A bad night prints everything. If the rows
# begin to change, the job prints one line and does not fail, because most changes do not matter.
#
# A night is bad if a gate fails, or if labels show that the confidence is off by over TOLERANCE
# points. The job replaces the calibration only with `accept`. On a bad night, the job makes a
# candidate, and the report shows both calibrations. Then the job fails every night until somebody
# corrects the model or the data, or accepts the new rows.
#
# A night without labels is a normal night. It has no gates, and only covcal watch judges it.
# The first night, a candidate and accept need source rows in FEATURES.H5; other nights do not.
#
# In the environment: METHOD, TOLERANCE, MAX_ECE, MAX_REGRESSION, NIGHTS (7), and PERIOD, the
# night's name (its date).
#
# FOLDER holds
#   cal.json            the calibration in use; cal.1.json, cal.2.json ... are earlier calibrations
#   cal.reference.json  statistics of the calibration's rows, with which watch compares every night
#   reference.json      the metrics of the first good night with labels, with which every night is
#                       compared. To compare with a later night, remove the file.
#   watch.jsonl         one line per night; trend.html shows all nights
#   candidate.json      the last candidate
#   bad                 the first bad night; mended removes it, and the nights since then
#   nights/             the rows of the last NIGHTS good nights
#   metrics.json, junit.xml, report.html, night.log   of the last night, good or not
#   junit-nights.xml    the gates of the last NIGHTS nights together
#
# A gate fails if the whole 95 % interval is beyond the limit. Gates test the labelled rows of
# tonight, and the labelled rows of the last NIGHTS nights together.
# Exit code: 0 fine, 3 the confidence is off or a gate failed, 1 bad input.
set -euo pipefail

features="$1"
folder="$2"
accept="${3:-}"
mkdir -p "$folder"
# Remove files of an earlier night, so that nobody takes them for tonight's files.
rm -f "$folder/metrics.json" "$folder/junit.xml" "$folder/junit-nights.xml" "$folder/report.html"

# Keep what the commands print, and show it only if the night was bad.
exec 3>&1 > "$folder/night.log" 2>&1
trap 'code=$?; if [[ "$code" != 0 ]]; then cat "$folder/night.log" >&3; fi' EXIT

# Replace a file atomically by a copy of another file.
replace() {
  cp "$1" "$2.part"
  mv "$2.part" "$2"
}

# Watch tonight's rows; the option says what fails. If a night is run again, its line is replaced.
watch() {
  covcal watch "${PERIOD:-$(date +%F)}=$features" -c "$folder/cal.json" --every day \
    --target-labels --tolerance "${TOLERANCE:-5}" --history "$folder/watch.jsonl" \
    --fail-on "$1" --force
}

# The labels of the bad nights must not judge the mended model.
if [[ "$accept" == mended && -f "$folder/bad" ]]; then
  night="\"period\": \"$(cat "$folder/bad")\""
  awk -v night="$night" 'index($0, night) { exit } { print }' "$folder/watch.jsonl" > "$folder/part"
  mv "$folder/part" "$folder/watch.jsonl"
  rm "$folder/bad"
fi

off=0
if [[ -f "$folder/cal.json" && "$accept" != accept ]]; then
  watch off || off=$?
  if [[ "$off" != 0 && "$off" != 3 ]]; then exit "$off"; fi
  if watch changed > "$folder/rows.txt" 2> /dev/null; then
    rm -f "$folder/changed"
  elif [[ ! -f "$folder/changed" ]]; then
    touch "$folder/changed"
    grep -m 1 "^rows" "$folder/rows.txt" >&3 || true
  fi
  rm -f "$folder/rows.txt"
  covcal watch --history "$folder/watch.jsonl" --plot "$folder/trend.html" --force
fi

# The calibration to judge: the calibration in use, or a candidate to replace it.
judged="$folder/cal.json"
candidate="$folder/candidate.json"
if [[ ! -f "$judged" || "$accept" == accept ]]; then
  covcal calibrate "$features" --method "${METHOD:-auto}" -o "$candidate" --force --quiet
  judged="$candidate"
fi

gates=(--split all --confidence 0.95 --fail-above "ece=${MAX_ECE:-0.05}")
if [[ -f "$folder/reference.json" ]]; then
  gates+=(--baseline "$folder/reference.json" --fail-regression "ece=${MAX_REGRESSION:-0.005}")
fi

covcal inspect "$features" > "$folder/rows.txt"
labelled=yes sourced=no
if grep -q "^target .* 0 labelled" "$folder/rows.txt"; then labelled=no; fi
if grep -q "^source " "$folder/rows.txt"; then sourced=yes; fi
rm -f "$folder/rows.txt"

# The calibration is called "nightly" for every method. On bad input, the job stops here.
failed=0
nights="$folder/nights"
if [[ "$accept" == accept ]]; then rm -rf "$nights"; fi
if [[ "$labelled" == yes ]]; then
  covcal evaluate "$features" -c "nightly=$judged" "${gates[@]}" \
    -o "$folder/metrics.json" --junit "$folder/junit.xml" || failed=$?
  if [[ "$failed" != 0 && "$failed" != 3 ]]; then exit "$failed"; fi

  mkdir -p "$nights"
  for old in "$nights"/*.h5; do if cmp -s "$features" "$old"; then rm "$old"; fi; done # a rerun
  replace "$features" "$nights/${PERIOD:-$(date +%F)}.h5"
  (cd "$nights" && ls -t | tail -n "+$((${NIGHTS:-7} + 1))" | while read -r old; do rm "$old"; done)
  if [[ "$off$failed" == 00 ]]; then
    covcal evaluate "$nights"/*.h5 -c "nightly=$judged" "${gates[@]}" \
      --junit "$folder/junit-nights.xml" || failed=$?
    if [[ "$failed" != 0 && "$failed" != 3 ]]; then exit "$failed"; fi
  fi
fi

# A bad night counts until somebody acts. The next nights may have too few rows to show the fault.
if [[ "$off$failed" != 00 ]]; then
  if [[ ! -e "$folder/bad" ]]; then echo "${PERIOD:-$(date +%F)}" > "$folder/bad"; fi
elif [[ -e "$folder/bad" && "$judged" != "$candidate" ]]; then
  failed=3
  echo "The night $(cat "$folder/bad") was bad, and nobody has acted. If you have mended the model" \
    "or the data, run: $0 $features $folder mended"
fi

shown=()
if [[ "$off$failed" != 00 && "$sourced" == no ]]; then
  rm -f "$candidate"
elif [[ "$off$failed" != 00 && "$judged" != "$candidate" ]]; then
  covcal calibrate "$features" --method "${METHOD:-auto}" -o "$candidate" --force --quiet
  shown=(-c "candidate=$candidate")
fi
covcal report "$features" -c "nightly=$judged" ${shown[@]+"${shown[@]}"} --split all \
  -o "$folder/report.html"

if [[ "$off$failed" != 00 ]]; then
  rm -rf "$nights"
  if [[ "$judged" != "$candidate" ]]; then
    with=""
    if [[ "$sourced" == no ]]; then with="extract these rows together with the source, then "; fi
    echo "$folder/cal.json stays in use. See $folder/report.html. If the new rows are normal, ${with}run:" \
      "$0 $features $folder accept. If you have mended the model or the data, run:" \
      "$0 $features $folder mended"
  fi
  exit 3
fi

if [[ "$judged" == "$candidate" ]]; then
  if [[ -f "$folder/cal.json" ]]; then
    number=1
    while [[ -e "$folder/cal.$number.json" ]]; do number=$((number + 1)); done
    replace "$folder/cal.json" "$folder/cal.$number.json"
  fi
  replace "$candidate" "$folder/cal.json"
  rm -f "$folder/changed" "$folder/bad"
  covcal watch "$features" -c "$folder/cal.json" --quiet > /dev/null # makes cal.reference.json
fi
if [[ ! -f "$folder/reference.json" && "$labelled" == yes ]]; then
  replace "$folder/metrics.json" "$folder/reference.json"
fi
