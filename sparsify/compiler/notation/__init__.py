"""Concrete index notation: loops with an order, temporaries with a scope, no storage yet."""
