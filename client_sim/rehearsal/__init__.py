"""Rehearsal: lists of a product's own items, simulated users who choose from them, and what a model has learned."""
