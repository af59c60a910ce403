"""The runtime that runs the vendors' benchmark binaries on a phone, over adb."""
