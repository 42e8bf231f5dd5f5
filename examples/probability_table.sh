#!/usr/bin/env bash
# Calibrate a table of class probabilities, for example of a tabular model or an LLM.
#
#     bash probability_table.sh SOURCE.parquet TARGET.parquet [OUTPUT.csv]
#
# Both tables have a column prob_NAME for every class. SOURCE also has a column `label`, and its rows
# were not used in training. CSV files work as well. The other files go to the folder `calibrated`.
set -euo pipefail
source=$1 target=$2 output=${3:-probabilities.csv}
mkdir -p calibrated

covcal extract "$source" "$target" -o calibrated/features.h5 --force
covcal estimate calibrated/features.h5
covcal calibrate calibrated/features.h5 -o calibrated/cal.json --force
covcal apply calibrated/features.h5 -c calibrated/cal.json -o "$output" --force
