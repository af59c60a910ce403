"""The application: it runs campaigns, answers questions and controls boards."""
