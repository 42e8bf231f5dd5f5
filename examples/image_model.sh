#!/usr/bin/env bash
# Estimate an image classifier's accuracy on new images, and make a model with calibrated confidence.
#
#     bash image_model.sh MODEL.ONNX SOURCE TARGET [EXTRACT-OPTION ...]
#
# SOURCE holds labelled images that the model was not trained on, in one folder per class. TARGET holds
# the new images. Prepare the images as training did, for example with --preprocess imagenet.
# Everything is written to the folder `calibrated`.
set -euo pipefail
model=$(realpath "$1") source=$(realpath "$2") target=$(realpath "$3")
shift 3
mkdir -p calibrated && cd calibrated

covcal extract "$model" "$source" "$target" "$@" -o features.h5 --force
covcal estimate features.h5                            # the accuracy to expect on the new images
covcal calibrate features.h5 -o cal.json --force       # needs no label of the new images
covcal export "$model" -c cal.json -o calibrated.onnx --force
covcal report features.h5 -c cal.json -o report.html --force

# If the range of the estimate is too wide, label 50 images that covcal selects:
#     covcal pick features.h5 -n 50 --page label.html --images "$target"
#     covcal label features.h5 to-label.csv && covcal calibrate features.h5 --force
