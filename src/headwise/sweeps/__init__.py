"""Curves of a metric as the first k heads of an order are masked, or as only they are kept."""
