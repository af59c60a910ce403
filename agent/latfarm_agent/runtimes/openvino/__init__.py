"""The runtimes that execute models with OpenVINO, and with its older versions for the NCS2."""
