"""Reads TFLite files: their flatbuffer, their operators, and the Graph that they stand for."""
