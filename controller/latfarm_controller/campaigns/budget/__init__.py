"""The budget of a characterisation: what it may still spend, and how it is shared by the stages."""
