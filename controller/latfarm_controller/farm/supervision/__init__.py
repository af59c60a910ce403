"""Which boards may work: decisions of people, and drift of the sentinels."""
