"""What the tests of a new runtime can build on; needs pytest."""
