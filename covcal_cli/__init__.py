"""covcal: honest confidence for an existing classifier on unlabelled, shifted data.

The package is a library under a command line. Data flows one way: files, arrays, mathematics,
result, file or screen. Where to look for what:

extract      ``extract/``; ``models/`` finds and proves the last linear layer of ONNX and torch
             classifiers, ``inputs/`` reads folders, arrays, tables and shards, and prepares images
adapt        ``adapt/``: ``settings`` has every number, ``training`` the order of events
calibrate    ``methods`` is the table of methods, ``fitting`` runs one on a ``problem``,
             ``on_source`` and ``on_target`` fit them, ``auto`` chooses; ``temperature``,
             ``weights``, ``logistic``, ``bound`` are the mathematics
estimate     ``estimation``; ``labelfree/`` has one module per estimator, and the guards
evaluate     ``evaluate/`` and ``metrics/``; ``diagram``; ``target_labels`` is the one reader of
             target labels
deploy       ``apply/`` for rows, ``export/`` for the model, ``report/`` for people, ``run/`` for
             all steps at once
files        ``featurefile`` reads and ``featurewriter`` writes HDF5, ``calibration`` is cal.json,
             ``calibrationfiles`` what it names, ``files`` makes outputs appear whole
command line ``cli/``: one module per command, ``cli/app`` is the frame
"""

__version__ = "0.1.0"
