"""Predicting a new board from few probes, with the rows of other boards.

A probe is a network that is measured on the new board. `table.py` holds what is known of other
boards, `deviations.py` and `prior.py` learn from it how boards differ, `likeness.py` corrects by
the boards that are most like the new one, `model.py` plans probes and predicts from them,
`siblings.py` uses other configurations of the same board, and `new_board.py` chooses the settings
and the width of intervals by leaving boards out.
"""
