"""Rehearsal: lists of a product's own items, simulated users who choose from them, and measures of learning."""
