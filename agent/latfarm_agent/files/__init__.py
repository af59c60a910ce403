"""Files on the board's disk: uploaded models, finished results, digests and folders."""
