"""The process that a driver lives in: `python -m penstock.ipc.host`."""
