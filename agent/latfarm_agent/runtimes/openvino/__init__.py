"""OpenVINO, and its Inference Engine of 2021.4 for the NCS2."""
