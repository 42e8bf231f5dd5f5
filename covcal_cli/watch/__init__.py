"""Later periods held against what a calibration was made on."""
