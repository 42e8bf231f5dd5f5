#!/usr/bin/env bash
# Make the paper's table for your own data: the calibration error of every method, as LaTeX.
#
#     bash paper_table.sh MODEL.ONNX SOURCE TARGET [SEED ...]
#
# If the images need options of `covcal extract`, set EXTRACT, for example to "--preprocess imagenet".
# Write absolute paths in EXTRACT. Check the source accuracy that `covcal extract` prints.
#
# TARGET also needs one folder per class, but only `evaluate` reads the target labels. Every seed
# trains `adapt` anew. Tables and files go to the folder `table`. `covcal compare` averages over
# many shifts and seeds.
set -euo pipefail
model=$(realpath "$1") source=$(realpath "$2") target=$(realpath "$3")
shift 3
mkdir -p table && cd table

covcal extract "$model" "$source" "$target" -o features.h5 --force ${EXTRACT:-}
for seed in "${@:-0}"; do
  covcal adapt features.h5 -o "adapted-$seed.h5" --seed "$seed" --force
  calibrations=()
  for method in temp iw+temp fl+temp fl+iw+temp auto; do
    covcal calibrate "adapted-$seed.h5" --method "$method" -o "$method-$seed.json" --force
    calibrations+=(-c "$method=$method-$seed.json")
  done
  covcal evaluate "adapted-$seed.h5" "${calibrations[@]}" --format latex > "table-$seed.tex"
done
