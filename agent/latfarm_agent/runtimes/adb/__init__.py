"""Benchmark binaries on a phone, over adb."""
