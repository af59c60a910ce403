"""Makes what a board installs when it is enrolled: wheels for its Python and its processor."""
