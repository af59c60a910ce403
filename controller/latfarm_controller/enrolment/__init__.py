"""What a board gets when it is enrolled: wheels for its Python and its processor."""
