"""What a board is given when it joins: wheels for its Python and architecture."""
