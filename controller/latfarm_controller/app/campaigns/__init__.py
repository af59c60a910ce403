"""Campaigns as the controller has them: started, watched, paused, resumed, and their records."""
