"""Phones behind this host, over adb."""
