"""Training one system: its configuration, its data, and what each rank does."""
