"""Pads: the layers around a layer under measurement, and what their times bound."""
