"""Schedules of row-wise chains: blocks of rows, chunks of a row, entries."""
