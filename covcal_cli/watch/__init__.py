"""Compare later periods with the rows that a calibration was fitted on."""
