"""The scheduler: it takes events and answers with instructions, without any input or output."""
