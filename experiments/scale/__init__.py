"""Graphs on several processes: strong scaling, bytes and memory."""
