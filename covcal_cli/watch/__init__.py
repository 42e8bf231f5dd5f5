"""Later periods compared with the reference data of a calibration."""
