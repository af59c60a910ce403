"""TFLite files as several runtimes need them: their schema, their check, their operators."""
