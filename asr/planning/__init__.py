"""What a plan is made of: the arithmetic of a run's needs, rates of preparation, and the table."""
