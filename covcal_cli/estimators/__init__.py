"""Estimate the target accuracy without target labels, and check the assumptions of estimates."""
