"""The composition root: the only room that knows both sides. Study files, and the programs that wire rooms together."""
