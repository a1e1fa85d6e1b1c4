"""The host process, which runs a driver: `python -m penstock.ipc.host`."""
