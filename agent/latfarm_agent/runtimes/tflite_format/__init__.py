"""What several runtimes share about TFLite files: their schema, their check, their operators."""
