"""Schedules by the shape of a nest: candidates among which the cost model chooses."""
