"""What the thesis' experiments need beside their files: how much sampled updates vary, and the pictures."""
